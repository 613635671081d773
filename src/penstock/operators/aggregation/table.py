"""A table of aggregates: keys in slots, and of every aggregate the accumulator of all slots.

Counts and sums, which most jobs have, are kept beside the keys (`KeyIndex.payload`): finding a key brings them near,
and one compiled pass over a batch finds all keys and adds to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import pyarrow as pa

from penstock.kernels.hashing import read_only
from penstock.operators.aggregation.accumulator import Accumulator
from penstock.operators.aggregation.declare import Aggregate
from penstock.operators.aggregation.numbers import NumberAccumulator
from penstock.state.hashindex import Additions, HashIndex
from penstock.state.index import Found, Payload, Slots
from penstock.state.keys import KeyColumns
from penstock.state.slottable import Home, SlotTable


class AggregateTable(SlotTable):
    def __init__(self, keys: KeyColumns, aggregates: Mapping[str, Aggregate], schema: pa.Schema) -> None:
        self.accumulators: dict[str, Accumulator] = {
            name: aggregate.accumulator(schema) for name, aggregate in aggregates.items()
        }
        beside = {
            name: accumulator
            for name, accumulator in self.accumulators.items()
            if isinstance(accumulator, NumberAccumulator) and accumulator.fits_beside
        }
        super().__init__(keys, self.accumulators, list(beside))
        self._beside = list(beside.values())
        for word, accumulator in enumerate(self._beside):
            accumulator.keep_beside(partial(_payload, self._home, word))

    def find_and_add(self, batch: pa.RecordBatch, key_columns: list[pa.Array]) -> Found:
        """Adds the rows of a batch, each to the slot of its key."""
        found, sums = self._find_and_add_beside(batch, key_columns, tell=False)
        for accumulator in self.accumulators.values():
            if accumulator not in sums:
                accumulator.add(batch, found.slots, len(self))
        return found

    def find_add_and_tell(self, batch: pa.RecordBatch, key_columns: list[pa.Array]) -> tuple[Found, list[pa.Array]]:
        """As `find_and_add`, and the results of the keys that were found, in the order in which they first occur."""
        found, sums = self._find_and_add_beside(batch, key_columns, tell=True)
        return found, [
            sums[accumulator] if accumulator in sums else accumulator.add_and_tell(batch, found, len(self))
            for accumulator in self.accumulators.values()
        ]

    def _find_and_add_beside(
        self, batch: pa.RecordBatch, key_columns: list[pa.Array], tell: bool
    ) -> tuple[Found, dict[Accumulator, pa.Array]]:
        """Finds the keys, and adds what can be added in the same pass: the accumulators and their results, if these are
        to be told."""
        index = self._suited_index(key_columns)
        if not self._beside or not isinstance(index, HashIndex):
            return self.find(key_columns), {}
        rows, words = batch.num_rows, len(self._beside)
        kinds, values = np.zeros(words, np.uint8), np.empty((words, rows), np.uint64)
        for word, accumulator in enumerate(self._beside):
            kinds[word] = accumulator.addition(batch, values[word])
        sums = np.empty((words, rows if tell else 0), np.uint64)
        found = index.find(key_columns, Additions(read_only(kinds), read_only(values), sums))
        self._keep(found)
        added: dict[Accumulator, pa.Array] = {}
        for word, accumulator in enumerate(self._beside):
            if kinds[word]:
                added[accumulator] = accumulator.added(sums[word, : len(found.first_rows)], len(self), tell)
        return found, added

    def add(self, batch: pa.RecordBatch, slots: Slots) -> None:
        """Adds the rows of a batch, each to its slot, which was found just before."""
        for accumulator in self.accumulators.values():
            accumulator.add(batch, slots, len(self))

    def add_and_tell(self, batch: pa.RecordBatch, found: Found) -> list[pa.Array]:
        """As `add`, and the results of the keys that were found, in the order in which they first occur."""
        return [accumulator.add_and_tell(batch, found, len(self)) for accumulator in self.accumulators.values()]

    def merge(self, other: Self, theirs: Slots, slots: Slots) -> None:
        """Adds what another table has in `theirs`, each to one of `slots`, which were found just before."""
        for name, accumulator in self.accumulators.items():
            accumulator.merge(other.accumulators[name], theirs, slots, len(self))

    def reset(self, slots: Slots) -> None:
        for accumulator in self.accumulators.values():
            accumulator.reset(slots)

    def clear(self) -> bool:
        """Gets ready for other keys; returns whether it has (see `forget_keys`)."""
        keys = len(self)
        return all(accumulator.clear(keys) for accumulator in self.accumulators.values()) and self.forget_keys()

    def results(self, slots: Slots | slice) -> list[pa.Array]:
        return [accumulator.results(slots) for accumulator in self.accumulators.values()]


def _payload(home: Home, word: int) -> Payload:
    return home.index.payload[:, word]


def described(aggregates: Mapping[str, Aggregate], schema: pa.Schema) -> list[dict[str, Any]]:
    """The aggregates as a checkpoint describes them."""
    return [
        {"name": name, "is": str(aggregate), "of": str(aggregate.type_in(schema))}
        for name, aggregate in aggregates.items()
    ]


def result_fields(
    aggregates: Mapping[str, Aggregate], schema: pa.Schema, what: str, taken: Sequence[str]
) -> list[pa.Field]:
    """Of the output, one for each aggregate. Raises what is wrong with them."""
    if not aggregates:
        raise ValueError(f'{what} needs at least one aggregate: {what}(n=ps.count(), total=ps.sum("amount"))')
    for name in aggregates:
        if name in taken:
            raise ValueError(f"the aggregate {name!r} has the name of another column of the result: give it another")
    return [pa.field(name, aggregate.type_in(schema)) for name, aggregate in aggregates.items()]
