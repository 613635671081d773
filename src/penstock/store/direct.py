"""Files written, and read, past the system's cache of files.

Checkpoints write megabytes again and again that nobody will read unless something fails. Through the cache each of them
is copied into pages that have to be found, and in a virtual machine often to be asked for, which costs several times
what making the bytes does, and drives out what others would read. So they are collected in a *stage*, in memory that is
used over and over, and the disk takes them from there (O_DIRECT). What is longer than a stage goes on a quarter of it
at a time, while others are filled. Where the disk wants none of it, the usual way is taken: for the whole file if it
says so at once, and otherwise from there on. What was written so is read so too, if it is much.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, cycle
from typing import Final

import numpy as np

from penstock.state.pages import pages
from penstock.state.parts import Buffer

STAGE: Final = 8 << 20
"""Bytes of a stage. What is never written to is never used of it."""
_QUARTER: Final = STAGE // 4
LEAST: Final = 64 << 10
"""Smaller files are as quickly copied."""
_BLOCK: Final = 4096
"""Of every disk: lengths and addresses must be multiples."""
_REFUSED: Final = (errno.EINVAL, errno.EOPNOTSUPP)
_DIRECT: Final = getattr(os, "O_DIRECT", 0)  # not on macOS


def opened(path: str) -> int | None:
    """An empty file to be written past the cache. None: the file system refuses, and there may be an empty file."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | _DIRECT, 0o666)
    except OSError as error:
        if error.errno in _REFUSED:
            return None
        raise


def read(path: str, offset: int, length: int) -> memoryview | None:
    """Of a file that has so many bytes, as long as it was. None: it must be read the usual way. What begins at a
    multiple of 64 in the file does so in memory."""
    before = offset % _BLOCK
    # Whole blocks, of which the last one may end behind the file; private memory of the system begins with one.
    memory = pages(-(-(before + length) // _BLOCK) * _BLOCK)
    done = 0
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | _DIRECT)
        try:
            while done < before + length:
                with memoryview(memory) as room:
                    count = os.preadv(file, [room[done : done + STAGE]], offset - before + done)
                done += count
                if count % _BLOCK or not count:  # the end of the file
                    break
        finally:
            os.close(file)
    except OSError as error:
        if error.errno in _REFUSED:
            return None
        raise
    return memoryview(memory)[before : min(done, before + length)]


class Stage:
    """A file's content on its way, used for one at a time."""

    def __init__(self) -> None:
        self._memory = pages(STAGE)
        self._bytes = np.frombuffer(self._memory, np.uint8)  # which copies without the GIL
        self.size = 0

    def fill(self, source: Iterator[Buffer]) -> memoryview | None:
        """Takes chunks, as far as there is room. Returns what is left of the last one; None: that was all."""
        self.size, left = self._take(source, None, slice(0, STAGE))
        return left

    def _take(self, source: Iterator[Buffer], left: memoryview | None, room: slice) -> tuple[int, memoryview | None]:
        """Fills a part of it with what is left of a chunk, and then chunks. Returns how many bytes that were, and what
        is left of the last chunk; None: that was all."""
        begin, end = room.start, room.stop
        for chunk in chain(() if left is None else (left,), source):
            view = memoryview(chunk).cast("B")
            taken = min(view.nbytes, end - begin)
            self._bytes[begin : begin + taken] = view[:taken]
            begin += taken
            if taken < view.nbytes:
                return begin - room.start, view[taken:]
        return begin - room.start, None

    @property
    def content(self) -> memoryview:
        return memoryview(self._memory)[: self.size]

    def write(self, file: int, left: memoryview | None, source: Iterator[Buffer]) -> tuple[int, bool]:
        """Writes its content to an opened file, then what is left and what follows, and makes it durable. Returns how
        many bytes that were, and whether all of them went past the cache."""
        if left is None:
            size, direct = self.size, self._put(file, slice(0, self.size))
        else:
            size, direct = self._write_on(file, left, source)
        os.ftruncate(file, size)
        os.fsync(file)
        return size, direct

    def _write_on(self, file: int, left: memoryview | None, source: Iterator[Buffer]) -> tuple[int, bool]:
        """All of it, of which there is no room for more, and what follows. While the disk takes one quarter of it,
        others wait, so that the disk does not, and one is filled."""
        size, direct = STAGE, True
        places = [slice(begin, begin + _QUARTER) for begin in range(0, STAGE, _QUARTER)]
        with ThreadPoolExecutor(1, "past the cache") as disk:
            writing = deque(disk.submit(self._put, file, place) for place in places)
            for place in cycle(places):
                direct = writing.popleft().result() and direct
                taken, left = self._take(source, left, place)
                size += taken
                writing.append(disk.submit(self._put, file, slice(place.start, place.start + taken)))
                if left is None:
                    break
            return size, all([written.result() for written in writing]) and direct

    def _put(self, file: int, part: slice) -> bool:
        """Appends a part of it to the file, and zeros up to a whole block."""
        end = part.start + -(-(part.stop - part.start) // _BLOCK) * _BLOCK
        self._bytes[part.stop : end] = 0
        with memoryview(self._memory) as memory:
            return _write(file, memory[part.start : end])


def _write(file: int, content: memoryview) -> bool:
    """False if it, and all that is written later, went through the cache."""
    direct = True
    while content:
        try:
            count = os.write(file, content)
        except OSError as error:
            if error.errno not in _REFUSED or not _through_the_cache(file):
                raise
            count, direct = 0, False
        if count % _BLOCK:  # there was no room for more: let the error be found where every byte can be written
            _through_the_cache(file)
            direct = False
        content = content[count:]
    return direct


def _through_the_cache(file: int) -> bool:
    """From now on. False: it was so before."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    fcntl.fcntl(file, fcntl.F_SETFL, flags & ~_DIRECT)
    return bool(flags & _DIRECT)


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
