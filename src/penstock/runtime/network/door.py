"""Where a worker's data connections come in: the listeners, and the way from an authenticated peer to the right
attempt.

Workers hear of a new attempt at different moments. A peer that is ahead of us is kept waiting until our own deployment
comes; one that is behind belongs to a dead attempt and is turned away.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import ssl
import sys
import threading
from pathlib import Path
from typing import Final

from penstock.core.ids import Attempt
from penstock.runtime.control.messages import Address
from penstock.runtime.network.acceptor import Acceptor, listen_tcp, listen_unix
from penstock.runtime.network.exchange import Exchange
from penstock.runtime.network.handshake import Hello, Role

_LOG: Final = logging.getLogger(__name__)
_MAX_EARLY: Final = 1024


class Door:
    def __init__(self, host: str, secret: bytes, tls: ssl.SSLContext | None = None):
        """Listens on `host` (TCP, a free port) and, where the platform has nameless sockets, on one for peers
        nearby."""
        tcp = listen_tcp(host)
        self.address = Address(host, tcp.getsockname()[1], _nearby_name(), host_key())
        listeners = [tcp]
        if self.address.unix_path:
            listeners.append(listen_unix(self.address.unix_path))
        self._lock = threading.Lock()
        self._attempt = Attempt(-1)
        self._exchange: Exchange | None = None
        self._early: list[tuple[Hello, socket.socket]] = []
        self._acceptor = Acceptor(listeners, secret, self._admit, tls=tls, name="data acceptor")
        self._acceptor.start()

    def open(self, exchange: Exchange) -> None:
        """From now on connections of this exchange's attempt go to it, those that came early first."""
        with self._lock:
            self._exchange, self._attempt = exchange, exchange.attempt
            early, self._early = self._early, []
        for hello, connection in early:
            self._admit(hello, connection)

    def shut(self) -> None:
        """The attempt is over."""
        with self._lock:
            self._exchange = None

    def close(self) -> None:
        self._acceptor.close()
        for _, connection in self._early:
            connection.close()

    def _admit(self, hello: Hello, connection: socket.socket) -> None:
        with self._lock:
            exchange = self._exchange if hello.attempt == self._attempt else None
            early = hello.role is Role.DATA and hello.attempt > self._attempt and len(self._early) < _MAX_EARLY
            if early:
                self._early.append((hello, connection))
        if exchange is not None and hello.role is Role.DATA:
            exchange.admit(hello.worker, connection)
        elif not early:
            _LOG.warning("refused worker %s: its attempt %d is over", hello.worker, hello.attempt)
            connection.close()


def host_key() -> str:
    """Equal for two processes that can reach each other's nameless sockets."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return ""


def _nearby_name() -> str:
    """An abstract socket's name: it leaves no file behind when the process is killed. Linux has them, others use
    TCP."""
    return f"\0penstock-{secrets.token_hex(16)}" if sys.platform == "linux" and host_key() else ""
