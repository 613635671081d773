"""Parts of a snapshot as files: one data file per subtask and write, its parts one after another, a checksum on
each."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from penstock.core.handles import PartHandle
from penstock.core.ids import Uid
from penstock.state.parts import Buffer, CapturedPart, RestoredPart
from penstock.store.ahead import ahead
from penstock.store.errors import CorruptCheckpoint
from penstock.store.files import Files
from penstock.store.layout import part_path

__all__ = ["CorruptCheckpoint", "reader", "restored", "write_parts"]


def write_parts(
    files: Files, path: str, parts: Mapping[Uid, Sequence[CapturedPart]], inline: int = 0
) -> list[PartHandle]:
    """Encodes the parts and writes them to one file (see `layout.data_path`); no file if there are no parts, or if all
    of them together have no more than `inline` bytes: then the handles hold them.

    Parts are encoded one by one while the file is written, so that only one of them is in memory in its encoded form.
    """
    handles: list[PartHandle] = []
    if not any(parts.values()):
        return handles
    content = _encoded(parts, path.rpartition("/")[2], handles)
    first: list[Buffer] = []
    size = 0
    for chunk in content:
        first.append(chunk)
        size += memoryview(chunk).nbytes
        if size > inline:
            files.write(path, chain(first, content))
            return handles
    whole = b"".join(first)
    return [_inlined(handle, whole) for handle in handles]


def _inlined(handle: PartHandle, whole: bytes) -> PartHandle:
    return replace(handle, path="", offset=0, inline=whole[handle.offset : _end(handle)])


def _encoded(parts: Mapping[Uid, Sequence[CapturedPart]], name: str, handles: list[PartHandle]) -> Iterator[Buffer]:
    """Yields the file's content and adds a handle for each part that has been yielded whole."""
    offset = 0
    for uid, captured in parts.items():
        for part in captured:
            crc, length = 0, 0
            for chunk in ahead(part.encode()):
                view = memoryview(chunk).cast("B")
                crc = zlib.crc32(view, crc)
                length += view.nbytes
                yield view
            where = (name, offset, length, crc)
            handles.append(
                PartHandle(uid, part.name, part.kind, *where, part.key_groups, part.channel, piece=part.piece)
            )
            offset += length


def reader(files: Files, directory: str, handle: PartHandle) -> Callable[[], memoryview]:
    """Reads one part when called, and verifies it. `directory` is the checkpoint's, relative to the root of `files`."""
    path = part_path(directory, handle) if handle.inline is None else f"the metadata of {directory}"

    def read() -> memoryview:
        what = f"part {handle.name!r} of operator {handle.uid!r} (bytes {handle.offset} to {_end(handle)})"
        try:
            content = _bytes_of(files, path, handle)
        except FileNotFoundError as error:
            raise CorruptCheckpoint(path, f"the file is missing; it holds {what}") from error
        if len(content) != handle.length:
            raise CorruptCheckpoint(path, f"the file is too short: {what} has only {len(content)} bytes left")
        crc = zlib.crc32(content)
        if crc != handle.crc32:
            raise CorruptCheckpoint(path, f"{what} has checksum {crc:08x}, but {handle.crc32:08x} was written")
        return content

    return read


def _bytes_of(files: Files, path: str, handle: PartHandle) -> memoryview:
    return files.read(path, handle.offset, handle.length) if handle.inline is None else memoryview(handle.inline)


def restored(files: Files, directory: str, writer: int, handle: PartHandle) -> tuple[Uid, RestoredPart]:
    """A part as it is given back to its operator; it is read when the operator asks for it."""
    read = reader(files, directory, handle)
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
    )
    return handle.uid, part


def _end(handle: PartHandle) -> int:
    return handle.offset + handle.length
