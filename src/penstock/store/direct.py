"""Files of moderate size, written past the system's cache of files.

Checkpoints write a few megabytes again and again that nobody will read unless something fails. Through the cache each
of them is copied into pages that have to be found, and in a virtual machine often to be asked for, which costs several
times what making the bytes does, and drives out what others would read. So what fits into a *stage* is collected there,
in memory that is used over and over, and the disk takes it from there (O_DIRECT). Where that is not possible, and for
files that are larger, the usual way is taken.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from penstock.state.parts import Buffer

STAGE: Final = 8 << 20
"""Bytes of a stage. What is never written to is never used of it."""
LEAST: Final = 64 << 10
"""Smaller files are as quickly copied."""
_BLOCK: Final = 4096
"""Of every disk: lengths and addresses must be multiples."""
_REFUSED: Final = (errno.EINVAL, errno.EOPNOTSUPP)
_DIRECT: Final = getattr(os, "O_DIRECT", 0)  # not on macOS


class Stage:
    """A file's content on its way, used for one at a time."""

    def __init__(self) -> None:
        # Private: a process that is forked must not write into it.
        self._memory = mmap.mmap(-1, STAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.size = 0

    def fill(self, chunks: Iterable[Buffer]) -> Iterator[Buffer] | None:
        """Takes all chunks, whose sum is in `size` then: None. Or as many as it has room for, and then gives all of
        them, to be used before it is filled again."""
        self.size, source = 0, iter(chunks)
        for chunk in source:
            view = memoryview(chunk).cast("B")
            end = self.size + view.nbytes
            if end > STAGE:
                return chain([memoryview(self._memory)[: self.size], chunk], source)
            self._memory[self.size : end] = view
            self.size = end
        return None

    @property
    def content(self) -> memoryview:
        return memoryview(self._memory)[: self.size]

    def write(self, path: str) -> bool:
        """Makes a new file with the content, durable but for its name. False: it must be written the usual way, and
        there may be a part of it."""
        padded = -(-self.size // _BLOCK) * _BLOCK
        self._memory[self.size : padded] = bytes(padded - self.size)
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | _DIRECT, 0o666)
        except OSError as error:
            if error.errno in _REFUSED:
                return False
            raise
        try:
            with memoryview(self._memory) as memory:
                return self._write(file, memory, padded)
        finally:
            os.close(file)

    def _write(self, file: int, memory: memoryview, padded: int) -> bool:
        done = 0
        while done < padded:
            try:
                count = os.write(file, memory[done:padded])
            except OSError as error:
                if error.errno in _REFUSED:
                    return False
                raise
            if count % _BLOCK:  # there was no room for more: let the error be found where every byte can be written
                return False
            done += count
        os.ftruncate(file, self.size)
        os.fsync(file)
        return True


_lock: Final = threading.Lock()
_free: Final[list[Stage]] = []


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    """The one that was used last of those that nobody uses: its memory is likely to be near. There are as many as were
    ever used at the same time."""
    with _lock:
        borrowed = _free.pop() if _free else Stage()
    try:
        yield borrowed
    finally:
        with _lock:
            _free.append(borrowed)


def possible() -> bool:
    return bool(_DIRECT)
