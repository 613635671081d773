"""Copies of data files on the worker's own disk, so that what a worker has written need not be read from the store.

Theory of operation. While a data file is written to the store, the same chunks go to a file on the host. A restore
looks there first. A copy is no promise: it is not flushed, may be half written, damaged or gone. Whoever reads it
verifies the checksum of each part, and otherwise reads from the store. So nothing here may fail a job; what goes wrong
is logged.

    <temporary directory>/penstock-<user id>/            for the user alone
      <digest of the checkpoint directory>/              of a job
        lock                                             held, shared, by every worker of the job on this host
        g<generation>/<slot>/checkpoints/<id>/<name>     as the file is called in the store

The workers of a host share a job's directory: one that takes a dead one's slot finds what that had written. The holder
of a slot also cleans it: when a checkpoint is complete, copies that it does not name are deleted, except of files that
the running attempt has written and no checkpoint has named yet. Of what an older driver's workers wrote it does the
same, of newer ones' nothing; slots that the job does not have any more are removed. The last worker of a host removes
the directory of a job that is over. One that was left behind, its lock not held and untouched for an hour, is removed
when a worker of another job starts: a job whose driver died and comes back before finds its copies.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from typing import BinaryIO, Final, Literal

from zlib_ng.zlib_ng import crc32

from penstock.core.handles import PartHandle
from penstock.core.ids import Attempt, Generation
from penstock.state.parts import Buffer
from penstock.store.files import DataFiles
from penstock.store.layout import checkpoint_file
from penstock.store.local import LocalFiles

_LOG: Final = logging.getLogger(__name__)
_LOCK: Final = "lock"
ABANDONED_AFTER: Final = 3600.0
"""Seconds."""


class LocalCopies:
    """The copies of one job on this host. Raises `OSError` if there can be none."""

    def __init__(self, address: str, base: str | None = None) -> None:
        """`address`: of the checkpoint directory; `base`: where temporary files are."""
        root = _own_directory(base or tempfile.gettempdir())
        self._directory = os.path.join(root, hashlib.sha256(address.encode()).hexdigest()[:24])
        self._lock = _held(self._directory)
        _remove_abandoned(root)

    def of(self, generation: Generation, attempt: Attempt, slot: int, slots: int) -> SlotCopies:
        """For the worker in one of `slots` slots."""
        return SlotCopies(self._directory, generation, attempt, slot, slots)

    def close(self, job_is_over: bool = False) -> None:
        """The copies stay for whoever comes next, unless the job is over and no other worker of it is here."""
        with contextlib.suppress(OSError):
            if job_is_over:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(self._directory, ignore_errors=True)
        self._lock.close()


class SlotCopies:
    """What one attempt on one worker writes and reads. Called from any thread."""

    def __init__(self, directory: str, generation: Generation, attempt: Attempt, slot: int, slots: int) -> None:
        self._directory = directory
        self._files = LocalFiles(directory)
        self._generation, self._attempt, self._slot, self._slots = generation, attempt, slot, slots
        self._lock = threading.Lock()
        self.read_bytes = 0
        """Of parts that were read from copies."""
        self.missed_bytes = 0
        """Of parts that had to be read from the store."""
        self.damaged = 0
        """Copies that were there but did not hold what was written."""

    # ---- writing ----
    @contextlib.contextmanager
    def copied(self, path: str, chunks: Iterable[Buffer]) -> Iterator[Iterable[Buffer]]:
        """The same chunks; what is taken of them is copied on the way. If the block raises there will be no copy."""
        copy = _Copy(os.path.join(self._home, path))
        try:
            yield copy.passing(chunks)
        except BaseException:
            copy.give_up()
            raise
        copy.close()

    def delete(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self._files.delete(self._relative(self._generation, self._slot, path))

    # ---- reading ----
    def read(self, path: str, handle: PartHandle) -> memoryview | None:
        """The part of a data file, verified; None if there is no good copy of it."""
        content = self._read(path, handle)
        with self._lock:
            if content is None:
                self.missed_bytes += handle.length
            else:
                self.read_bytes += handle.length
        return content

    def _read(self, path: str, handle: PartHandle) -> memoryview | None:
        for place in self._places(path):
            try:
                content = self._files.read(place, handle.offset, handle.length)
            except FileNotFoundError:
                continue
            except OSError as error:
                _LOG.warning("a local copy cannot be read: %s", error)
                continue
            if len(content) == handle.length and crc32(content) == handle.crc32:
                return content
            _LOG.warning("the local copy %s is damaged; the part is read from the store", place)
            with self._lock:
                self.damaged += 1
        return None

    def _places(self, path: str) -> list[str]:
        """Where a copy may be: the own slot's first, then others of this host, after another parallelism."""
        owner = checkpoint_file(path)
        if owner is None:
            return []
        generation = owner[1]
        others = [slot for slot in self._slots_of(generation) if slot != self._slot]
        return [self._relative(generation, slot, path) for slot in [self._slot, *others]]

    # ---- cleaning ----
    def clean(self, needed: Collection[str], released: Collection[str]) -> None:
        """Keeps what is `needed` by the slot's subtasks (paths in the store), and what the running attempt wrote,
        unless it was `released`."""
        try:
            with contextlib.suppress(FileNotFoundError):
                os.utime(os.path.join(self._directory, _LOCK))
            for generation in self._generations():
                if generation <= self._generation:
                    self._clean(generation, needed, released)
        except OSError as error:
            _LOG.warning("local copies cannot be cleaned: %s", error)

    def _clean(self, generation: Generation, needed: Collection[str], released: Collection[str]) -> None:
        for slot in self._slots_of(generation):
            if slot >= self._slots:
                shutil.rmtree(os.path.join(self._directory, f"g{generation}", str(slot)), ignore_errors=True)
        home = self._relative(generation, self._slot, "")
        for file in self._files.list(home.rstrip("/")):
            path = file.path.removeprefix(home)
            if path not in needed and (path in released or not self._is_being_written(path)):
                self._files.delete(file.path)

    def _is_being_written(self, path: str) -> bool:
        owner = checkpoint_file(path)
        return owner is not None and owner[1] == self._generation and owner[2] == self._attempt

    # ---- names ----
    @property
    def _home(self) -> str:
        return os.path.join(self._directory, f"g{self._generation}", str(self._slot))

    @staticmethod
    def _relative(generation: Generation, slot: int, path: str) -> str:
        return f"g{generation}/{slot}/{path}"

    def _generations(self) -> list[Generation]:
        names = _listed(self._directory)
        return [Generation(int(name[1:])) for name in names if name[0] == "g" and name[1:].isdecimal()]

    def _slots_of(self, generation: Generation) -> list[int]:
        names = _listed(os.path.join(self._directory, f"g{generation}"))
        return sorted(int(name) for name in names if name.isdecimal())


