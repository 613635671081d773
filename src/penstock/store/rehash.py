"""Raises the number of key groups of a savepoint, offline: a new savepoint with the same state, more finely divided.

The number of key groups is the highest parallelism that keyed state can ever have. A job that has outgrown it is
stopped with a savepoint, the savepoint is rehashed, and the job begins from the new one with the new number.

Keyed parts are written anew, layer by layer, in the order of the new groups; everything else is copied as it is. The
subtasks that wrote the parts had shared the keys by the former groups: the new savepoint remembers that
(`GraphRecord.dealt_groups`), because who gets records in flight depends on who had got them. Memory is bounded by one
record batch, whatever the size of the state.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO, cast

from penstock.core.handles import KeyGroupRange, PartHandle, PartKind
from penstock.core.ids import Uid
from penstock.core.keygroups import check_total
from penstock.core.record import GraphRecord, SubtaskRecord
from penstock.state.parts import Buffer
from penstock.state.regrouping import NotRegroupable, regrouped
from penstock.state.stored import is_native
from penstock.store.errors import CorruptCheckpoint
from penstock.store.files import Files, FileWriter
from penstock.store.layout import part_path
from penstock.store.savepoints import Snapshot, check_free, data_path, seal_savepoint

_CHUNK = 8 << 20


class CannotRehash(Exception):
    """The number of key groups cannot be changed so. Nothing was written that counts."""


@dataclass(frozen=True)
class Rehashed:
    checkpoint: int
    former_key_groups: int
    key_groups: int
    keyed_parts: int
    copied_parts: int
    bytes: int
    """Of the new savepoint's parts."""


def rehash(
    snapshot: Snapshot, target: Files, key_groups: int, progress: Callable[[int, int], None] = lambda done, all: None
) -> Rehashed:
    """Writes a new savepoint. `progress` hears how many bytes of how many were read. Raises `CannotRehash`,
    `CorruptCheckpoint`, and `FileExistsError` if there is a savepoint already."""
    record, former = snapshot.record, snapshot.record.graph.key_groups
    _check(former, key_groups)
    check_free(target)
    work = _Rehashing(snapshot, target, key_groups, progress)
    subtasks = tuple(work.subtask(number, entry) for number, entry in enumerate(record.subtasks))
    graph = replace(record.graph, key_groups=key_groups, dealt_groups=record.graph.dealt_groups or former)
    seal_savepoint(target, replace(record, graph=graph, subtasks=subtasks))
    handles = [handle for entry in subtasks for handle in entry.handles]
    keyed = sum(handle.kind is PartKind.KEYED for handle in handles)
    size = sum(handle.length for handle in handles)
    return Rehashed(record.checkpoint, former, key_groups, keyed, len(handles) - keyed, size)


def _check(former: int, key_groups: int) -> None:
    try:
        check_total(key_groups)
    except ValueError as error:
        raise CannotRehash(str(error)) from None
    if key_groups <= former:
        raise CannotRehash(
            f"the savepoint has {former} key groups; they can only be raised, and {key_groups} are no more. Fewer "
            "would gain nothing: any parallelism up to their number can be restored from it as it is"
        )


