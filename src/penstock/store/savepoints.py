"""Savepoints: a checkpoint as a directory of its own, which belongs to the user and can be moved anywhere.

    savepoint.json      the metadata of the checkpoint; written last, it makes the savepoint complete
    data/<n>.data       the data files that it names
    committables        only if it was made offline from a checkpoint whose output may still have to be committed

A savepoint is a complete checkpoint of its job, copied out after its output was committed: it names no committables,
and refers to nothing outside. The other way round, a job that begins from a savepoint, or from a retained checkpoint of
any job, copies it in as the first complete checkpoint of its own (`CheckpointStore.claim`). From then on it depends on
its own directory alone: it does not matter what becomes of the savepoint, or of the other job's retention.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.core.handles import PartHandle
from penstock.core.ids import CheckpointId, Uid
from penstock.core.record import CheckpointRecord, SubtaskRecord
from penstock.state.parts import Buffer
from penstock.store import layout
from penstock.store.documents import (
    CommittablesFile,
    Metadata,
    decode_committables,
    encode_committables,
    seal,
    to_metadata,
    to_record,
    unseal,
)
from penstock.store.errors import CorruptCheckpoint
from penstock.store.files import Files
from penstock.store.opening import open_files

METADATA = "savepoint.json"
_COMMITTABLES = "committables"
_DATA = "data"
_CHUNK = 8 << 20
_RETAINED = re.compile(r"(?P<job>.*)/checkpoints/(?P<id>\d+)/?")
_ADVICE = "Nothing was restored. Copy the savepoint again, or choose another one"


@dataclass(frozen=True)
class Snapshot:
    """A savepoint or checkpoint to begin from, wherever it is."""

    files: Files
    directory: str
    """Of the checkpoint, below the root of the files."""
    record: CheckpointRecord
    address: str
    """For people."""
    is_savepoint: bool


class NoSnapshot(Exception):
    """There is neither a savepoint nor a checkpoint at the address."""


# ---- out ----
def write_savepoint(source: Files, directory: str, record: CheckpointRecord, target: Files) -> None:
    """Copies a complete checkpoint out. Raises `FileExistsError` if there is a savepoint already."""
    check_free(target)
    moved = copy_parts(source, directory, record, target, data_path)
    seal_savepoint(target, replace(moved, committables={}))


def data_path(number: int) -> str:
    """Of the n-th data file of a savepoint."""
    return f"{_DATA}/{number}.data"


def seal_savepoint(target: Files, record: CheckpointRecord) -> None:
    """Makes the savepoint complete; its data files are there already."""
    committables = None
    if any(record.committables.values()):
        content = encode_committables(record.committables)
        target.write(_COMMITTABLES, [content])
        committables = CommittablesFile(_COMMITTABLES, len(content), zlib.crc32(content))
    target.create(METADATA, seal(to_metadata(record, committables)))


def check_free(target: Files) -> None:
    """Raises `FileExistsError` if there is a savepoint already."""
    if target.exists(METADATA):
        raise FileExistsError(f"there is a savepoint already ({METADATA}): give every savepoint a directory of its own")


def copy_parts(
    source: Files, directory: str, record: CheckpointRecord, target: Files, name: Callable[[int], str]
) -> CheckpointRecord:
    """Copies every data file that the record names; the record with the names of the copies. `name` gives the path of
    the n-th copy; handles name it without its directory if that is a checkpoint's."""
    copies: dict[str, str] = {}

    def moved(handle: PartHandle) -> PartHandle:
        if handle.inline is not None:
            return replace(handle, origin=None)
        path = layout.part_path(directory, handle)
        if path not in copies:
            copies[path] = name(len(copies))
            _copy(source, path, target, copies[path])
        copy = copies[path]
        inside = copy.rpartition("/")[2] if layout.checkpoint_file(copy) else copy
        return replace(handle, path=inside, origin=None)

    def entry(subtask: SubtaskRecord) -> SubtaskRecord:
        return replace(subtask, handles=tuple(map(moved, subtask.handles)))

    return replace(record, subtasks=tuple(map(entry, record.subtasks)))


def _copy(source: Files, path: str, target: Files, copy: str) -> None:
    target.write(copy, _chunks(source, path))


def _chunks(source: Files, path: str) -> Iterator[Buffer]:
    offset = 0
    while chunk := source.read(path, offset, _CHUNK):
        yield chunk
        offset += len(chunk)
        if len(chunk) < _CHUNK:
            return


# ---- in ----
def find_snapshot(address: str) -> Snapshot:
    """What lies at an address: a savepoint; a job's checkpoint directory, whose newest complete checkpoint is meant; or
    one checkpoint in it (`.../checkpoints/12`). Raises `NoSnapshot`, and what loading a checkpoint raises."""
    files = open_files(address)
    if files.exists(METADATA):
        return read_savepoint(files, address)
    if files.exists(layout.IDENTITY):
        return retained(files, None, address)
    match = _RETAINED.fullmatch(address)
    if match and (job := open_files(match["job"])).exists(layout.IDENTITY):
        return retained(job, CheckpointId(int(match["id"])), address)
    raise NoSnapshot(
        f"{address} holds no savepoint (no {METADATA}) and is no checkpoint directory of a job (no {layout.IDENTITY}). "
        "Name the directory of a savepoint, of a job's checkpoints, or of one checkpoint in it (.../checkpoints/12)."
    )


def retained(files: Files, checkpoint: CheckpointId | None, address: str) -> Snapshot:
    """A complete checkpoint of a job, which goes on with its own retention meanwhile."""
    from penstock.store.checkpoints import CheckpointStore, job_of  # which knows savepoints

    record = CheckpointStore(files, job_of(files)).load(checkpoint)
    return Snapshot(files, layout.checkpoint_directory(record.checkpoint), record, address, is_savepoint=False)


def read_savepoint(files: Files, address: str) -> Snapshot:
    """Verifies the metadata and that all files are there in their full length."""
    metadata = unseal(METADATA, files.read(METADATA), Metadata)
    committables: Mapping[Uid, Sequence[bytes]] = {}
    if metadata.committables is not None:
        path = metadata.committables.path
        committables = decode_committables(f"{address}/{path}", files.read(path), metadata.committables)
    record = to_record(metadata, committables)
    sizes = {file.path: file.size for file in files.list(_DATA)}
    for handle in _handles(record):
        size = sizes.get(handle.path)
        if size is None:
            raise CorruptCheckpoint(f"{address}/{handle.path}", "the file is missing; the savepoint needs it", _ADVICE)
        if size < handle.offset + handle.length:
            found = f"the file has {size} bytes, at least {handle.offset + handle.length} were written"
            raise CorruptCheckpoint(f"{address}/{handle.path}", found, _ADVICE)
    return Snapshot(files, "", record, address, is_savepoint=True)


def remove_savepoint(snapshot: Snapshot) -> None:
    """Its metadata first: what is half removed is no savepoint any more."""
    snapshot.files.delete(METADATA)
    for path in {_COMMITTABLES, *(handle.path for handle in _handles(snapshot.record))}:
        snapshot.files.delete(path)


def _handles(record: CheckpointRecord) -> Sequence[PartHandle]:
    """Of parts that are in files."""
    return [handle for subtask in record.subtasks for handle in subtask.handles if handle.inline is None]
