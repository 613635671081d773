"""The master's end of the control connections: one link per worker, from its registration until it is lost or
dismissed.

A worker counts as lost when its connection ends or when nothing, not even a heartbeat, came from it for the heartbeat
timeout. Events come from the links' threads, in order per worker; whoever takes them must not block.
"""

from __future__ import annotations

import functools
import logging
import socket
import ssl
import threading
from typing import Final, Protocol

from penstock.core.ids import WorkerId
from penstock.core.settings import RuntimeSettings
from penstock.runtime.control import framing
from penstock.runtime.control.messages import Register, ToMaster, ToWorker
from penstock.runtime.network.acceptor import Acceptor, listen_tcp
from penstock.runtime.network.errors import WireError
from penstock.runtime.network.handshake import Hello, Role
from penstock.runtime.network.link import Link
from penstock.runtime.network.streams import Stream, open_stream

_LOG: Final = logging.getLogger(__name__)
_FAREWELL: Final = 2.0
"""Seconds in which the last messages may still go out when the server closes."""


class ControlEvents(Protocol):
    def registered(self, worker: WorkerId, message: Register) -> None: ...

    def received(self, worker: WorkerId, message: ToMaster) -> None: ...

    def lost(self, worker: WorkerId, reason: str) -> None: ...


class ControlServer:
    def __init__(
        self,
        host: str,
        secret: bytes,
        events: ControlEvents,
        settings: RuntimeSettings,
        *,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ):
        listener = listen_tcp(host, port)
        self.port: int = listener.getsockname()[1]
        self._events = events
        self._settings = settings
        self._lock = threading.Lock()
        self._links: dict[WorkerId, Link[bytes]] = {}
        self._broken_links: list[Link[bytes]] = []
        """Their threads end by themselves, but closing the server waits for them."""
        self._closed = False
        self._acceptor = Acceptor([listener], secret, self._admit, tls=tls, name="control acceptor")

    def start(self) -> None:
        self._acceptor.start()

    def send(self, worker: WorkerId, message: ToWorker) -> None:
        """Never blocks. Nothing happens if the worker is gone: its loss has been or will be told."""
        with self._lock:
            link = self._links.get(worker)
        if link is not None:
            link.send(framing.encode(message))

    def disconnect(self, worker: WorkerId) -> None:
        """Ends the connection without a `lost`."""
        with self._lock:
            link = self._links.pop(worker, None)
        if link is not None:
            link.close()

    def close(self) -> None:
        """What was sent before still goes out."""
        self._acceptor.close()
        with self._lock:
            self._closed = True
            links, self._links = self._links, {}
        for link in (*links.values(), *self._broken_links):
            link.close(flush=_FAREWELL)

    def _admit(self, hello: Hello, connection: socket.socket) -> None:
        worker = hello.worker
        with self._lock:
            if self._closed or hello.role is not Role.CONTROL or worker in self._links:
                _LOG.warning("refused worker %s: it asked for a %s connection, or has one", worker, hello.role)
                connection.close()
                return
            link: Link[bytes] = Link(
                f"control {worker}",
                encode=framing.framed,
                read_one=_Inbox(worker, self._events).read_one,
                connected=_nothing,
                broken=functools.partial(self._broken, worker),
                heartbeat=(self._settings.heartbeat_every, framing.HEARTBEAT),
            )
            self._links[worker] = link
            link.start(lambda: open_stream(connection, self._settings.heartbeat_timeout))

    def _broken(self, worker: WorkerId, reason: str) -> None:
        with self._lock:
            link = self._links.pop(worker, None)
            if link is not None:
                self._broken_links = [link, *(old for old in self._broken_links if not old.ended)]
        if link is not None:
            self._events.lost(worker, reason)


class _Inbox:
    """What one worker says: first that it registers, as the one that it proved to be."""

    def __init__(self, worker: WorkerId, events: ControlEvents):
        self._worker = worker
        self._events = events
        self._registered = False
        self._reader: framing.MessageReader[ToMaster] = framing.MessageReader(ToMaster)

    def read_one(self, stream: Stream) -> None:
        message = self._reader.read(stream)
        if message is None:
            return
        if isinstance(message, Register) == self._registered:
            raise WireError(f"a worker registers once, and first: {type(message).__name__} came out of turn")
        if not isinstance(message, Register):
            self._events.received(self._worker, message)
            return
        if message.worker != self._worker:
            raise WireError(f"worker {self._worker} tried to register as {message.worker}")
        self._registered = True
        self._events.registered(self._worker, message)


def _nothing() -> None:
    pass