class _Rehashing:
    def __init__(
        self, snapshot: Snapshot, target: Files, key_groups: int, progress: Callable[[int, int], None]
    ) -> None:
        self._source, self._target, self._total, self._progress = snapshot, target, key_groups, progress
        self._former = snapshot.record.graph.key_groups
        self._keys = _key_widths(snapshot.record.graph)
        self._all = sum(handle.length for entry in snapshot.record.subtasks for handle in entry.handles)
        self._done = 0

    def subtask(self, number: int, entry: SubtaskRecord) -> SubtaskRecord:
        """Its parts, in one data file of their own."""
        path = data_path(number)
        inline = [handle.inline is not None for handle in entry.handles]
        writer = None if all(inline) else self._target.open_write(path)
        handles = []
        try:
            offset = 0
            for handle in entry.handles:
                moved = self._part(handle, path, offset, writer if handle.inline is None else None)
                handles.append(moved)
                offset += moved.length if handle.inline is None else 0
                self._done += handle.length
                self._progress(self._done, self._all)
        except BaseException:
            if writer is not None:
                writer.abandon()
            raise
        if writer is not None:
            writer.close()
        return replace(entry, handles=tuple(handles))

    def _part(self, handle: PartHandle, path: str, offset: int, writer: FileWriter | None) -> PartHandle:
        groups = handle.key_groups
        if groups is not None:
            factor = self._total // self._former
            groups = KeyGroupRange(groups.start * factor, groups.end * factor)
        crc, length = 0, 0
        kept: list[bytes] = []
        for chunk in self._content(handle):
            crc = zlib.crc32(chunk, crc)
            length += memoryview(chunk).nbytes
            if writer is not None:
                writer.write(chunk)
            else:
                kept.append(bytes(chunk))
        moved = replace(handle, length=length, crc32=crc, key_groups=groups, origin=None)
        if writer is None:
            return replace(moved, inline=b"".join(kept))
        return replace(moved, path=path, offset=offset)

    def _content(self, handle: PartHandle) -> Iterable[Buffer]:
        part = _Part(self._source, handle)
        part.verify()
        if handle.kind is not PartKind.KEYED:
            return part.chunks()
        if is_native(handle.piece):
            raise CannotRehash(
                f"the state {handle.name!r} of operator {handle.uid!r} in {self._source.address} is stored as files of "
                "RocksDB: take a savepoint of the running job, which holds it in a form that can be divided anew"
            )
        return self._regrouped(handle, part)

    def _regrouped(self, handle: PartHandle, part: _Part) -> Iterator[Buffer]:
        try:
            file = cast(BinaryIO, io.BufferedReader(part, _CHUNK))
            yield from regrouped(file, self._keys.get(handle.uid, 0), self._former, self._total)
        except NotRegroupable as error:
            raise CannotRehash(
                f"the state {handle.name!r} of operator {handle.uid!r} in {self._source.address} cannot be divided "
                f"into other key groups: {error}"
            ) from None


class _Part(io.RawIOBase):
    """A part as a file that is read piece by piece."""

    def __init__(self, snapshot: Snapshot, handle: PartHandle) -> None:
        self._files, self._handle = snapshot.files, handle
        self._path = part_path(snapshot.directory, handle)
        self._where = f"{snapshot.address}: {self._path or 'the metadata'}"
        self._at = 0

    def verify(self) -> None:
        """Raises `CorruptCheckpoint` unless all of it is there as it was written."""
        crc, length = 0, 0
        for chunk in self.chunks():
            crc = zlib.crc32(chunk, crc)
            length += len(chunk)
        if (crc, length) != (self._handle.crc32, self._handle.length):
            what = f"part {self._handle.name!r} of operator {self._handle.uid!r}"
            raise CorruptCheckpoint(self._where, f"{what} is not what was written", "Choose another savepoint")

    def chunks(self) -> Iterator[memoryview]:
        offset = 0
        while chunk := self._piece(offset, _CHUNK):
            yield chunk
            offset += len(chunk)

    def _piece(self, start: int, length: int) -> memoryview:
        length = max(0, min(length, self._handle.length - start))
        if not length:
            return memoryview(b"")
        if self._handle.inline is not None:
            return memoryview(self._handle.inline)[start : start + length]
        return self._files.read(self._path, self._handle.offset + start, length).cast("B")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._handle.length}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, target: Buffer) -> int:  # type: ignore[override]
        piece = self._piece(self._at, memoryview(target).nbytes)
        memoryview(target)[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


def _key_widths(graph: GraphRecord) -> dict[Uid, int]:
    """Of how many columns the key of each operator consists."""
    return {operator.uid: len(operator.key) for chain in graph.chains for operator in chain.operators}
