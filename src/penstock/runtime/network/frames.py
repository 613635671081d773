"""What travels on a data connection: elements with their channel forwards, grants backwards.

An element is its channel (16 bytes) and a frame of `runtime.wire`; a grant is its channel and the cumulative limit.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

from penstock.core.ids import ChannelId, EdgeId
from penstock.graph.job import JobGraph
from penstock.runtime import wire
from penstock.runtime.elements import Element
from penstock.runtime.network.errors import WireError
from penstock.runtime.network.streams import Stream
from penstock.state.parts import Buffer

_CHANNEL: Final = struct.Struct("<IIIxxxx")
_GRANT: Final = struct.Struct("<IIIxxxxQ")


def encode_element(item: tuple[ChannelId, Element]) -> list[Buffer]:
    channel, element = item
    return [_CHANNEL.pack(channel.edge, channel.source, channel.target), *wire.encode(element)]


def encode_grant(item: tuple[ChannelId, int]) -> list[Buffer]:
    channel, limit = item
    return [_GRANT.pack(channel.edge, channel.source, channel.target, limit)]


class ElementReader:
    """Reads elements off one connection. A batch is received into memory of its own and never copied again."""

    def __init__(self, graph: JobGraph):
        self._schemas = [edge.schema for edge in graph.edges]
        self._head = memoryview(bytearray(_CHANNEL.size + wire.HEADER_BYTES))

    def read(self, stream: Stream) -> tuple[ChannelId, Element]:
        stream.read_into(self._head)
        edge, source, target = _CHANNEL.unpack_from(self._head)
        kind, length = wire.read_header(self._head[_CHANNEL.size :])
        if edge >= len(self._schemas):
            raise WireError(f"an element for edge {edge}, but the job has {len(self._schemas)} edges")
        body = memoryview(b"")
        if length:
            body = memoryview(pa.allocate_buffer(wire.padded(length)))
            stream.read_into(body)
        element = wire.decode_body(kind, body[:length], self._schemas[edge])
        return ChannelId(EdgeId(edge), source, target), element


class GrantReader:
    def __init__(self) -> None:
        self._grant = memoryview(bytearray(_GRANT.size))

    def read(self, stream: Stream) -> tuple[ChannelId, int]:
        stream.read_into(self._grant)
        edge, source, target, limit = _GRANT.unpack(self._grant)
        return ChannelId(EdgeId(edge), source, target), limit