class CopyingFiles:
    """Where an attempt writes its data files: to the store and, on the way, to the copies."""

    def __init__(self, files: DataFiles, copies: SlotCopies) -> None:
        self._files, self._copies = files, copies

    def write_in_place(self, path: str, chunks: Iterable[Buffer]) -> int:
        with self._copies.copied(path, chunks) as passing:
            return self._files.write_in_place(path, passing)

    def delete(self, path: str) -> None:
        self._copies.delete(path)
        self._files.delete(path)


class _Copy:
    """A copy that is being written. After the first error there is none."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        with self._at_risk():
            self._file = _opened(path, "wb")

    def passing(self, chunks: Iterable[Buffer]) -> Iterator[Buffer]:
        for chunk in chunks:
            if self._file is not None:
                with self._at_risk():
                    self._file.write(chunk)
            yield chunk

    def close(self) -> None:
        if self._file is not None:
            with self._at_risk():
                self._file.close()

    def give_up(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):
                file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    @contextlib.contextmanager
    def _at_risk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            _LOG.warning("no local copy %s: %s", self._path, error)
            self.give_up()


# ---- directories ----
def _own_directory(base: str) -> str:
    """A directory that nobody else can look into or put anything into."""
    user = os.getuid()
    path = os.path.join(base, f"penstock-{user}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        raise PermissionError(f"{path} must be a directory of user {user} that others have no access to: remove it")
    return path


def _held(directory: str) -> BinaryIO:
    """The directory's lock. Whoever removes a directory holds it alone, so it may be gone when we have it: again."""
    path = os.path.join(directory, _LOCK)
    while True:
        file = _opened(path, "ab")
        fcntl.flock(file, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                os.utime(path)
                return file
        file.close()


def _opened(path: str, mode: Literal["wb", "ab"]) -> BinaryIO:
    """With its directory, made again if a cleaner removed it as empty in between."""
    for _ in range(10):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return open(path, mode)
    raise FileNotFoundError(errno.ENOENT, "its directory disappears again and again", path)


def _remove_abandoned(root: str) -> None:
    for name in _listed(root):
        directory = os.path.join(root, name)
        with contextlib.suppress(OSError), open(os.path.join(directory, _LOCK), "rb") as lock:
            if os.fstat(lock.fileno()).st_mtime > time.time() - ABANDONED_AFTER:
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while a worker of the job lives
            _LOG.info("removing the local copies of a job that is gone: %s", directory)
            shutil.rmtree(directory, ignore_errors=True)


def _listed(directory: str) -> list[str]:
    """What cannot be looked into holds nothing for us."""
    try:
        return os.listdir(directory)
    except OSError:
        return []
