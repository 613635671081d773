"""The socket through which a running job takes requests: a thread that accepts, and one for each connection.

Only processes of the same user, and root, get through: the socket lies in a directory that nobody else may enter, and
the kernel says who is at the other end. A connection carries one request after another, each with its answer. When the
job has ended, no new request is taken, but what is under way is still answered: whoever stopped the job hears how that
went.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from typing import Final

from penstock.remote import registry
from penstock.remote.handling import Handler
from penstock.remote.messages import LARGEST_REQUEST, Refused, Request
from penstock.runtime.control import framing
from penstock.runtime.network.errors import WireError
from penstock.runtime.network.streams import Stream, open_stream

_LOG: Final = logging.getLogger(__name__)
_MOST_CONNECTIONS: Final = 32
_SILENCE: Final = 10.0
"""Seconds that a peer may take to ask, or to take its answer."""
_FAREWELL: Final = 2.0
"""Seconds in which the last answers may still go out."""
_PEER: Final = struct.Struct("3i")
"""Process, user and group, as the kernel gives them."""


class Door:
    """Opens at once; raises `OSError` if it cannot."""

    def __init__(self, name: str, directory: str | None, handler: Handler) -> None:
        self._handler = handler
        path = registry.new_socket_path(registry.open_place())
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(path)
            self._listener.listen(_MOST_CONNECTIONS)
            self.running = registry.Running(name, directory, os.getpid(), int(time.time() * 1000), path)
            registry.announce(self.running)
        except OSError:
            self._listener.close()
            raise
        self._lock = threading.Lock()
        self._quiet = threading.Condition(self._lock)
        self._connections: dict[Stream, bool] = {}
        """And whether a request of theirs is being answered."""
        self._closed = False
        self._acceptor = threading.Thread(target=self._accept, name=f"requests to {name}", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Takes no more requests; returns when those under way are answered, or after a while."""
        registry.withdraw(self.running)
        with self._lock:
            self._closed = True
            idle = [stream for stream, busy in self._connections.items() if not busy]
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self._acceptor.join(_FAREWELL)
        for stream in idle:
            stream.close()
        with self._lock:
            if not self._quiet.wait_for(lambda: not any(self._connections.values()), _FAREWELL):
                _LOG.warning("a request to job %r was not answered before its end", self.running.name)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            peer = peer_user(connection)
            if peer not in (None, 0, os.getuid()):
                _LOG.warning("refused a request of user %s to job %r", peer, self.running.name)
                connection.close()
                continue
            stream = open_stream(connection, _SILENCE)
            with self._lock:
                refused = self._closed or len(self._connections) >= _MOST_CONNECTIONS
                if not refused:
                    self._connections[stream] = False
            if refused:
                stream.close()
                stream.release()
            else:
                threading.Thread(target=self._serve, args=(stream,), name="a request", daemon=True).start()

    def _serve(self, stream: Stream) -> None:
        reader: framing.MessageReader[Request] = framing.MessageReader(Request, LARGEST_REQUEST)
        try:
            while self._serve_one(stream, reader):
                pass
        except (OSError, EOFError):
            pass  # the other side has gone: what it asked for was done all the same
        finally:
            with self._lock:
                del self._connections[stream]
                self._quiet.notify_all()
            stream.close()
            stream.release()

    def _serve_one(self, stream: Stream, reader: framing.MessageReader[Request]) -> bool:
        """False: there will be no other."""
        try:
            request = reader.read(stream)
        except WireError as error:
            reason = f"this driver does not understand the request: {error}. Is the command of another version?"
            stream.send(framing.framed(framing.encode(Refused("WireError", reason))))
            return False
        if request is None:
            return True
        with self._lock:
            if self._closed:
                return False
            self._connections[stream] = True
        answer = self._handler.handle(request)
        stream.send(framing.framed(framing.encode(answer)))
        with self._lock:
            self._connections[stream] = False
            self._quiet.notify_all()
            return not self._closed


def open_door(name: str, directory: str | None, handler: Handler) -> Door | None:
    """A job runs without one too: None, and a warning, if it cannot be opened."""
    try:
        return Door(name, directory, handler)
    except OSError as error:
        _LOG.warning("job %r cannot be reached by commands: %s", name, error)
        return None


def peer_user(connection: socket.socket) -> int | None:
    """Who is at the other end of a Unix socket; None where the system does not say."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _PEER.size))
    return int(user)
