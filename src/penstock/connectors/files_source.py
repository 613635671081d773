"""Files as a source: Parquet, JSON lines or CSV, bounded or watching for new ones.

Theory of operation. A file belongs to the subtask that a stable hash of its path names, at any parallelism; a subtask
reads its files one after the other. Its positions are one entry per file: the file's size and time, how far it was
read, whether it is done. They are a
`UNION` part, so that whoever owns a file after a restore finds its entry. A file is taken to be complete when it has
its name and never to change afterwards: one that was touched and then changed or vanished cannot be replayed, and that
is an error, not a guess.

Entries of files that are done and were removed are forgotten, so that the state of an endless job grows only with what
its directory holds.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs

from penstock.connectors.listing import FileVersion, absolute, list_files, look_at, open_file_system
from penstock.connectors.readers import BadFile, FileReader, Position
from penstock.connectors.reading_options import ReadingOptions, format_of, infer_schema
from penstock.core.barrier import Barrier
from penstock.operators.base import Clock, OperatorContext, Polled, SourceOperator
from penstock.state.parts import Buffer, CapturedPart, OperatorSnapshot, PartKind, RestoredPart

if TYPE_CHECKING:
    from penstock.api.durations import Duration

_PART = "files"
_LISTING_PAUSE = 0.01
"""Seconds until a poll looks again whether a listing is there."""


class Files:
    """`Files("in/*.jsonl")`, `Files("lake/orders", format="parquet", watch="5s")`

    `path`: a file, a directory (everything visible below it), a glob, or a list of these.
    `format`: "parquet", "jsonl" or "csv"; told by the first file's name if it is left out.
    `schema`: the columns to read and their types; told by the first file if it is left out.
    `watch`: how often to look for new files; None reads the files that are there now and ends.
    `delimiter`, `header`: of CSV.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        format: str | None = None,
        *,
        schema: pa.Schema | None = None,
        watch: Duration | None = None,
        delimiter: str = ",",
        header: bool = True,
    ):
        paths = [path] if isinstance(path, str | os.PathLike) else list(path)
        if not paths:
            raise ValueError("sources.Files: the list of paths is empty")
        self.paths = tuple(absolute(each) for each in paths)
        self.watch = _interval(watch)
        system, inside = open_file_system(self.paths)
        found = list_files(system, inside)
        if not found and (schema is None or self.bounded):
            hint = "" if self.bounded else "; give schema=... to begin with an empty directory"
            raise ValueError(f"sources.Files: there is no file at {', '.join(self.paths)}{hint}")
        self.files = tuple(version.path for version in found) if self.bounded else ()
        self.options = ReadingOptions(format_of(format, found, self.paths), delimiter, header)
        self._schema = infer_schema(system, found[0], self.options) if schema is None else schema
        self.options.check(self._schema)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def bounded(self) -> bool:
        return self.watch is None

    def operator(self) -> SourceOperator:
        return _FilesOperator(self)


def _interval(watch: Duration | None) -> float | None:
    if watch is None:
        return None
    from penstock.api.durations import seconds

    return seconds(watch, "watch", positive=True)


def owner_of(path: str, parallelism: int) -> int:
    return crc32(path.encode()) % parallelism


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """How far one file was read."""

    modified: int
    size: int
    position: Position
    done: bool = False


class _Entries(msgspec.Struct, frozen=True, array_like=True):
    parallelism: int
    files: dict[str, _Entry]


