"""One window on its way out, in portions.

A window of many keys is put out in portions, between which records and barriers are taken. The rows go out in the order
of their slots; `skipped` are slots whose rows went out before a restore.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.operators.aggregation.table import AggregateTable
from penstock.state.index import Slots


class Firing:
    def __init__(self, end: int, table: AggregateTable, skipped: npt.NDArray[np.bool_] | None) -> None:
        self.end, self.table, self._skipped = end, table, skipped
        self._cursor = 0

    def next(self, portion: int) -> Slots | slice:
        """The slots to put out next."""
        slots = slice(self._cursor, min(self._cursor + portion, len(self.table)))
        self._cursor = slots.stop
        if self._skipped is None or slots.start >= len(self._skipped):
            return slots
        rows = np.arange(slots.start, slots.stop)
        known = rows < len(self._skipped)
        return rows[~(known & self._skipped[np.where(known, rows, 0)])]

    @property
    def done(self) -> bool:
        return self._cursor >= len(self.table)

    def is_out(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Which of these slots' rows have been put out."""
        out: npt.NDArray[np.bool_] = slots < self._cursor
        if self._skipped is not None:
            known = slots < len(self._skipped)
            out |= known & self._skipped[np.where(known, slots, 0)]
        return out

    def slots_out(self) -> Slots:
        """All slots whose rows have been put out."""
        if self._skipped is None:
            return np.arange(self._cursor)
        return np.union1d(np.arange(self._cursor), np.flatnonzero(self._skipped))
