"""Files in a local directory (or one mounted from elsewhere), durable before they are visible.

A file is written under a temporary name beside its goal, flushed to the disk and renamed; the directory is flushed too,
so that after a power cut the name is there as well. What nobody reads before he is told to is written under its own
name: with nothing left to rename, file and directory mostly take a file system one transaction. `create` links the
finished temporary file to its goal: linking fails if the goal exists, so of several contenders one wins, and nobody
ever sees a file that is there but still empty. Files go past the system's cache where that can be done (`direct`), but
for the smallest ones.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import BinaryIO, NoReturn, TypeVar

import pyarrow as pa

from penstock.state.parts import Buffer
from penstock.store import direct
from penstock.store.files import FileInfo

T = TypeVar("T")

STALE_AFTER = 3600.0
"""Seconds after which a temporary file has no writer any more: every write touches it, and no single write takes so
long."""
_BUFFER = 64 << 10
"""Larger chunks are not copied into it but written at once."""
_BEGIN_EVERY = 16 << 20
_ALIGNED = 64
"""Tables that begin at such an address need no copy."""
_TEMPORARY_PREFIX, _TEMPORARY_SUFFIX = ".penstock-", ".tmp"

_ADVICE = {
    errno.ENOSPC: "The disk is full: free space there, or choose another directory",
    errno.EDQUOT: "The disk quota is used up: free space there, or choose another directory",
    errno.EFBIG: "The file is larger than the file system or the process limits allow (ulimit -f)",
    errno.EACCES: "The directory must be writable for the user that runs the driver and the workers",
    errno.EPERM: "The directory must be writable, and its file system must support hard links",
    errno.EROFS: "The file system is read-only: choose another directory, or mount it writable",
    errno.ENOTDIR: "A part of the path is a file, not a directory: choose another directory",
    errno.ENAMETOOLONG: "The name is too long for the file system: use shorter uids or a shorter directory",
    errno.EIO: "The disk reported an error: look at the system's log",
}


class LocalFiles:
    def __init__(self, root: str, now: Callable[[], float] = time.time) -> None:
        self._root = os.path.abspath(root)
        self._now = now
        self._direct = direct.possible()
        """False once the file system has refused it."""

    def __repr__(self) -> str:
        return f"LocalFiles({self._root!r})"

    # ---- writing ----
    def open_write(self, path: str) -> _Writer:
        goal = self._absolute(path)
        with _explained("open", goal):
            return _Writer(goal, *_opened(goal))

    def write(self, path: str, chunks: Iterable[Buffer]) -> int:
        goal = self._absolute(path)
        return self._write(_temporary_path(goal), goal, chunks)

    def write_in_place(self, path: str, chunks: Iterable[Buffer]) -> int:
        goal = self._absolute(path)
        return self._write(goal, goal, chunks)

    def _write(self, name: str, goal: str, chunks: Iterable[Buffer]) -> int:
        """Under this name, until it is whole."""
        with _explained("write", goal), direct.stage() as stage:
            source = iter(chunks)
            left = stage.fill(source)
            if self._direct and stage.size >= direct.LEAST:
                size = self._write_direct(name, goal, stage, left, source)
                if size is not None:
                    return size
            return self._write_cached(name, goal, chain([stage.content], () if left is None else [left], source))

    def _write_direct(
        self, name: str, goal: str, stage: direct.Stage, left: memoryview | None, source: Iterator[Buffer]
    ) -> int | None:
        """None: the file system refuses; nothing was taken from the source."""
        with _gone_if_it_fails(name):
            file, homes = _in_its_directory(name, direct.opened)
            if file is None:
                self._direct = False
                _remove(name)
                return None
            try:
                size, self._direct = stage.write(file, left, source)
            finally:
                os.close(file)
            _publish(name, goal, homes)
        return size

    def _write_cached(self, name: str, goal: str, chunks: Iterable[Buffer]) -> int:
        with _new_file(name) as (file, homes):
            _fill(file, chunks)
            size = _flush(file)
            _publish(name, goal, homes)
        return size

    def create(self, path: str, content: bytes) -> None:
        goal = self._absolute(path)
        temporary = _temporary_path(goal)
        with _explained("create", goal), _new_file(temporary) as (file, homes):
            file.write(content)
            _flush(file)
            os.link(temporary, goal)
            _flush_directories(os.path.dirname(goal), homes)
            _remove(temporary)

    def move(self, source: str, target: str) -> None:
        start, goal = self._absolute(source), self._absolute(target)
        with _explained("move to", goal):
            if not os.path.exists(start):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), start)
            homes = _make_directory(os.path.dirname(goal))
            os.replace(start, goal)
            _flush_directories(os.path.dirname(goal), homes)
            if os.path.dirname(start) != os.path.dirname(goal):
                _flush_directory(os.path.dirname(start))

    def delete(self, path: str) -> None:
        """Directories that become empty go too. Not flushed: what a power cut brings back is deleted again next
        time."""
        goal = self._absolute(path)
        with _explained("delete", goal):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(goal)
            self._prune(os.path.dirname(goal))

    def _prune(self, directory: str) -> None:
        while directory != self._root:
            try:
                os.rmdir(directory)
            except OSError:  # not empty, or somebody else was faster: both are fine
                return
            directory = os.path.dirname(directory)

    # ---- reading ----
    def read(self, path: str, offset: int = 0, length: int | None = None) -> memoryview:
        goal = self._absolute(path)
        with _explained("read", goal), open(goal, "rb", buffering=0) as file:
            left = max(0, os.fstat(file.fileno()).st_size - offset)
            wanted = left if length is None else min(left, length)
            if self._direct and wanted > direct.STAGE and offset % _ALIGNED == 0:
                found = direct.read(goal, offset, wanted)
                if found is not None:
                    return found
            # Arrow's allocator aligns, so that tables read from here need no copy, and does not fill with zeros first.
            content = memoryview(pa.allocate_buffer(wanted))
            file.seek(offset)
            done = 0
            while done < wanted:
                count = file.readinto(content[done:])
                if not count:
                    break
                done += count
            return content[:done]

    def list(self, directory: str) -> Sequence[FileInfo]:
        top = self._absolute(directory) if directory else self._root
        before = len(os.path.join(self._root, ""))
        with _explained("list", top):
            found = [
                FileInfo(entry.path[before:].replace(os.sep, "/"), stat.st_size, stat.st_mtime)
                for entry, stat in _walk(top)
                if not _is_temporary(entry.name)
            ]
        return sorted(found, key=lambda file: file.path)

    def names(self, directory: str) -> Sequence[str]:
        top = self._absolute(directory)
        with _explained("list", top):
            try:
                found = os.listdir(top)
            except (FileNotFoundError, NotADirectoryError):
                return []
        return [f"{directory}/{name}" for name in found if not name.startswith(_TEMPORARY_PREFIX)]

    def exists(self, path: str) -> bool:
        goal = self._absolute(path)
        with _explained("look for", goal):
            try:
                os.stat(goal)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def remove_stale(self, directory: str) -> int:
        top = self._absolute(directory) if directory else self._root
        removed = 0
        with _explained("clean", top):
            for entry, stat in _walk(top):
                if _is_temporary(entry.name) and stat.st_mtime < self._now() - STALE_AFTER:
                    os.unlink(entry.path)
                    removed += 1
        return removed

    def _absolute(self, path: str) -> str:
        if not path or path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"{path!r} is no path below {self._root}")
        return os.path.join(self._root, path)


class _Writer:
    def __init__(self, path: str, file: BinaryIO, homes: Sequence[str]) -> None:
        self._path = path
        self._file = file
        self._homes = homes

    def write(self, chunk: Buffer) -> None:
        with _explained("write", self._path):
            self._file.write(chunk)

    def close(self) -> int:
        with _explained("write", self._path):
            size = _flush(self._file)
            self._file.close()
            _flush_directories(os.path.dirname(self._path), self._homes)
        return size

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


# ---- the file system's ways ----
@contextlib.contextmanager
def _new_file(path: str) -> Iterator[tuple[BinaryIO, Sequence[str]]]:
    """An empty file, gone if anything goes wrong; and the directories that are to be flushed as well."""
    with _gone_if_it_fails(path):
        file, homes = _opened(path)
        try:
            yield file, homes
        finally:
            # Closing flushes what a failed write left in the buffer, and fails again: the first error is the one to
            # report.
            with contextlib.suppress(OSError):
                file.close()


def _temporary_path(goal: str) -> str:
    return os.path.join(os.path.dirname(goal), f"{_TEMPORARY_PREFIX}{uuid.uuid4().hex}{_TEMPORARY_SUFFIX}")


@contextlib.contextmanager
def _gone_if_it_fails(path: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        _remove(path)
        raise


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _publish(name: str, goal: str, homes: Sequence[str]) -> None:
    if name != goal:
        os.replace(name, goal)
    _flush_directories(os.path.dirname(goal), homes)


def _is_temporary(name: str) -> bool:
    return name.startswith(_TEMPORARY_PREFIX) and name.endswith(_TEMPORARY_SUFFIX)


def _opened(path: str) -> tuple[BinaryIO, Sequence[str]]:
    return _in_its_directory(path, lambda path: open(path, "wb", buffering=_BUFFER))


def _in_its_directory(path: str, make: Callable[[str], T]) -> tuple[T, Sequence[str]]:
    """Makes a file; its directory, too, if there is none, and again if a cleaner removed that as empty in between.
    Returns also the directories in which directories were made: to be flushed before anybody relies on the file. Not
    earlier, for together with the file that costs less."""
    homes: list[str] = []
    for _ in range(10):
        try:
            return make(path), homes
        except FileNotFoundError:
            homes += _make_directory(os.path.dirname(path))
    raise FileNotFoundError(errno.ENOENT, "its directory disappears again and again", path)


def _make_directory(directory: str) -> list[str]:
    """As `os.makedirs`. Returns the directories in which it made others, the innermost first."""
    if os.path.isdir(directory):
        return []
    parent = os.path.dirname(directory)
    homes = _make_directory(parent)
    try:
        os.mkdir(directory)
    except FileNotFoundError:
        return _make_directory(directory) + homes
    except FileExistsError:
        if not os.path.isdir(directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory) from None
        return homes
    return [parent, *homes]


def _fill(file: BinaryIO, chunks: Iterable[Buffer]) -> None:
    """Lets the disk begin with what is there while the rest is still being made, so that little is left to flush."""
    written = begun = 0
    for chunk in chunks:
        written += file.write(chunk)
        if written - begun >= _BEGIN_EVERY:
            _begin_writing(file, begun, written - begun)
            begun = written


def _begin_writing(file: BinaryIO, start: int, length: int) -> None:
    """What the advice is for is to free the memory of these pages. They are dirty, so Linux starts writing them back
    instead, does not wait for it, and keeps them."""
    if hasattr(os, "posix_fadvise"):  # not on macOS
        with contextlib.suppress(OSError):  # it is only advice
            os.posix_fadvise(file.fileno(), start, length, os.POSIX_FADV_DONTNEED)


def _flush(file: BinaryIO) -> int:
    file.flush()
    os.fsync(file.fileno())
    return file.tell()


def _flush_directories(own: str, homes: Sequence[str]) -> None:
    """A file's own directory, and those in which directories were made for it."""
    for directory in (own, *homes):
        _flush_directory(directory)


def _flush_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _walk(top: str) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """Every file below; what disappears meanwhile is skipped."""
    try:
        entries = list(os.scandir(top))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)
        else:
            with contextlib.suppress(FileNotFoundError):
                yield entry, entry.stat()


@contextlib.contextmanager
def _explained(action: str, path: str) -> Iterator[None]:
    """Lets an `OSError` say which file it is about and what to do."""
    try:
        yield
    except OSError as error:
        _explain(error, action, path)


def _explain(error: OSError, action: str, path: str) -> NoReturn:
    if error.errno is None:
        raise error
    advice = _ADVICE.get(error.errno)
    message = f"cannot {action} {path}: {os.strerror(error.errno)}" + (f". {advice}" if advice else "")
    raise OSError(error.errno, message) from error
