"""Which slots of a table were touched: as a list while they are few, as a bit for every slot once they are many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.kernels.hashing import read_only

Numbers = npt.NDArray[np.int32]

FEW: Final = 1 << 17
"""Up to so many are in any order."""
_MANY: Final = 1 << 18
"""Up to so many are always a list."""
_PORTION: Final = 1 << 18
"""Slots whose bits are looked at at a time; a multiple of 8."""
_NONE: Final = np.empty(0, np.int32)


class Touched:
    """Slots, none of which is added twice."""

    def __init__(self, slots: Iterable[Numbers] = ()) -> None:
        self._lists: list[Numbers] = []
        self._listed = 0
        self._bits = np.zeros(0, np.uint8)
        self._marked = 0
        for some in slots:
            self.add(some)

    def add(self, slots: Numbers) -> None:
        if len(slots):
            self._lists.append(slots)
            self._listed += len(slots)
        if self._listed > max(_MANY, len(self._bits)):
            self._fold()

    def __len__(self) -> int:
        return self._listed + self._marked

    def _fold(self) -> None:
        if not self._lists:
            return
        from penstock.kernels.compiled import set_bits  # so many rows are worth loading it

        last = max(int(slots.max()) for slots in self._lists)
        if last >= 8 * len(self._bits):
            longer = np.zeros((last >> 3) * 5 // 4 + 1, np.uint8)
            longer[: len(self._bits)] = self._bits
            self._bits = longer
        for slots in self._lists:
            set_bits(self._bits, read_only(slots.view()))
        self._marked, self._lists, self._listed = len(self), [], 0

    def numbers(self) -> Numbers:
        """Each once; more than a `FEW` ascend."""
        if self._marked:
            self._fold()
            return self._numbers_of_bits()
        if len(self._lists) == 1:
            listed = self._lists[0]
        else:
            listed = np.concatenate([_NONE, *self._lists])
        return np.sort(listed) if len(listed) > FEW else listed

    def mark(self, marks: npt.NDArray[np.bool_]) -> None:
        """Marks these slots among others: there is a mark for every slot in use."""
        if self._marked:
            for begin, found in self._portions():
                own = marks[begin : begin + len(found)]
                own |= found[: len(own)]
        for slots in self._lists:
            marks[slots] = True

    def _numbers_of_bits(self) -> Numbers:
        """Without room for larger numbers of all of them."""
        numbers, at = np.empty(self._marked, np.int32), 0
        for begin, marks in self._portions():
            found = np.flatnonzero(marks)
            numbers[at : at + len(found)] = found + begin
            at += len(found)
        return numbers

    def _portions(self) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
        """The bits as marks, from a slot on."""
        for begin in range(0, len(self._bits), _PORTION // 8):
            yield 8 * begin, np.unpackbits(self._bits[begin : begin + _PORTION // 8], bitorder="little").view(np.bool_)
