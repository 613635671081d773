"""Parts of a snapshot as files: parts one after another, a checksum on each. A file holds what one subtask writes at
once, or several of a worker if it is little."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

from zlib_ng.zlib_ng import crc32

from penstock.core.handles import PartHandle
from penstock.core.ids import Uid
from penstock.state.parts import Buffer, CapturedPart, RestoredPart
from penstock.store.errors import RESTORE_ANOTHER, CorruptCheckpoint
from penstock.store.files import DataFiles, Files
from penstock.store.layout import part_path

__all__ = ["CorruptCheckpoint", "EncodedParts", "LargeParts", "encode_parts", "reader", "restored", "write_parts"]


@dataclass(frozen=True, slots=True)
class EncodedParts:
    """Parts that are encoded but not written: a few bytes."""

    chunks: Sequence[Buffer]
    handles: Sequence[PartHandle]
    """As if the chunks were a file."""
    size: int

    def inlined(self) -> list[PartHandle]:
        """The handles with the bytes in them."""
        whole = b"".join(self.chunks)
        return [replace(handle, offset=0, inline=whole[handle.offset : _end(handle)]) for handle in self.handles]

    def placed(self, path: str, offset: int) -> list[PartHandle]:
        """The handles for the case that the chunks begin at this place of a file."""
        return _placed(self.handles, path, offset)


class LargeParts:
    """Parts whose encoding has begun. The rest is encoded while the file is written, one part after another, so that
    only a little of them is in memory in its encoded form."""

    def __init__(self, chunks: Iterator[Buffer], handles: Sequence[PartHandle]) -> None:
        self._chunks, self._handles = chunks, handles

    def write(self, files: DataFiles, path: str) -> list[PartHandle]:
        files.write_in_place(path, self._chunks)
        return _placed(self._handles, path, 0)


def encode_parts(parts: Mapping[Uid, Sequence[CapturedPart]], small: int) -> EncodedParts | LargeParts:
    """Encodes the parts as far as they have no more than `small` bytes together; where they go is left to the
    caller."""
    handles: list[PartHandle] = []
    content = _encoded(parts, handles)
    first: list[Buffer] = []
    size = 0
    for chunk in content:
        first.append(chunk)
        size += memoryview(chunk).nbytes
        if size > small:
            return LargeParts(chain(first, content), handles)
    return EncodedParts(first, handles, size)


def write_parts(
    files: DataFiles, path: str, parts: Mapping[Uid, Sequence[CapturedPart]], inline: int = 0
) -> list[PartHandle]:
    """Encodes the parts and writes them to one file (see `layout.data_path`); no file if there are no parts, or if all
    of them together have no more than `inline` bytes: then the handles hold them."""
    encoded = encode_parts(parts, inline)
    return encoded.inlined() if isinstance(encoded, EncodedParts) else encoded.write(files, path)


def _placed(handles: Sequence[PartHandle], path: str, offset: int) -> list[PartHandle]:
    name = path.rpartition("/")[2]
    return [replace(handle, path=name, offset=offset + handle.offset) for handle in handles]


def _encoded(parts: Mapping[Uid, Sequence[CapturedPart]], handles: list[PartHandle]) -> Iterator[Buffer]:
    """Yields the file's content and adds a handle for each part that has been yielded whole."""
    offset = 0
    for uid, captured in parts.items():
        for part in captured:
            summed = _Summed()
            yield from summed.over(part.encode())
            where = ("", offset, summed.length, summed.crc)
            handles.append(
                PartHandle(uid, part.name, part.kind, *where, part.key_groups, part.channel, piece=part.piece)
            )
            offset += summed.length


class _Summed:
    """The length and the checksum of what has passed. Chunks pass on the thread that makes them, while they are near
    to it."""

    def __init__(self) -> None:
        self.crc = self.length = 0

    def over(self, chunks: Iterable[Buffer]) -> Iterator[Buffer]:
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            self.crc = crc32(view, self.crc)
            self.length += view.nbytes
            yield view


def verified(
    path: str, chunks: Iterable[Buffer], handles: Sequence[PartHandle], advice: str = RESTORE_ANOTHER
) -> Iterator[Buffer]:
    """The content of a file as it comes. Raises `CorruptCheckpoint` at its end if a part in it is not what was
    written."""
    sums = [0] * len(handles)
    start = 0
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        end = start + view.nbytes
        for place, handle in enumerate(handles):
            first, last = max(handle.offset, start), min(_end(handle), end)
            if first < last:
                sums[place] = crc32(view[first - start : last - start], sums[place])
        start = end
        yield chunk
    for handle, crc in zip(handles, sums, strict=True):
        if crc != handle.crc32:
            raise CorruptCheckpoint(path, _changed(handle, crc), advice)


def _described(handle: PartHandle) -> str:
    return f"part {handle.name!r} of operator {handle.uid!r} (bytes {handle.offset} to {_end(handle)})"


def _changed(handle: PartHandle, crc: int) -> str:
    return f"{_described(handle)} has checksum {crc:08x}, but {handle.crc32:08x} was written"


class Copies(Protocol):
    """Where some data files can be read more cheaply than from the store."""

    def read(self, path: str, handle: PartHandle) -> memoryview | None:
        """The part, verified; None if it must be read from the store."""
        ...


def reader(files: Files, directory: str, handle: PartHandle, copies: Copies | None = None) -> Callable[[], memoryview]:
    """Reads one part when called, and verifies it. `directory` is the checkpoint's, relative to the root of `files`."""
    path = _place(directory, handle)

    def read() -> memoryview:
        if copies is not None and handle.inline is None and (copy := copies.read(path, handle)) is not None:
            return copy
        try:
            content = _bytes_of(files, path, handle)
        except FileNotFoundError as error:
            raise CorruptCheckpoint(path, f"the file is missing; it holds {_described(handle)}") from error
        if len(content) != handle.length:
            found = f"the file is too short: {_described(handle)} has only {len(content)} bytes left"
            raise CorruptCheckpoint(path, found)
        crc = crc32(content)
        if crc != handle.crc32:
            raise CorruptCheckpoint(path, _changed(handle, crc))
        return content

    return read


def _place(directory: str, handle: PartHandle) -> str:
    return part_path(directory, handle) if handle.inline is None else f"the metadata of {directory}"


def _bytes_of(files: Files, path: str, handle: PartHandle) -> memoryview:
    return files.read(path, handle.offset, handle.length) if handle.inline is None else memoryview(handle.inline)


def restored(
    files: Files, directory: str, writer: int, handle: PartHandle, copies: Copies | None = None
) -> tuple[Uid, RestoredPart]:
    """A part as it is given back to its operator; it is read when the operator asks for it."""
    read = reader(files, directory, handle, copies)
    part = RestoredPart(
        handle.name,
        handle.kind,
        writer,
        read,
        handle.key_groups,
        handle.channel,
        handle.layer,
        handle,
        handle.piece,
        _place(directory, handle),
    )
    return handle.uid, part


def _end(handle: PartHandle) -> int:
    return handle.offset + handle.length
