"""The handshake that opens every connection: both sides prove that they know the job's secret, and never show it.

    client                                   server
      hello (version, role, worker, attempt, nonce) ->
                                           <- challenge (version, nonce)
      proof = HMAC(secret, "client", both nonces, hello) ->
                                           <- proof = HMAC(secret, "server", both nonces, hello)

The nonces are fresh on both sides, so a recorded handshake proves nothing; the labels keep one side's proof from being
used as the other's. The server answers a bad proof by closing, and learns nothing more than the client does. Both
machines here are sans-I/O: bytes in, bytes out; sizes are fixed or bounded before anything is read, so an
unauthenticated peer can make nobody allocate or wait for more than a few hundred bytes.
"""

from __future__ import annotations

import hmac
import struct
from enum import StrEnum
from typing import Final

import msgspec

from penstock.core.ids import Attempt, WorkerId

PROTOCOL: Final = 1
"""Raised whenever two versions cannot talk to each other; a worker of another version is turned away at the door."""
NONCE_BYTES: Final = 32

_MAGIC: Final = b"PENSTOCK"
_HELLO_HEAD: Final = struct.Struct("<8sHH")
_CHALLENGE: Final = struct.Struct(f"<8sH{NONCE_BYTES}s")
_PROOF_BYTES: Final = 32
_MAX_HELLO: Final = 512


class HandshakeError(ConnectionError):
    """The peer is not one of ours, or speaks another version."""


class Role(StrEnum):
    CONTROL = "control"
    """A worker's connection to the master."""
    DATA = "data"
    """A worker's connection to a worker that it sends records to."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    role: Role
    worker: WorkerId
    attempt: Attempt
    nonce: bytes


class ClientHandshake:
    """The connecting side. Send what `begin` and `receive` return; `done` says that the server has proved itself."""

    def __init__(self, secret: bytes, role: Role, worker: WorkerId, attempt: Attempt, nonce: bytes):
        self._secret = secret
        self._nonce = nonce
        self._body = msgspec.msgpack.encode(Hello(role, worker, attempt, nonce))
        self._received = bytearray()
        self._server_nonce: bytes | None = None
        self.done = False

    def begin(self) -> bytes:
        return _HELLO_HEAD.pack(_MAGIC, PROTOCOL, len(self._body)) + self._body

    @property
    def wants(self) -> int:
        """How many more bytes it needs before it goes on."""
        if self.done:
            return 0
        return (_CHALLENGE.size if self._server_nonce is None else _PROOF_BYTES) - len(self._received)

    def receive(self, data: bytes) -> bytes:
        self._received += data
        if self.wants > 0:
            return b""
        message, self._received = bytes(self._received), bytearray()
        if self._server_nonce is None:
            magic, version, self._server_nonce = _CHALLENGE.unpack(message)
            _check_version(magic, version)
            return _proof(self._secret, b"client", self._nonce, self._server_nonce, self._body)
        expected = _proof(self._secret, b"server", self._nonce, self._server_nonce, self._body)
        if not hmac.compare_digest(message, expected):
            raise HandshakeError("the peer does not know the job's secret")
        self.done = True
        return b""


class ServerHandshake:
    """The accepting side. `hello` is set once the client has proved itself, and not before."""

    def __init__(self, secret: bytes, nonce: bytes):
        self._secret = secret
        self._nonce = nonce
        self._received = bytearray()
        self._claimed: Hello | None = None
        self._body = b""
        self.hello: Hello | None = None

    @property
    def wants(self) -> int:
        """How many more bytes it needs before it goes on."""
        if self.hello is not None:
            return 0
        if self._claimed is not None:
            return _PROOF_BYTES - len(self._received)
        if len(self._received) < _HELLO_HEAD.size:
            return _HELLO_HEAD.size - len(self._received)
        return _HELLO_HEAD.size + self._announced() - len(self._received)

    def receive(self, data: bytes) -> bytes:
        self._received += data
        if self._claimed is None:
            if len(self._received) >= _HELLO_HEAD.size:
                self._announced()
            return b"" if self.wants > 0 else self._challenge()
        if self.wants > 0:
            return b""
        expected = _proof(self._secret, b"client", self._claimed.nonce, self._nonce, self._body)
        if not hmac.compare_digest(bytes(self._received), expected):
            raise HandshakeError("the peer does not know the job's secret")
        self.hello = self._claimed
        return _proof(self._secret, b"server", self._claimed.nonce, self._nonce, self._body)

    def _announced(self) -> int:
        magic, version, length = _HELLO_HEAD.unpack_from(self._received)
        _check_version(magic, version)
        if length > _MAX_HELLO:
            raise HandshakeError(f"a hello of {length} bytes exceeds the limit of {_MAX_HELLO}")
        return int(length)

    def _challenge(self) -> bytes:
        self._body = bytes(self._received[_HELLO_HEAD.size :])
        try:
            claimed = msgspec.msgpack.decode(self._body, type=Hello)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise HandshakeError(f"not a hello: {error}") from None
        if len(claimed.nonce) != NONCE_BYTES:
            raise HandshakeError(f"a nonce has {NONCE_BYTES} bytes, not {len(claimed.nonce)}")
        self._claimed, self._received = claimed, bytearray()
        return _CHALLENGE.pack(_MAGIC, PROTOCOL, self._nonce)


def _check_version(magic: bytes, version: int) -> None:
    if magic != _MAGIC:
        raise HandshakeError(f"the peer does not speak Penstock's protocol: it sent {magic!r}")
    if version != PROTOCOL:
        raise HandshakeError(
            f"the peer speaks version {version} of the protocol and we speak {PROTOCOL}; "
            "install the same version of penstock on the driver and on all executors"
        )


def _proof(secret: bytes, label: bytes, client_nonce: bytes, server_nonce: bytes, hello: bytes) -> bytes:
    return hmac.digest(secret, label + client_nonce + server_nonce + hello, "sha256")
