"""Elements as bytes: on data connections and as the channel state of a checkpoint.

A *frame* is one element. It starts with a header of 16 bytes (magic, kind, length of the body) and its body is padded
to a multiple of 8, so that frames can be put one after another and every Arrow buffer inside stays aligned. The body of
a batch is an Arrow IPC message without its schema: both ends of an edge know the edge's schema. Nothing here executes
what it reads, and no size is trusted before it is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

import msgspec
import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.runtime.elements import Element, EndOfChannel, EndOfData, Idle, Watermark
from penstock.runtime.network.errors import WireError
from penstock.state.parts import Buffer

HEADER: Final = struct.Struct("<2sBxxxxxQ")
HEADER_BYTES: Final = HEADER.size
MAX_BODY: Final = 1 << 30
"""No element may be larger; receivers refuse a longer announcement before they allocate anything."""

_MAGIC: Final = b"PE"
_MAX_SMALL_BODY: Final = 4096
_ALIGNMENT: Final = 8
_WATERMARK: Final = struct.Struct("<q")
_PADDING: Final = tuple(bytes(n) for n in range(_ALIGNMENT))
_BARRIER_ENCODER: Final = msgspec.msgpack.Encoder()
_BARRIER_DECODER: Final = msgspec.msgpack.Decoder(Barrier)


class Kind(IntEnum):
    BATCH = 1
    WATERMARK = 2
    IDLE = 3
    BARRIER = 4
    END_OF_DATA = 5
    END_OF_CHANNEL = 6


def padded(length: int) -> int:
    """The bytes that a body of `length` takes up in a frame."""
    return -(-length // _ALIGNMENT) * _ALIGNMENT


def encode(element: Element) -> Sequence[Buffer]:
    """One frame, as buffers to be written one after another."""
    kind, body = _encode_body(element)
    length = len(body)
    if length > MAX_BODY:
        raise WireError(
            f"an element of {length} bytes exceeds the {MAX_BODY} that a channel carries; "
            "emit smaller batches or smaller rows"
        )
    header = HEADER.pack(_MAGIC, kind, length)
    if not length:
        return (header,)
    if length % _ALIGNMENT:
        return (header, body, _PADDING[padded(length) - length])
    return (header, body)


def _encode_body(element: Element) -> tuple[Kind, Buffer]:
    match element:
        case pa.RecordBatch():
            return Kind.BATCH, _encode_batch(element)
        case Watermark():
            return Kind.WATERMARK, _WATERMARK.pack(element.time)
        case Idle():
            return Kind.IDLE, bytes((element.active,))
        case Barrier():
            return Kind.BARRIER, _BARRIER_ENCODER.encode(element)
        case EndOfData():
            return Kind.END_OF_DATA, b""
        case EndOfChannel():
            return Kind.END_OF_CHANNEL, b""
        case _:
            raise WireError(f"{type(element).__name__} is no element of a channel")


def _encode_batch(batch: pa.RecordBatch) -> memoryview:
    for field in batch.schema:
        if pa.types.is_dictionary(field.type):
            raise WireError(
                f"column {field.name!r} is dictionary-encoded ({field.type}) and its dictionary does not travel "
                f"with a batch; cast it to {field.type.value_type}"
            )
    try:
        return memoryview(batch.serialize())
    except pa.ArrowInvalid as error:
        raise WireError(f"a batch of schema [{_names(batch.schema)}] cannot be sent: {error}") from error


def read_header(header: Buffer) -> tuple[Kind, int]:
    """Kind and length of the body, from the first `HEADER_BYTES` of a frame."""
    if len(header) < HEADER_BYTES:
        raise WireError(f"a frame needs {HEADER_BYTES} bytes of header, there are {len(header)}")
    magic, number, length = HEADER.unpack_from(header)
    if magic != _MAGIC:
        raise WireError(f"not a frame: it starts with {magic!r} instead of {_MAGIC!r}")
    try:
        kind = Kind(number)
    except ValueError:
        raise WireError(f"unknown kind of element {number}; was it written by a newer version?") from None
    limit = MAX_BODY if kind is Kind.BATCH else _MAX_SMALL_BODY
    if length > limit:
        raise WireError(f"a {kind.name} of {length} bytes exceeds the limit of {limit}")
    return kind, length


def decode(frame: memoryview, schema: pa.Schema) -> Element:
    """The element of one whole frame. A batch refers to the frame's memory, without a copy."""
    kind, length = read_header(frame)
    if len(frame) != HEADER_BYTES + padded(length):
        raise WireError(f"a frame of {HEADER_BYTES + padded(length)} bytes was announced, there are {len(frame)}")
    return decode_body(kind, frame[HEADER_BYTES : HEADER_BYTES + length], schema)


def decode_body(kind: Kind, body: memoryview, schema: pa.Schema) -> Element:
    """The element whose header has been read already; `body` is without padding."""
    match kind:
        case Kind.BATCH:
            return _decode_batch(body, schema)
        case Kind.WATERMARK:
            _expect_length(kind, body, _WATERMARK.size)
            return Watermark(_WATERMARK.unpack(body)[0])
        case Kind.IDLE:
            _expect_length(kind, body, 1)
            return Idle(bool(body[0]))
        case Kind.BARRIER:
            try:
                return _BARRIER_DECODER.decode(body)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise WireError(f"not a barrier: {error}") from error
        case Kind.END_OF_DATA:
            _expect_length(kind, body, 0)
            return EndOfData()
        case Kind.END_OF_CHANNEL:
            _expect_length(kind, body, 0)
            return EndOfChannel()


def _decode_batch(body: memoryview, schema: pa.Schema) -> pa.RecordBatch:
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
        batch.validate()
    except (pa.ArrowException, OSError, EOFError) as error:
        raise WireError(f"not a batch of schema [{_names(schema)}]: {error}") from error
    return batch


def frames(buffer: Buffer) -> Iterator[memoryview]:
    """The frames of a buffer that holds nothing else, in order."""
    rest = memoryview(buffer)
    while rest:
        _, length = read_header(rest)
        end = HEADER_BYTES + padded(length)
        if len(rest) < end:
            raise WireError(f"the last frame is cut off: it has {len(rest)} of its {end} bytes")
        yield rest[:end]
        rest = rest[end:]


def _expect_length(kind: Kind, body: memoryview, length: int) -> None:
    if len(body) != length:
        raise WireError(f"a {kind.name} has {length} bytes, not {len(body)}")


def _names(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
