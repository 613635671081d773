"""collect: all values of a slot, as a list, in the order in which they came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import pyarrow as pa

from penstock.operators.aggregation.accumulator import Accumulator, Array, ToColumns, listed, without_nulls
from penstock.operators.aggregation.chains import Chains
from penstock.operators.aggregation.pile import Pile
from penstock.state.index import Slots


class CollectAccumulator(Accumulator):
    def __init__(self, column: str, item: pa.DataType) -> None:
        self._column, self._item = column, item
        self.type = pa.list_(item)
        self.stored = {"": pa.large_list(item)}
        self._chains, self._pile = Chains(), Pile([item])
        """Entry i of the chains is row i of the pile."""

    def add(self, batch: pa.RecordBatch, slots: Slots, keys: int) -> None:
        self.expect(keys)
        slots, columns = without_nulls(slots, batch.column(self._column))
        self._append(slots, columns)

    def _append(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        self._chains.add(slots)
        self._pile.add(columns)

    def merge(self, other: Self, theirs: Slots, slots: Slots, keys: int) -> None:
        self.expect(keys)
        entries, lengths = other._chains.of(theirs)
        self._append(np.repeat(slots, lengths), other._pile.take(entries))

    def reset(self, slots: Slots) -> None:
        self._chains.reset(slots)
        if self._chains.wasteful:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Leaves behind what no slot has any more; captures hold the old stores."""
        chains, pile, used = self._chains, self._pile, np.flatnonzero(self._chains.lengths)
        entries, lengths = chains.of(used)
        self._chains, self._pile = Chains(), Pile([self._item])
        self.expect(len(chains.last))
        self._append(np.repeat(used, lengths), pile.take(entries))

    def results(self, slots: Slots | slice) -> pa.Array:
        entries, lengths = self._chains.of(slots)
        return listed(self.type, lengths, self._pile.take(entries)[0])

    def expect(self, keys: int) -> None:
        self._chains.expect(keys)

    @property
    def arrays(self) -> list[Array]:
        return [self._chains.last, self._chains.lengths]

    def frozen(self) -> ToColumns:
        find, take, kind = self._chains.finder(), self._pile.taker(), self.stored[""]

        def columns(taken: Sequence[Array]) -> list[pa.Array]:
            entries, lengths = find(taken[0], taken[1])
            return [listed(kind, lengths, take(entries)[0])]

        return columns

    def put(self, slots: Slots, columns: Sequence[pa.Array], keys: int) -> None:
        self.expect(keys)
        self.reset(slots)
        (column,) = columns
        self._append(np.repeat(slots, column.value_lengths().to_numpy()), [column.flatten()])
