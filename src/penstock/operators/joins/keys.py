"""The keys of both sides of a join, in one index: equal keys have the same slot, whichever side they come from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.ids import Cut
from penstock.kernels.hashing import valid_rows
from penstock.state.keys import KeyColumns
from penstock.state.slottable import SlotTable

Numbers = npt.NDArray[np.int64]


class JoinKeys:
    def __init__(self, columns: KeyColumns) -> None:
        self.columns = columns
        self._table = SlotTable(columns, {})

    def __len__(self) -> int:
        return len(self._table)

    def find(self, columns: list[pa.Array]) -> Numbers:
        """The slot of every row's key; new keys get new slots."""
        return self._table.find(columns).slots if len(columns[0]) else np.empty(0, np.int64)

    def look_up(self, columns: list[pa.Array]) -> Numbers:
        """The slot of every row's key, -1 where there is none."""
        return self._table.look_up(columns)

    def of(self, slots: Numbers) -> list[pa.Array]:
        """The key columns of some slots."""
        return self._table.keys_of(slots)

    def reader(self) -> Callable[[Numbers], list[pa.Array]]:
        """`of` the slots that are in use now; to be called later, on any thread."""
        return self._table.keys_reader()

    def settle(self, cut: Cut) -> None:
        """Forgets which slots were found: rows are logged one by one, not by key."""
        self._table.mark(cut, cut)

    def only(self, slots: Numbers) -> Numbers:
        """Forgets all other keys. These are numbered anew, in their order; by former slot, the new one or -1."""
        self._table, places = self._table.only(slots)
        return places


def complete(key_columns: list[pa.Array]) -> npt.NDArray[np.bool_] | None:
    """Which rows have no null in their key; None if all: a null equals nothing, so a key with one has no match."""
    valid: npt.NDArray[np.bool_] | None = None
    for column in key_columns:
        if column.null_count:
            own = valid_rows(column)
            valid = own if valid is None else valid & own
    return valid
