"""A table of aggregates: keys in slots, and of every aggregate the accumulator of all slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import pyarrow as pa

from penstock.operators.aggregation.accumulator import Accumulator
from penstock.operators.aggregation.declare import Aggregate
from penstock.state.index import Found, Slots
from penstock.state.keys import KeyColumns
from penstock.state.slottable import SlotTable


class AggregateTable(SlotTable):
    def __init__(self, keys: KeyColumns, aggregates: Mapping[str, Aggregate], schema: pa.Schema) -> None:
        self.accumulators: dict[str, Accumulator] = {
            name: aggregate.accumulator(schema) for name, aggregate in aggregates.items()
        }
        super().__init__(keys, self.accumulators)

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

    def results(self, slots: Slots | slice) -> list[pa.Array]:
        return [accumulator.results(slots) for accumulator in self.accumulators.values()]


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
