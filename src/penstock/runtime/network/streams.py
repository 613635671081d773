"""A connected socket as two threads see it: one reads, another writes, either can be woken by closing.

Writing takes several buffers at once and copies none of them together; reading fills memory that the caller has
allocated. TLS needs its own form: an OpenSSL connection must not be used by two threads at the same time, so the
socket is non-blocking there, every call into OpenSSL is made under a lock, and waiting happens outside it.
"""

from __future__ import annotations

import contextlib
import io
import select
import socket
import ssl
import threading
from collections.abc import Sequence
from typing import Final, Protocol

from penstock.state.parts import Buffer

_MAX_BUFFERS: Final = 512
"""Per call of sendmsg; the kernel takes at least 1024."""
_READ_BUFFER: Final = 1 << 16
_SOCKET_BUFFER: Final = 1 << 20


class Stream(Protocol):
    def send(self, buffers: Sequence[Buffer]) -> None:
        """Blocks until everything is handed to the network. `OSError` if the connection is gone."""
        ...

    def send_now(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        """Hands over what the network takes at once, maybe nothing; returns the rest."""
        ...

    def read_into(self, target: memoryview) -> None:
        """Fills `target`. `EOFError` if the peer has closed, `TimeoutError` if it was silent for too long."""
        ...

    def close(self) -> None:
        """Wakes whoever reads or writes; may be called again and from any thread."""
        ...

    def release(self) -> None:
        """Gives the socket back, once nobody reads or writes any more."""
        ...


def open_stream(connected: socket.socket, silence: float | None = None) -> Stream:
    """`silence`: how many seconds the peer may send nothing (or take nothing) before the connection counts as lost."""
    if connected.family != socket.AF_UNIX:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if isinstance(connected, ssl.SSLSocket):
        return TlsStream(connected, silence)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connected.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER)
    return PlainStream(connected, silence)


class PlainStream:
    def __init__(self, connected: socket.socket, silence: float | None):
        connected.settimeout(silence)
        self._socket = connected
        self._room: select.poll | None = None
        if silence is not None:
            self._room = select.poll()
            self._room.register(connected, select.POLLOUT)
        self._reader = io.BufferedReader(socket.SocketIO(connected, "r"), _READ_BUFFER)

    def send(self, buffers: Sequence[Buffer]) -> None:
        for start in range(0, len(buffers), _MAX_BUFFERS):
            self._send_some(buffers[start : start + _MAX_BUFFERS])

    def _send_some(self, buffers: Sequence[Buffer]) -> None:
        while buffers:
            buffers = _left(buffers, self._socket.sendmsg(buffers))

    def send_now(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        if self._room is not None and not self._room.poll(0):
            return buffers  # with a timeout set, Python itself would wait for that long, whatever the flag says
        try:
            return _left(buffers, self._socket.sendmsg(buffers[:_MAX_BUFFERS], (), socket.MSG_DONTWAIT))
        except BlockingIOError:
            return buffers

    def read_into(self, target: memoryview) -> None:
        _fill(self._reader, target)

    def close(self) -> None:
        _shut(self._socket)

    def release(self) -> None:
        self._reader.close()
        self._socket.close()


class TlsStream:
    def __init__(self, connected: ssl.SSLSocket, silence: float | None):
        connected.setblocking(False)
        self._socket = connected
        self._silence = silence
        self._lock = threading.Lock()
        self._closed = False
        self._reader = io.BufferedReader(_TlsReader(self._receive_some), _READ_BUFFER)

    def send(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            rest = memoryview(buffer)
            while rest:
                rest = rest[self._send_some(rest) :]

    def send_now(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        return buffers

    def _send_some(self, rest: memoryview) -> int:
        with self._lock:
            self._check_open()
            try:
                return self._socket.send(rest)
            except ssl.SSLWantReadError:
                wanted = select.POLLIN
            except ssl.SSLWantWriteError:
                wanted = select.POLLOUT
        self._wait(wanted)
        return 0

    def _receive_some(self, target: memoryview) -> int | None:
        while True:
            with self._lock:
                self._check_open()
                try:
                    return self._socket.recv_into(target)
                except ssl.SSLWantReadError:
                    wanted = select.POLLIN
                except ssl.SSLWantWriteError:
                    wanted = select.POLLOUT
                except ssl.SSLEOFError:
                    return 0
            self._wait(wanted)

    def _wait(self, events: int) -> None:
        poller = select.poll()
        poller.register(self._socket, events)
        if not poller.poll(None if self._silence is None else self._silence * 1000):
            raise TimeoutError(f"the peer was silent for {self._silence:g} s")

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionAbortedError("the connection was closed on this side")

    def read_into(self, target: memoryview) -> None:
        _fill(self._reader, target)

    def close(self) -> None:
        self._closed = True
        _shut(self._socket)

    def release(self) -> None:
        self._socket.close()


class _TlsReader(io.RawIOBase):
    """Lets a `BufferedReader` read through a function."""

    def __init__(self, receive: _Receive):
        self._receive = receive

    def readable(self) -> bool:
        return True

    def readinto(self, target: memoryview) -> int | None:  # type: ignore[override]
        return self._receive(target)


class _Receive(Protocol):
    def __call__(self, target: memoryview, /) -> int | None: ...


def _fill(reader: io.BufferedIOBase, target: memoryview) -> None:
    filled = reader.readinto(target)
    if filled < len(target):
        raise EOFError("the peer closed the connection" + (" in the middle of a message" if filled else ""))


def _left(buffers: Sequence[Buffer], sent: int) -> Sequence[Buffer]:
    """What remains when so many bytes of them have been sent."""
    for place, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:], *buffers[place + 1 :]]
        sent -= len(buffer)
    return ()


def _shut(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # The plain socket's shutdown: TLS's own would wait for the peer.
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
