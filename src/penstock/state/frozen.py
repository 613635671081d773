"""Arrays as they were at a snapshot, while their owner goes on changing them.

Theory of operation. Nothing is copied when the snapshot is taken. From then on, as long as somebody holds it, the owner
announces which slots it is about to change (`keep`), and the old values of those that were not announced before are
put aside. A reader, on any thread, copies what it wants and then takes what was put aside by then instead. If it copied
a changed value, the change came before the copy, and the putting aside before the change: it finds the old value. If it
copied the old one, what is put aside is the same. So no lock is needed, and it does not matter what a copy looks like
that was taken in the middle of a change.

An array that its owner replaces by a longer one is not changed any more: the snapshot has the old one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernels.gathering import gathered

Array = npt.NDArray[Any]
Slots = npt.NDArray[np.int64] | npt.NDArray[np.int32]


class FrozenArrays:
    """The first `length` slots of some arrays. Dropping it ends the work for the owner, who holds it weakly."""

    __slots__ = ("__weakref__", "_announced", "_arrays", "_aside", "length")

    def __init__(self, arrays: Sequence[Array], length: int) -> None:
        self._arrays = tuple(arrays)
        self.length = length
        # Memory that is never written to is never used: both cost as much as what changes.
        self._announced = np.zeros(length, np.bool_)
        self._aside = tuple(np.empty((length, *array.shape[1:]), array.dtype) for array in arrays)

    def keep(self, slots: Slots) -> None:
        """By the owner, before it changes the values of these slots."""
        old = slots[slots < self.length]
        old = old[~self._announced[old]]
        for array, aside in zip(self._arrays, self._aside, strict=True):
            aside[old] = array[old]
        self._announced[old] = True

    def values(self, slots: Slots) -> list[Array]:
        """Of every array the values of some slots."""
        copied = [gathered(array, slots) for array in self._arrays]
        changed = gathered(self._announced, slots)
        if changed.any():
            for values, aside in zip(copied, self._aside, strict=True):
                values[changed] = aside[slots[changed]]
        return copied