class _FilesOperator(SourceOperator):
    def __init__(self, source: Files):
        self._source = source
        self._reader: FileReader | None = None
        self._watcher: _Watcher | None = None

    def open(self, context: OperatorContext) -> None:
        self._subtask, self._parallelism = context.subtask, context.parallelism
        self._system, patterns = open_file_system(self._source.paths)
        written = _Written(context.restored)
        self._entries = {path: entry for path, entry in written.files.items() if self._owns(path)}
        left = sorted(path for path, entry in self._entries.items() if not entry.done)
        # What was begun is read to its end first; within both, the order is that of the paths.
        self._queue = deque(sorted(left, key=lambda path: self._entries[path].position == Position()))
        if self._source.watch is None:
            own = [path for path in self._source.files if self._owns(path)]
            self._take_as_read([path for path in own if written.by_a_finished_subtask(path)])
            self._take_in(self._seen(own))
        else:
            self._watcher = _Watcher(self._system, patterns, self._source.watch, context.clock)

    def poll(self, max_rows: int) -> Polled:
        if self._reader is None and not self._queue:
            return Polled(done=True) if self._watcher is None else self._look_for_files(self._watcher)
        if self._reader is None:
            self._begin(self._queue.popleft())
        assert self._reader is not None
        batch = self._reader.read(max_rows)
        entry = self._entries[self._path]
        self._entries[self._path] = msgspec.structs.replace(entry, position=self._reader.position)
        if self._reader.exhausted:
            self._end()
        return Polled(batch, done=self._watcher is None and self._reader is None and not self._queue)

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        entries = _Entries(self._parallelism, dict(self._entries))

        def encode() -> Sequence[Buffer]:
            return (msgspec.msgpack.encode(entries),)

        return OperatorSnapshot((CapturedPart(_PART, PartKind.UNION, encode),))

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._watcher is not None:
            self._watcher.close()

    def _owns(self, path: str) -> bool:
        return owner_of(path, self._parallelism) == self._subtask

    def _look_for_files(self, watcher: _Watcher) -> Polled:
        listed = watcher.listed()
        if listed is not None:
            self._take_in([version for version in sorted(listed) if self._owns(version.path)])
            there = {version.path for version in listed}
            self._entries = {path: entry for path, entry in self._entries.items() if path in there or not entry.done}
        return Polled() if self._queue else Polled(idle=True, idle_for=watcher.pause())

    def _seen(self, paths: Sequence[str]) -> list[FileVersion]:
        """The files as they are now. One that is done may be gone; any other may not."""
        versions = [look_at(self._system, path) for path in paths]
        for path, version in zip(paths, versions, strict=True):
            if version is None and not (path in self._entries and self._entries[path].done):
                raise _vanished(path)
        return [version for version in versions if version is not None]

    def _take_as_read(self, paths: Sequence[str]) -> None:
        """At another parallelism: what a subtask that had ended left behind. From now on it is ours to remember."""
        for path in paths:
            version = look_at(self._system, path)
            modified, size = (0, 0) if version is None else (version.modified, version.size)
            self._entries[path] = _Entry(modified, size, Position(), done=True)

    def _take_in(self, versions: Sequence[FileVersion]) -> None:
        for version in versions:
            entry = self._entries.get(version.path)
            if entry is None:
                self._entries[version.path] = _Entry(version.modified, version.size, Position())
                self._queue.append(version.path)
            else:
                _check_unchanged(entry, version)

    def _begin(self, path: str) -> None:
        entry = self._entries[path]
        version = self._look_again(path)
        self._path = path
        self._reader = self._source.options.reader(self._system, version, self._source.schema, entry.position)

    def _end(self) -> None:
        assert self._reader is not None
        self._look_again(self._path)
        self._reader.close()
        self._reader = None
        self._entries[self._path] = msgspec.structs.replace(self._entries[self._path], done=True)

    def _look_again(self, path: str) -> FileVersion:
        version = look_at(self._system, path)
        if version is None:
            raise _vanished(path)
        _check_unchanged(self._entries[path], version)
        return version


class _Written:
    """What the restored parts say."""

    def __init__(self, parts: Sequence[RestoredPart]):
        self.files: dict[str, _Entry] = {}
        self._parallelism = 0
        self._writers: set[int] = set()
        for part in parts:
            if part.name == _PART:
                entries = msgspec.msgpack.decode(part.read(), type=_Entries)
                self.files.update(entries.files)
                self._parallelism = entries.parallelism
                self._writers.add(part.subtask)

    def by_a_finished_subtask(self, path: str) -> bool:
        """Whether the file's owner had read everything and ended: such a subtask writes no part any more."""
        return bool(self._writers) and owner_of(path, self._parallelism) not in self._writers


class _Watcher:
    """Lists the directory every so often, on a thread of its own: a listing may take longer than a step."""

    def __init__(self, system: pafs.FileSystem, patterns: Sequence[str], every: float, clock: Clock):
        self._system, self._patterns, self._every, self._clock = system, patterns, every, clock
        self._next = clock.now()
        self._listing: Future[list[FileVersion]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-list-files")

    def listed(self) -> list[FileVersion] | None:
        """What the last listing found, once; begins the next one when it is time."""
        if self._listing is None and self._clock.now() >= self._next:
            self._listing = self._thread.submit(list_files, self._system, self._patterns)
        if self._listing is None or not self._listing.done():
            return None
        listed = self._listing.result()
        self._listing = None
        self._next = self._clock.now() + self._every
        return listed

    def pause(self) -> float:
        return _LISTING_PAUSE if self._listing is not None else max(0.0, self._next - self._clock.now())

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _check_unchanged(entry: _Entry, version: FileVersion) -> None:
    if (entry.modified, entry.size) != (version.modified, version.size):
        raise BadFile(
            f"{version.path} was changed after the source had seen it (then {entry.size} bytes, now {version.size}), so"
            " its records cannot be repeated. Write new data to new files, under a hidden name first, and rename them"
            " when they are complete; to go on, put the old file back or start the job without its checkpoints"
        )


def _vanished(path: str) -> BadFile:
    return BadFile(
        f"{path} has vanished before it was read to its end, so its records cannot be repeated. Put it back, or start"
        " the job without its checkpoints; remove input files only after a checkpoint that covers them"
    )
