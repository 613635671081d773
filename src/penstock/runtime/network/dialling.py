"""Connecting to a peer: the socket, TLS if it is configured, and the client's half of the handshake."""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import dataclass

from penstock.core.ids import Attempt, WorkerId
from penstock.runtime.network.handshake import NONCE_BYTES, ClientHandshake, HandshakeError, Role


@dataclass(frozen=True)
class Dialler:
    """Knows who is calling; every call proves it anew."""

    worker: WorkerId
    secret: bytes
    tls: ssl.SSLContext | None = None
    timeout: float = 10.0
    """Seconds for connecting and for every step of the handshake."""

    def tcp(self, host: str, port: int, role: Role, attempt: Attempt) -> socket.socket:
        try:
            connected = socket.create_connection((host, port), self.timeout)
        except OSError as error:
            raise ConnectionError(f"cannot connect to {host}:{port}: {error}") from error
        try:
            if self.tls is not None:
                connected = self.tls.wrap_socket(connected, server_hostname=host)
            return self._authenticated(connected, role, attempt)
        except BaseException:
            connected.close()
            raise

    def unix(self, path: str, role: Role, attempt: Attempt) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(self.timeout)
            connected.connect(path)
            return self._authenticated(connected, role, attempt)
        except BaseException:
            connected.close()
            raise

    def _authenticated(self, connected: socket.socket, role: Role, attempt: Attempt) -> socket.socket:
        handshake = ClientHandshake(self.secret, role, self.worker, attempt, os.urandom(NONCE_BYTES))
        connected.sendall(handshake.begin())
        while not handshake.done:
            received = connected.recv(handshake.wants)
            if not received:
                raise HandshakeError("the peer closed the connection during the handshake: is the secret right?")
            connected.sendall(handshake.receive(received))
        return connected
