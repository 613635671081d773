"""Captures of arrays that go on changing: copied, if not many slots are wanted, or frozen (`frozen`).

Their owner says before it changes slots; captures that are still being read put the old values aside.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.kernels.gathering import gathered
from penstock.state.frozen import FrozenArrays

COPIED: Final = 1 << 19
"""Up to so many slots, their values are copied at once, which takes a few milliseconds; the arrays of more are frozen,
which costs something with every change until they are written."""

Array = npt.NDArray[Any]
Slots = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]


def numbers_of(rows: Rows | slice) -> Rows:
    """Rows that follow each other may be given as a slice, from its start to its end."""
    return np.arange(rows.start, rows.stop, dtype=np.int32) if isinstance(rows, slice) else rows


class Captures:
    """Of the arrays of one owner."""

    def __init__(self) -> None:
        self._frozen: list[weakref.ref[FrozenArrays]] = []

    def __bool__(self) -> bool:
        """Whether `keep` may have anything to do."""
        return bool(self._frozen)

    def keep(self, slots: Slots) -> None:
        """The values of these slots are about to change."""
        living = [(reference, frozen) for reference in self._frozen if (frozen := reference()) is not None]
        self._frozen = [reference for reference, _ in living]
        for _, frozen in living:
            frozen.keep(slots)

    def reader(
        self, arrays: Sequence[Array], slots: Slots | Rows | None, length: int
    ) -> Callable[[Rows | slice], list[Array]]:
        """Gives some rows of all arrays, as they are now, later and on any thread: of these slots, or of the first
        `length`."""
        if not arrays:
            return lambda rows: []
        if (length if slots is None else len(slots)) <= COPIED:
            copies = [array[:length].copy() if slots is None else gathered(array, slots) for array in arrays]
            return lambda rows: [copy[rows] if isinstance(rows, slice) else gathered(copy, rows) for copy in copies]
        frozen = FrozenArrays(arrays, length)
        self._frozen.append(weakref.ref(frozen))
        return lambda rows: frozen.values(numbers_of(rows) if slots is None else slots[rows])
