"""What lies beside the keys of an index, as it was at a capture, while the index goes on changing it.

Theory of operation. Nothing is copied when a picture of the payloads is taken. Soon after that, on another thread, its
reader copies the payloads that it wants. Until it has done so, a find puts the payload of a slot aside before it
changes it for the first time since the newest picture was taken: an entry of one log for all pictures (see
`kernels.table`). When the reader is through, it looks at the log: whatever it copied of a slot that has entries since
the picture was taken, the first of these is what it wanted. If it copied a changed payload, the entry was there before
the change; if it copied the old payload, an entry says the same. So no lock is needed, and an entry that is made twice
does no harm. From then on the picture is a copy like any other, and needs no log.

Records that are replaced by a longer copy are not changed any more: pictures of them need no further entries.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt

from penstock.kernels.gathering import gathered
from penstock.kernels.hashing import read_only

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int32]
Slots = npt.NDArray[np.int64]

_LEAST = 1 << 16
"""Entries."""
_PORTION = 1 << 16
"""Slots that are copied at a time."""


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
        # Memory that is never written to is never used.
        aside = np.empty(capacity * words, np.uint64)
        return cls(first, np.zeros(1, np.int64), np.empty(capacity, np.int32), aside)


NO_ENTRIES = Entries.empty(0, 0, 0)


class UndoLog:
    """Of some records, flat, each of `length` words, of which the last `words` are the payload. The pictures hold it;
    the index holds it weakly, so that its work ends with the last of them."""

    __slots__ = ("__weakref__", "_pictures", "entries", "kernels", "length", "records", "words")

    def __init__(self, kernels: ModuleType, records: Words, length: int, words: int) -> None:
        self.kernels, self.records, self.length, self.words = kernels, records, length, words
        self.entries = Entries.empty(0, _LEAST, words)
        self._pictures: list[weakref.ref[Picture]] = []

    def picture(self, slots: Numbers | Slots | None, copied: Words) -> Picture:
        """Of these slots, or of the first ones. `copied` has a row for each word of the payload, and is filled in."""
        picture = Picture(self, self.entries.first + int(self.entries.count[0]), slots, copied)
        self._pictures = [reference for reference in self._pictures if reference() is not None]
        self._pictures.append(weakref.ref(picture))
        return picture

    def keep(self, slots: Slots) -> None:
        """The payloads of these slots are about to change."""
        self.make_room(len(slots))
        own = self.entries
        self.kernels.put_aside(self.records, self.length, self.words, slots, own.count, own.slots, own.aside)

    def make_room(self, rows: int) -> None:
        """For so many entries. Those that were made before the oldest picture are left out."""
        old, used = self.entries, int(self.entries.count[0])
        if used + rows <= len(old.slots):
            return
        living = [picture.start for reference in self._pictures if (picture := reference()) is not None]
        gone = min(living, default=old.first + used) - old.first
        kept = used - gone
        new = Entries.empty(old.first + gone, max(_LEAST, 2 * (kept + rows)), self.words)
        new.slots[:kept] = old.slots[gone:used]
        new.aside[: kept * self.words] = old.aside[gone * self.words : used * self.words]
        new.count[0] = kept
        self.entries = new


class Picture:
    """Payloads as they were when it was taken; to be read later, by one thread."""

    __slots__ = ("__weakref__", "_copied", "_log", "_slots", "start")

    def __init__(self, log: UndoLog, start: int, slots: Numbers | Slots | None, copied: Words) -> None:
        self._log: UndoLog | None = log
        """None: it is copied."""
        self.start, self._slots, self._copied = start, slots, copied
        """Before any entry that it has to look at."""

    def payloads(self, rows: npt.NDArray[np.int32]) -> list[Words]:
        """Of some rows, an array for each word."""
        self.copy()
        return [gathered(word, rows) for word in self._copied]

    def copy(self) -> None:
        """The first call does what the log is waiting for."""
        log, copied = self._log, self._copied
        if log is None:
            return
        rows = copied.shape[1]
        for begin in range(0, rows, _PORTION):
            end = min(rows, begin + _PORTION)
            slots = np.arange(begin, end) if self._slots is None else self._slots[begin:end].astype(np.int64)
            copied[:, begin:end] = log.kernels.gather_words(
                log.records, log.length, log.length - log.words, log.words, read_only(slots)
            )
        entries = log.entries
        first, last = max(0, self.start - entries.first), int(entries.count[0])
        if first < last:
            log.kernels.put_back(copied, self._row_of_slot(rows), entries.slots, entries.aside, first, last)
        self._log = self._slots = None

    def _row_of_slot(self, rows: int) -> Numbers:
        """By slot; -1 if it is not wanted."""
        if self._slots is None:
            return np.arange(rows, dtype=np.int32)
        row_of_slot = np.full(int(self._slots.max(initial=-1)) + 1, -1, np.int32)
        row_of_slot[self._slots] = np.arange(rows, dtype=np.int32)
        return row_of_slot
