"""Control messages as bytes: a length of four bytes, then MessagePack. A message of length 0 is a heartbeat."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, Generic, TypeVar, get_args

import msgspec

from penstock.runtime.network.errors import WireError
from penstock.runtime.network.streams import Stream
from penstock.state.parts import Buffer

MAX_MESSAGE: Final = 256 << 20
HEARTBEAT: Final = b""

_LENGTH: Final = struct.Struct("<I")
_ENCODER: Final = msgspec.msgpack.Encoder()

Message = TypeVar("Message")


def encode(message: object) -> bytes:
    encoded = _ENCODER.encode(message)
    if len(encoded) > MAX_MESSAGE:
        raise WireError(
            f"a {type(message).__name__} of {len(encoded)} bytes exceeds the {MAX_MESSAGE} of a control message; "
            "checkpoints carry sinks' committables inline: fewer or larger output files make it smaller"
        )
    return encoded


def framed(encoded: bytes) -> Sequence[Buffer]:
    return (_LENGTH.pack(len(encoded)), encoded)


class MessageReader(Generic[Message]):
    """Reads messages of one union off one connection."""

    def __init__(self, union: object, limit: int = MAX_MESSAGE):
        self._limit = limit
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(union)
        self._names = ", ".join(sorted(kind.__name__ for kind in get_args(union)))
        self._length = memoryview(bytearray(_LENGTH.size))

    def read(self, stream: Stream) -> Message | None:
        """None for a heartbeat."""
        stream.read_into(self._length)
        (length,) = _LENGTH.unpack(self._length)
        if not length:
            return None
        if length > self._limit:
            raise WireError(f"a control message of {length} bytes exceeds the limit of {self._limit}")
        body = memoryview(bytearray(length))
        stream.read_into(body)
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WireError(f"not one of {self._names}: {error}") from error
