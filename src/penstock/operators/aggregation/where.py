"""Aggregates of only some rows: `ps.count(where="paid")`.

No aggregate sees nulls, so leaving a row out is to have its values be null for this one aggregate. The rest is that of
the aggregate itself: results, checkpoints and merging know of no condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.aggregation.accumulator import Accumulator, Array, ToColumns
from penstock.state.index import Found, Slots


class WhereAccumulator(Accumulator):
    """Shows another accumulator the values of `columns` where the column `where` is true, and nulls elsewhere."""

    def __init__(self, inner: Accumulator, columns: Sequence[str], where: str) -> None:
        self._inner, self._columns, self._where = inner, tuple(columns), where
        self.type, self.stored = inner.type, inner.stored

    def add(self, batch: pa.RecordBatch, slots: Slots, keys: int) -> None:
        self._inner.add(self._shown(batch), slots, keys)

    def add_and_tell(self, batch: pa.RecordBatch, found: Found, keys: int) -> pa.Array:
        return self._inner.add_and_tell(self._shown(batch), found, keys)

    def _shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        mask = batch.column(self._where)
        shown = {}
        for name in self._columns:
            column = batch.column(name)
            shown[name] = pc.if_else(mask, column, pa.scalar(None, column.type))
        return pa.record_batch(shown)

    def merge(self, other: Self, theirs: Slots, slots: Slots, keys: int) -> None:
        self._inner.merge(other._inner, theirs, slots, keys)

    def reset(self, slots: Slots) -> None:
        self._inner.reset(slots)

    def results(self, slots: Slots | slice) -> pa.Array:
        return self._inner.results(slots)

    def expect(self, keys: int) -> None:
        self._inner.expect(keys)

    @property
    def arrays(self) -> list[Array]:
        return self._inner.arrays

    def frozen(self) -> ToColumns:
        return self._inner.frozen()

    def put(self, slots: Slots, columns: Sequence[pa.Array], keys: int) -> None:
        self._inner.put(slots, columns, keys)
