"""Directories for working files on the worker's disk: never left behind, not even by a process that was killed.

A process takes a name, locks the file `<name>.lock` and keeps its files in the directory `<name>` beside it. The lock
goes with the process, however it ends. Whoever takes a name first looks for lock files that nobody holds: their
directories are left over from dead processes and are removed.

The lock file is there and locked before its directory is, and is removed after it: so a directory that is in use is
never found without its lock. A file that was removed between being opened and being locked is noticed by its inode.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import tempfile
import uuid
import weakref
from pathlib import Path
from typing import Final

_FAMILY: Final = "penstock-rocksdb"
_LOCK: Final = ".lock"


class Workdir:
    """The directory of this process. It is removed when nobody holds the object any more, at the latest at exit."""

    def __init__(self, base: str | None) -> None:
        self._family = Path(base or tempfile.gettempdir()) / f"{_FAMILY}-{os.getuid()}"
        self._family.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_stale(self._family)
        lock, name = _taken_name(self._family)
        self._path = self._family / name
        self._path.mkdir(mode=0o700)
        self._numbers = itertools.count(1)
        weakref.finalize(self, _remove, lock, self._path)

    def new(self, what: str) -> Path:
        """A path that nothing has yet."""
        return self._path / f"{what}-{next(self._numbers)}"


_workdirs: weakref.WeakValueDictionary[tuple[int, str | None], Workdir] = weakref.WeakValueDictionary()


def workdir(base: str | None) -> Workdir:
    """The one of this process below a directory, for whoever holds it."""
    place = (os.getpid(), base)
    known = _workdirs.get(place)
    if known is None:
        known = _workdirs[place] = Workdir(base)
    return known


def remove_stale(family: Path) -> None:
    """Removes what processes left that are gone."""
    for lock_path in family.glob(f"*{_LOCK}"):
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(lock_path, os.O_RDWR)
            try:
                if _locked(lock, lock_path):
                    shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
                    lock_path.unlink()
            finally:
                os.close(lock)


def _taken_name(family: Path) -> tuple[int, str]:
    while True:
        name = uuid.uuid4().hex
        path = family / f"{name}{_LOCK}"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        if _locked(lock, path):
            return lock, name
        os.close(lock)


def _locked(lock: int, path: Path) -> bool:
    """Whether the open file is ours now, and still the one of that name."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(lock).st_ino == path.stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        return False


def _remove(lock: int, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{path}{_LOCK}")
    os.close(lock)
