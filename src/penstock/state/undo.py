"""What lies beside the keys of an index, as it was at a capture, while the index goes on changing it.

Theory of operation. Nothing is copied when a picture of the payloads is taken. Soon after that, on another thread, its
reader copies the payloads that it wants. Until it has done so, a find puts the payload of a slot aside before it
changes it for the first time since the newest picture was taken: an entry of one log for all pictures (see
`kernels.table`). When the reader has copied some, it looks at the log: whatever it copied of a slot that has entries
since the picture was taken, the first of these is what it wanted. If it copied a changed payload, the entry was there
before the change; if it copied the old payload, an entry says the same. So no lock is needed, and an entry that is made
twice does no harm. From then on these payloads are a copy like any other, and need no log.

A picture is copied a portion at a time, in the order of its slots, each when it is wanted: what was copied is written
while it is near, and its memory serves a later portion, as soon as nobody refers to it. Of the slots that it has
passed, no more entries are made, unless there is another picture that may need them.

Records that are replaced by a longer copy are not changed any more: pictures of them need no further entries.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections import deque
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt

from penstock.kernels.gathering import gathered
from penstock.kernels.hashing import read_only

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int32]
Slots = npt.NDArray[np.int64]

_BLOCK = 1 << 18
"""Entries in one piece of memory, unless there are fewer slots: a reader goes through few large ones sooner."""
PORTION = 1 << 16
"""Slots that are copied at a time: so few that their records are still near when their keys are read, and so many that
the log need not be looked through too often."""
_UNSHARED = 2
"""References to an array that nobody has but the one who asks: his own, and that of the question."""


@dataclass(frozen=True, slots=True)
class Entries:
    """From the entry `first` on: the slots, and their payloads one after another. `count` has one number: how many
    entries there are. It grows under the eyes of readers, each time before a payload changes."""

    first: int
    count: npt.NDArray[np.int64]
    slots: Numbers
    aside: Words

    @classmethod
    def empty(cls, first: int, capacity: int, words: int) -> Entries:
        return cls(first, np.zeros(1, np.int64), np.empty(capacity, np.int32), np.empty(capacity * words, np.uint64))

    @property
    def end(self) -> int:
        return self.first + int(self.count[0])

    def emptied(self, first: int) -> Entries:
        """The same memory."""
        return Entries(first, np.zeros(1, np.int64), self.slots, self.aside)


NO_ENTRIES = Entries.empty(0, 0, 0)
NONE_COPIED = np.zeros(1, np.int64)


class UndoLog:
    """Of some records, flat, each of `length` words, of which the last `words` are the payload. The pictures hold it;
    the index holds it weakly, so that its work ends with the last of them."""

    __slots__ = ("__weakref__", "_free", "_pictures", "blocks", "kernels", "length", "records", "spare", "words")

    def __init__(
        self,
        kernels: ModuleType,
        records: Words,
        length: int,
        words: int,
        spare: deque[Words],
        free: list[Entries],
    ) -> None:
        """`spare`: portions that pictures have done with. `free`: blocks of a log that is gone, for their memory."""
        self.kernels, self.records, self.length, self.words = kernels, records, length, words
        self.spare, self._free = spare, free
        self.blocks: list[Entries] = []
        """All entries that a picture may have to look at. Only the last one grows."""
        self._pictures: list[weakref.ref[Picture]] = []
        self._add_block(0, 0)

    @property
    def entries(self) -> Entries:
        """Where the next ones go."""
        return self.blocks[-1]

    def picture(self, slots: Numbers | Slots | None, rows: int) -> Picture:
        """Of these slots, which ascend, or of the first ones, so many in all."""
        picture = Picture(self, self.entries.end, slots, rows)
        self._pictures = [weakref.ref(living) for living in [*self._waiting(), picture]]
        return picture

    def _waiting(self) -> list[Picture]:
        pictures = [picture for reference in self._pictures if (picture := reference()) is not None]
        return [picture for picture in pictures if picture.waits]

    @property
    def copied(self) -> npt.NDArray[np.int64]:
        """One number, which grows under the eyes of whoever looks at it: slots before it need no more entries, as long
        as no further picture is taken."""
        waiting = self._waiting()
        return waiting[0].copied if len(waiting) == 1 else NONE_COPIED

    def keep(self, slots: Slots) -> None:
        """The payloads of these slots are about to change."""
        self.make_room(len(slots))
        own = self.entries
        self.kernels.put_aside(self.records, self.length, self.words, slots, own.count, own.slots, own.aside)

    def make_room(self, rows: int) -> None:
        """For so many entries. Blocks with none that a picture has to look at are left out."""
        last = self.entries
        if int(last.count[0]) + rows > len(last.slots):
            oldest = min((picture.start for picture in self._waiting()), default=last.end)
            # Another list: readers may be looking at this one.
            self.blocks = [block for block in self.blocks if block.end > oldest]
            self._add_block(last.end, rows)

    def _add_block(self, first: int, rows: int) -> None:
        if self._free and rows <= len(self._free[-1].slots):
            self.blocks.append(self._free.pop().emptied(first))
        else:
            capacity = max(rows, min(_BLOCK, len(self.records) // self.length))
            self.blocks.append(Entries.empty(first, capacity, self.words))


class Picture:
    """Payloads as they were when it was taken; to be read later, by one thread, from the first to the last row."""

    __slots__ = ("__weakref__", "_log", "_portions", "_rows", "_slots", "_spare", "_words", "copied", "start")

    def __init__(self, log: UndoLog, start: int, slots: Numbers | Slots | None, rows: int) -> None:
        self._log: UndoLog | None = log
        """None: it is copied."""
        self.start = start
        """Before any entry that it has to look at."""
        self.copied = np.zeros(1, np.int64)
        """One number: of all slots before it, everything is copied."""
        self._slots, self._rows, self._words, self._spare = slots, rows, log.words, log.spare
        self._portions: list[Words | None] = []
        """None: it was read."""

    @property
    def waits(self) -> bool:
        """For something to be copied."""
        return self._log is not None

    def payloads(self, rows: Numbers | slice) -> list[Words]:
        """Of some rows, an array for each word; without a copy where a slice has them. No later call asks for rows
        before these."""
        begin, end = _bounds(rows)
        if begin == end:
            return [np.empty(0, np.uint64)] * self._words
        first, last = begin // PORTION, (end - 1) // PORTION
        for done in range(min(first, len(self._portions))):
            portion, self._portions[done] = self._portions[done], None
            if portion is not None:
                self._spare.append(portion)
        self._copy(last + 1)
        wanted = [portion for portion in self._portions[first : last + 1] if portion is not None]
        if len(wanted) < last + 1 - first:
            raise RuntimeError("a picture is read once, from its first row to its last one")
        words = wanted[0] if len(wanted) == 1 else np.concatenate(wanted, axis=1)
        if isinstance(rows, slice):
            return list(words[:, begin - first * PORTION : end - first * PORTION])
        return [gathered(word, rows - np.int32(first * PORTION)) for word in words]

    def copy(self) -> None:
        """All that is not copied yet: the log need not wait for it any more."""
        self._copy(-(-self._rows // PORTION))

    def _copy(self, portions: int) -> None:
        """As many, at least."""
        log = self._log
        if log is None:
            return
        while len(self._portions) < portions:
            self._copy_next(log)
        if len(self._portions) * PORTION >= self._rows:
            self._log = self._slots = None

    def _copy_next(self, log: UndoLog) -> None:
        """The next portion."""
        kernels, portion = log.kernels, self._room(log)
        begin = len(self._portions) * PORTION
        end = min(self._rows, begin + PORTION)
        if self._slots is None:
            kernels.copy_run(log.records, log.length, log.length - log.words, begin, end, portion)
        else:
            wanted = read_only(self._slots[begin:end].astype(np.int64))
            kernels.copy_words(log.records, log.length, log.length - log.words, wanted, portion)
        # As they are now: of all that was changed before it was copied, there are entries. The first one counts.
        for block in reversed(log.blocks):
            entries = max(0, self.start - block.first), block.count, block.slots, block.aside
            if self._slots is None:
                kernels.put_back_run(portion, begin, end, *entries)
            else:
                kernels.put_back(portion, wanted, *entries)
        kernels.tell(self.copied, end if self._slots is None else int(wanted[-1]) + 1)
        self._portions.append(portion)

    def _room(self, log: UndoLog) -> Words:
        if self._rows < PORTION:
            return np.empty((log.words, self._rows), np.uint64)
        with contextlib.suppress(IndexError):  # others may take some meanwhile
            for _ in range(len(self._spare)):
                portion = self._spare.popleft()
                if sys.getrefcount(portion) == _UNSHARED:
                    return portion
                self._spare.append(portion)  # some of its rows are still on their way
        return np.empty((log.words, PORTION), np.uint64)


def _bounds(rows: Numbers | slice) -> tuple[int, int]:
    """From the first of some rows to behind the last one."""
    if isinstance(rows, slice):
        return rows.start, rows.stop
    return (int(rows.min()), int(rows.max()) + 1) if len(rows) else (0, 0)
