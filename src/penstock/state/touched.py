"""Which slots of a table were touched: as a list while they are few, as a mark for every slot once they are many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int32]

FEW: Final = 1 << 17
"""Up to so many are in any order."""
_MANY: Final = 1 << 18
"""Up to so many are always a list."""
_PORTION: Final = 1 << 18
"""Slots whose marks are looked at at a time."""
_NONE: Final = np.empty(0, np.int32)


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
        if not self._lists:
            return
        last = max(int(slots.max()) for slots in self._lists)
        if last >= len(self._marks):
            longer = np.zeros((last + 1) * 5 // 4 + 1, np.bool_)
            longer[: len(self._marks)] = self._marks
            self._marks = longer
        for slots in self._lists:
            self._marks[slots] = True
        self._marked, self._lists, self._listed = len(self), [], 0

    def numbers(self) -> Numbers:
        """Each once; more than a `FEW` ascend."""
        if self._marked:
            self._fold()
            return _numbers_of(self._marks, self._marked)
        if len(self._lists) == 1:
            listed = self._lists[0]
        else:
            listed = np.concatenate([_NONE, *self._lists])
        return np.sort(listed) if len(listed) > FEW else listed

    def mark(self, marks: npt.NDArray[np.bool_]) -> None:
        """Marks these slots among others: there is a mark for every slot in use."""
        if self._marked:
            known = min(len(marks), len(self._marks))
            marks[:known] |= self._marks[:known]
        for slots in self._lists:
            marks[slots] = True


def _numbers_of(marks: npt.NDArray[np.bool_], count: int) -> Numbers:
    """Of so many slots that are marked, without room for larger numbers of all of them."""
    numbers, at = np.empty(count, np.int32), 0
    for begin in range(0, len(marks), _PORTION):
        found = np.flatnonzero(marks[begin : begin + _PORTION])
        numbers[at : at + len(found)] = found + begin
        at += len(found)
    return numbers
