"""Aggregates that keep one row per slot: minimum and maximum of any type that has an order, first and last.

Per batch the best row of each slot is found, in columns, and compared with the kept one. *Best* is decided by a rank:
rows are ranked by an order column (the value itself, or another column), the earlier ones first where it is equal.
First and last by arrival need no order column: the rank is the row's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from penstock.operators.aggregation.accumulator import (
    INITIAL_SLOTS,
    Accumulator,
    Array,
    ToColumns,
    as_rows,
    grown,
    without_nulls,
)
from penstock.operators.aggregation.pile import Pile
from penstock.state.index import Slots

_SPARE_ROWS: Final = 4096
"""So many rows that nobody refers to any more are not worth moving the others."""


class KeptRowAccumulator(Accumulator):
    """Keeps the row with the `lowest` (or highest) order; the value's own, or by arrival, where `by` is None."""

    def __init__(
        self, column: str, type: pa.DataType, *, lowest: bool, by_value: bool, by: tuple[str, pa.DataType] | None = None
    ) -> None:
        self._lowest = lowest
        self._columns = (column,) if by is None else (column, by[0])
        self._types = (type,) if by is None else (type, by[1])
        self._by_arrival = by is None and not by_value
        self.type = type
        self.stored = dict(zip(("", ".by"), self._types, strict=False))
        self._pile = Pile(self._types)
        self._rows = np.full(INITIAL_SLOTS, -1, np.int64)
        """By slot: the number of its row in the pile; -1 for none."""
        self._alive = 0
        self._worst = np.iinfo(np.int64).max if lowest else -1
        self._best = np.full(INITIAL_SLOTS, self._worst, np.int64)
        """By slot: the best rank in the batch that is being added; `_worst` in between."""

    def add(self, batch: pa.RecordBatch, slots: Slots, keys: int) -> None:
        self.expect(keys)
        slots, columns = without_nulls(slots, *(batch.column(name) for name in self._columns))
        if not len(slots):
            return
        rank, best = self._rank(columns, len(slots)), self._best
        (np.minimum if self._lowest else np.maximum).at(best, slots, rank)
        rows = np.flatnonzero(best[slots] == rank)
        best[slots] = self._worst
        self._offer(slots[rows], [column.take(pa.array(rows)) for column in columns])

    def _rank(self, columns: Sequence[pa.Array], rows: int) -> Array:
        """Of every row, no two the same: by its order, then by arrival."""
        if self._by_arrival:
            return np.arange(rows)
        rank = np.empty(rows, np.int64)
        rank[pc.sort_indices(sortable(columns[-1])).to_numpy()] = np.arange(rows)
        return rank

    def _offer(self, slots: Slots, columns: list[pa.Array]) -> None:
        """Keeps those of the rows, which came later than the kept ones, that are better. No slot occurs twice."""
        known = np.flatnonzero(self._rows[slots] >= 0)
        better = np.ones(len(slots), np.bool_)
        if len(known):
            better[known] = not self._lowest if self._by_arrival else self._wins(slots, columns, known)
        rows = pa.array(np.flatnonzero(better))
        self._rows[slots[better]] = self._pile.add([column.take(rows) for column in columns])
        self._alive += len(slots) - len(known)
        self._tidy()

    def _wins(self, slots: Slots, columns: list[pa.Array], known: Array) -> Array:
        """Which of the rows `known`, whose slots have a row, are better than that."""
        kept = self._pile.take(self._rows[slots[known]])
        offered = [column.take(pa.array(known)) for column in columns]
        rank = self._rank([pa.concat_arrays(pair) for pair in zip(kept, offered, strict=True)], 2 * len(known))
        lower: Array = rank[len(known) :] < rank[: len(known)]
        return lower if self._lowest else ~lower

    def _tidy(self) -> None:
        """Leaves behind what is not referred to. The array is replaced: captures hold the old one, and the old pile."""
        if len(self._pile) > 2 * self._alive + _SPARE_ROWS:
            used = np.flatnonzero(self._rows >= 0)
            pile, rows = Pile(self._types), np.full(len(self._rows), -1, np.int64)
            rows[used] = pile.add(self._pile.take(self._rows[used]))
            self._pile, self._rows = pile, rows

    def merge(self, other: Self, theirs: Slots, slots: Slots, keys: int) -> None:
        self.expect(keys)
        numbers = other._rows[theirs]
        there = numbers >= 0
        if there.any():
            self._offer(slots[there], other._pile.take(numbers[there]))

    def reset(self, slots: Slots) -> None:
        self._alive -= int((self._rows[slots] >= 0).sum())
        self._rows[slots] = -1

    def results(self, slots: Slots | slice) -> pa.Array:
        return self._pile.take(self._rows[as_rows(slots)])[0]

    def expect(self, keys: int) -> None:
        self._rows, self._best = grown(self._rows, keys, -1), grown(self._best, keys, self._worst)

    @property
    def arrays(self) -> list[Array]:
        return [self._rows]

    def frozen(self) -> ToColumns:
        take = self._pile.taker()
        return lambda taken: take(taken[0])

    def put(self, slots: Slots, columns: Sequence[pa.Array], keys: int) -> None:
        self.expect(keys)
        self.reset(slots)
        slots, kept = without_nulls(slots, *columns)
        self._rows[slots] = self._pile.add(kept)
        self._alive += len(slots)
        self._tidy()


def sortable(column: pa.Array) -> pa.Array:
    """The same values as a type that Arrow can sort. Strings are ordered by their bytes."""
    if pat.is_string_view(column.type):
        return column.cast(pa.large_string())
    return column.cast(pa.large_binary()) if pat.is_binary_view(column.type) else column
