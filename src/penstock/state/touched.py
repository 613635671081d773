"""Which slots of a table were touched: as a list while they are few, as a mark for every slot once they are many."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int32]

_MANY = 1 << 18
"""Up to so many are always a list."""
_PORTION = 1 << 18
"""Slots whose marks are looked at at a time."""


class Touched:
    """Slots, none of which is added twice."""

    def __init__(self, slots: Iterable[Numbers] = ()) -> None:
        self._lists: list[Numbers] = []
        self._listed = 0
        self._marks = np.zeros(0, np.bool_)
        self._marked = 0
        for some in slots:
            self.add(some)

    def add(self, slots: Numbers) -> None:
        if len(slots):
            self._lists.append(slots)
            self._listed += len(slots)
        if self._listed > max(_MANY, len(self._marks) // 8):
            self._fold()

    def __len__(self) -> int:
        return self._listed + self._marked

    def _fold(self) -> None:
        last = max(int(slots.max()) for slots in self._lists)
        if last >= len(self._marks):
            longer = np.zeros((last + 1) * 5 // 4 + 1, np.bool_)
            longer[: len(self._marks)] = self._marks
            self._marks = longer
        for slots in self._lists:
            self._marks[slots] = True
        self._marked, self._lists, self._listed = len(self), [], 0

    def numbers(self) -> Numbers:
        """Each once, in any order."""
        if not self._marked and len(self._lists) == 1:
            return self._lists[0]
        numbers, at = np.empty(len(self), np.int32), 0
        for begin in range(0, len(self._marks) if self._marked else 0, _PORTION):
            found = np.flatnonzero(self._marks[begin : begin + _PORTION])
            numbers[at : at + len(found)] = found + begin
            at += len(found)
        for slots in self._lists:
            numbers[at : at + len(slots)] = slots
            at += len(slots)
        return numbers

    def mark(self, marks: npt.NDArray[np.bool_]) -> None:
        """Marks these slots among others: there is a mark for every slot in use."""
        if self._marked:
            known = min(len(marks), len(self._marks))
            marks[:known] |= self._marks[:known]
        for slots in self._lists:
            marks[slots] = True
