"""The door: takes connections, and lets through only who proves to know the job's secret.

One thread serves all unauthenticated peers without ever blocking on one of them: a port scan, garbage, a wrong secret
or a half-open connection costs a socket and a few hundred bytes until its deadline. Their number is bounded; where a
flood fills the room, the oldest goes first, since an honest handshake takes milliseconds. Authenticated sockets are
handed to `admit`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.runtime.network.handshake import NONCE_BYTES, Hello, ServerHandshake

_LOG: Final = logging.getLogger(__name__)
_LOGGED_IN_FULL: Final = 20
_LOGGED_OF_THE_REST: Final = 100

Admit = Callable[[Hello, socket.socket], None]


@dataclass
class _Stranger:
    connection: socket.socket
    peer: str
    deadline: float
    handshake: ServerHandshake
    secured: bool
    outgoing: bytearray = field(default_factory=bytearray)


class Acceptor:
    def __init__(
        self,
        listeners: Sequence[socket.socket],
        secret: bytes,
        admit: Admit,
        *,
        tls: ssl.SSLContext | None = None,
        name: str = "acceptor",
        patience: float = 5.0,
        maximum_strangers: int = 64,
    ):
        """`patience`: seconds that a stranger gets for its whole handshake. `admit` is called on the acceptor's
        thread."""
        self._listeners = listeners
        self._secret = secret
        self._admit = admit
        self._tls = tls
        self._patience = patience
        self._maximum = maximum_strangers
        self._strangers: dict[socket.socket, _Stranger] = {}
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._refused = 0
        for listener in listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._waker.close()
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                for key, _ in self._selector.select(self._next_deadline()):
                    if key.fileobj is self._woken:
                        return
                    self._serve(key.fileobj)  # type: ignore[arg-type]
                self._expire()
        finally:
            for stranger in list(self._strangers.values()):
                self._drop(stranger)
            for listener in self._listeners:
                listener.close()
            self._woken.close()
            self._selector.close()

    def _next_deadline(self) -> float | None:
        if not self._strangers:
            return None
        return max(0.0, min(s.deadline for s in self._strangers.values()) - time.monotonic())

    def _serve(self, ready: socket.socket) -> None:
        stranger = self._strangers.get(ready)
        if stranger is not None:
            self._advance(stranger)
        elif ready in self._listeners:
            self._accept(ready)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, address = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            _LOG.warning("a connection could not be accepted: %s", error)
            self._evict_oldest()
            return
        if len(self._strangers) >= self._maximum:
            self._evict_oldest()
        connection.setblocking(False)
        if self._tls is not None and connection.family != socket.AF_UNIX:
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        self._strangers[connection] = _Stranger(
            connection,
            _text(address),
            time.monotonic() + self._patience,
            ServerHandshake(self._secret, os.urandom(NONCE_BYTES)),
            secured=not isinstance(connection, ssl.SSLSocket),
        )
        self._selector.register(connection, selectors.EVENT_READ)

    def _advance(self, stranger: _Stranger) -> None:
        try:
            self._exchange(stranger)
        except (ssl.SSLWantReadError, BlockingIOError):
            self._selector.modify(stranger.connection, selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._selector.modify(stranger.connection, selectors.EVENT_WRITE)
        except (OSError, EOFError) as error:
            self._refuse(stranger, str(error) or type(error).__name__)

    def _exchange(self, stranger: _Stranger) -> None:
        """Goes on until the socket has nothing more to say; a full handshake ends with the admission."""
        connection, handshake = stranger.connection, stranger.handshake
        if not stranger.secured:
            assert isinstance(connection, ssl.SSLSocket)
            connection.do_handshake()
            stranger.secured = True
        while True:
            while stranger.outgoing:
                del stranger.outgoing[: connection.send(stranger.outgoing)]
            if handshake.hello is not None:
                self._let_in(stranger, handshake.hello)
                return
            received = connection.recv(handshake.wants)
            if not received:
                raise EOFError("it closed before it had proved anything")
            stranger.outgoing += handshake.receive(received)

    def _let_in(self, stranger: _Stranger, hello: Hello) -> None:
        self._forget(stranger)
        stranger.connection.setblocking(True)
        try:
            self._admit(hello, stranger.connection)
        except Exception:
            _LOG.exception("worker %s could not be admitted", hello.worker)
            stranger.connection.close()

    def _expire(self) -> None:
        now = time.monotonic()
        for stranger in [s for s in self._strangers.values() if s.deadline <= now]:
            self._refuse(stranger, f"no handshake within {self._patience:g} s")

    def _evict_oldest(self) -> None:
        if self._strangers:
            self._refuse(next(iter(self._strangers.values())), "too many unauthenticated connections")

    def _refuse(self, stranger: _Stranger, reason: str) -> None:
        self._refused += 1
        if self._refused <= _LOGGED_IN_FULL or self._refused % _LOGGED_OF_THE_REST == 0:
            _LOG.warning("refused connection %d, from %s: %s", self._refused, stranger.peer, reason)
        self._drop(stranger)

    def _drop(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        stranger.connection.close()

    def _forget(self, stranger: _Stranger) -> None:
        del self._strangers[stranger.connection]
        self._selector.unregister(stranger.connection)


def listen_tcp(host: str, port: int = 0) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(256)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def listen_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.ExitStack() as stack:
        stack.callback(listener.close)
        listener.bind(path)
        listener.listen(256)
        stack.pop_all()
    return listener


def _text(address: object) -> str:
    if isinstance(address, tuple) and len(address) >= 2:
        return f"{address[0]}:{address[1]}"
    return "a local socket"
