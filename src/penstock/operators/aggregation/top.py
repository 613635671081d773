"""top_n: the highest values of a slot, or the values with the highest order, highest first.

Every slot has room for n row numbers of a pile. A batch is joined with what the slots in it have, sorted by slot and
order, cut to n per slot and written back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.aggregation.accumulator import (
    INITIAL_SLOTS,
    Accumulator,
    Array,
    ToColumns,
    as_rows,
    grown,
    listed,
    without_nulls,
)
from penstock.operators.aggregation.kept import sortable
from penstock.operators.aggregation.pile import Pile
from penstock.state.index import Slots

_SPARE_ROWS: Final = 4096


class TopAccumulator(Accumulator):
    def __init__(self, column: str, type: pa.DataType, n: int, by: Sequence[tuple[str, pa.DataType]] = ()) -> None:
        self._n = n
        self._columns = (column, *(name for name, _ in by))
        self._types = (type, *(kind for _, kind in by))
        self.type = pa.list_(type)
        suffixes = ["", ".by", *(f".by{place}" for place in range(2, len(by) + 1))]
        self.stored = {suffix: pa.large_list(kind) for suffix, kind in zip(suffixes, self._types, strict=False)}
        self._pile = Pile(self._types)
        self._rows = np.full((INITIAL_SLOTS, n), -1, np.int64)
        """By slot: the numbers of its rows in the pile, best first, then -1."""
        self._alive = 0

    def add(self, batch: pa.RecordBatch, slots: Slots, keys: int) -> None:
        self.expect(keys)
        slots, columns = without_nulls(slots, *(batch.column(name) for name in self._columns))
        self._offer(slots, columns)

    def _offer(self, slots: Slots, columns: list[pa.Array]) -> None:
        """Takes up rows that came after those that are kept."""
        if not len(slots):
            return
        order, rank = self._ordered(slots, columns)
        order = order[rank < self._n]  # no more can stay of one batch: what follows is about few rows
        slots, columns = slots[order], [column.take(pa.array(order)) for column in columns]
        touched = np.unique(slots)
        kept = self._rows[touched]
        old_slots, old_numbers = np.repeat(touched, self._n)[kept.ravel() >= 0], kept[kept >= 0]
        numbers = np.concatenate([old_numbers, self._pile.add(columns)])
        every = np.concatenate([old_slots, slots])
        columns = [pa.concat_arrays(pair) for pair in zip(self._pile.take(old_numbers), columns, strict=True)]
        order, rank = self._ordered(every, columns)
        order, rank = order[rank < self._n], rank[rank < self._n]
        rows = np.full((len(touched), self._n), -1, np.int64)
        rows[np.searchsorted(touched, every[order]), rank] = numbers[order]
        self._rows[touched] = rows
        self._alive += len(order) - len(old_numbers)
        self._tidy()

    def _ordered(self, slots: Slots, columns: Sequence[pa.Array]) -> tuple[Array, Array]:
        """The rows by slot, the best first, the earlier of equals first; and the rank of each among its slot's."""
        orders = {f"order{place}": sortable(column) for place, column in enumerate(columns[1:] or columns)}
        keys = [("slot", "ascending"), *((name, "descending") for name in orders)]
        order = pc.sort_indices(pa.table({"slot": slots, **orders}), keys).to_numpy()
        ordered = slots[order]
        begins = np.flatnonzero(np.append([True], ordered[1:] != ordered[:-1]))
        lengths = np.diff(np.append(begins, [len(ordered)]))
        return order, np.arange(len(ordered)) - np.repeat(begins, lengths)

    def _tidy(self) -> None:
        """Leaves behind what is not referred to; captures hold the old pile, and the old array."""
        if len(self._pile) > 2 * self._alive + _SPARE_ROWS:
            pile, rows = Pile(self._types), np.full_like(self._rows, -1)
            used = self._rows >= 0
            rows[used] = pile.add(self._pile.take(self._rows[used]))
            self._pile, self._rows = pile, rows

    def merge(self, other: Self, theirs: Slots, slots: Slots, keys: int) -> None:
        self.expect(keys)
        numbers = other._rows[theirs]
        there = numbers >= 0
        self._offer(np.repeat(slots, there.sum(axis=1)), other._pile.take(numbers[there]))

    def reset(self, slots: Slots) -> None:
        self._alive -= int((self._rows[slots] >= 0).sum())
        self._rows[slots] = -1

    def results(self, slots: Slots | slice) -> pa.Array:
        numbers = self._rows[as_rows(slots)]
        there = numbers >= 0
        return listed(self.type, there.sum(axis=1), self._pile.take(numbers[there])[0])

    def expect(self, keys: int) -> None:
        self._rows = grown(self._rows, keys, -1)

    @property
    def arrays(self) -> list[Array]:
        return [self._rows]

    def frozen(self) -> ToColumns:
        take, kinds = self._pile.taker(), list(self.stored.values())

        def columns(taken: Sequence[Array]) -> list[pa.Array]:
            there = taken[0] >= 0
            items = take(taken[0][there])
            return [listed(kind, there.sum(axis=1), item) for kind, item in zip(kinds, items, strict=True)]

        return columns

    def put(self, slots: Slots, columns: Sequence[pa.Array], keys: int) -> None:
        self.expect(keys)
        self.reset(slots)
        lengths = columns[0].value_lengths().to_numpy()
        self._offer(np.repeat(slots, lengths), [column.flatten() for column in columns])
