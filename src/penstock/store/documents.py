"""The small JSON files of a job's directory, and the committables: how they are written, verified and read.

Every document is an envelope for people and machines alike: `{"format": 1, "crc32": ..., "body": {...}}`, the checksum
being over the body's bytes exactly as they stand in the file. The format is looked at first, so that a file of a newer
version is told apart from a damaged one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec
from zlib_ng.zlib_ng import crc32

from penstock.core.barrier import Mode, Purpose
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.core.record import ChainRecord, CheckpointRecord, GraphRecord, SubtaskRecord
from penstock.core.store import Claimed, Completed, LogEntry, Voided
from penstock.store.errors import NO_OTHER_LOG, RESTORE_ANOTHER, CorruptCheckpoint, UnknownFormat

FORMAT = 2
"""2: handles may point to files of earlier checkpoints and name layers; readers of 1 would not find them."""

Body = TypeVar("Body")


class _Version(msgspec.Struct):
    format: int


class _Envelope(msgspec.Struct):
    format: int
    crc32: int
    body: msgspec.Raw


def seal(body: object) -> bytes:
    """A body as a document."""
    return enclose(msgspec.json.format(msgspec.json.encode(body), indent=1))


def enclose(text: bytes) -> bytes:
    """A body that is JSON already as a document."""
    return b'{"format": %d,\n"crc32": %d,\n"body": %s}\n' % (FORMAT, crc32(text), text)


def unseal(path: str, content: memoryview, kind: type[Body], advice: str = RESTORE_ANOTHER) -> Body:
    """The body of a document; `path` and `advice` are for the error messages."""
    try:
        version = msgspec.json.decode(content, type=_Version)
        if version.format > FORMAT:
            raise UnknownFormat(path, version.format, FORMAT)
        if version.format < 1:
            raise CorruptCheckpoint(path, f"there is no format {version.format}", advice)
        envelope = msgspec.json.decode(content, type=_Envelope)
        crc = crc32(envelope.body)
        if crc != envelope.crc32:
            raise CorruptCheckpoint(path, f"its content has checksum {crc}, but {envelope.crc32} was written", advice)
        return msgspec.json.decode(envelope.body, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptCheckpoint(path, f"not a readable document ({len(content)} bytes): {error}", advice) from error


# ---- whose directory it is ----
class Identity(msgspec.Struct, frozen=True):
    job: str


# ---- the log ----
class _Entry(msgspec.Struct, frozen=True, tag_field="kind"):
    generation: Generation
    oldest: int


class _Claim(_Entry, frozen=True, tag="claim"):
    pass


class _Completion(_Entry, frozen=True, tag="complete"):
    checkpoint: CheckpointId
    metadata: str
    crc32: int


class _Void(_Entry, frozen=True, tag="void"):
    pass


def encode_entry(entry: LogEntry) -> bytes:
    if isinstance(entry, Claimed):
        return seal(_Claim(entry.generation, entry.oldest))
    if isinstance(entry, Voided):
        return seal(_Void(entry.generation, entry.oldest))
    return seal(_Completion(entry.generation, entry.oldest, entry.checkpoint, entry.metadata, entry.crc32))


def decode_entry(path: str, number: int, content: memoryview) -> LogEntry:
    kinds = _Claim | _Completion | _Void
    body: _Claim | _Completion | _Void = unseal(path, content, kinds, NO_OTHER_LOG)  # type: ignore[arg-type]
    if isinstance(body, _Claim):
        return Claimed(number, body.generation, body.oldest)
    if isinstance(body, _Void):
        return Voided(number, body.generation, body.oldest)
    return Completed(number, body.generation, body.oldest, body.checkpoint, body.metadata, body.crc32)


# ---- the metadata of a checkpoint ----
class CommittablesFile(msgspec.Struct, frozen=True):
    path: str
    """Relative to the checkpoint's directory."""
    length: int
    crc32: int
    inline: bytes | None = None
    """What would be in the file, if it is little: then there is none, and `path` is empty."""


class Metadata(msgspec.Struct, frozen=True):
    """`CheckpointRecord` with the committables in a file of their own."""

    checkpoint: CheckpointId
    generation: Generation
    attempt: Attempt
    mode: Mode
    purpose: Purpose
    triggered_ms: int
    completed_ms: int
    graph: GraphRecord
    subtasks: list[SubtaskRecord]
    committables: CommittablesFile | None = None


def to_metadata(record: CheckpointRecord, committables: CommittablesFile | None) -> Metadata:
    return Metadata(
        record.checkpoint,
        record.generation,
        record.attempt,
        record.mode,
        record.purpose,
        record.triggered_ms,
        record.completed_ms,
        record.graph,
        list(record.subtasks),
        committables,
    )


def to_record(metadata: Metadata, committables: Mapping[Uid, Sequence[bytes]]) -> CheckpointRecord:
    """The record as it was written, with tuples for all sequences."""
    return CheckpointRecord(
        metadata.checkpoint,
        metadata.generation,
        metadata.attempt,
        metadata.mode,
        metadata.purpose,
        metadata.triggered_ms,
        metadata.completed_ms,
        _frozen(metadata.graph),
        tuple(replace(subtask, handles=tuple(subtask.handles)) for subtask in metadata.subtasks),
        committables,
    )


def _frozen(graph: GraphRecord) -> GraphRecord:
    chains = tuple(
        ChainRecord(
            chain.id,
            chain.parallelism,
            tuple(replace(one, states=tuple(one.states), key=tuple(one.key)) for one in chain.operators),
        )
        for chain in graph.chains
    )
    edges = tuple(replace(edge, key=tuple(edge.key), columns=tuple(edge.columns)) for edge in graph.edges)
    return replace(graph, chains=chains, edges=edges)


# ---- committables: bytes, therefore MessagePack ----
def encode_committables(committables: Mapping[Uid, Sequence[bytes]]) -> bytes:
    return msgspec.msgpack.encode({uid: list(values) for uid, values in committables.items()})


def decode_committables(
    path: str, content: memoryview, expected: CommittablesFile, advice: str = RESTORE_ANOTHER
) -> dict[Uid, tuple[bytes, ...]]:
    if len(content) != expected.length:
        raise CorruptCheckpoint(path, f"the file has {len(content)} bytes, but {expected.length} were written", advice)
    crc = crc32(content)
    if crc != expected.crc32:
        raise CorruptCheckpoint(path, f"its content has checksum {crc}, but {expected.crc32} was written", advice)
    try:
        return msgspec.msgpack.decode(content, type=dict[Uid, tuple[bytes, ...]])
    except msgspec.DecodeError as error:
        raise CorruptCheckpoint(path, f"not readable as committables: {error}", advice) from error
