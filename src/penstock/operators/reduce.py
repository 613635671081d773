"""reduce: a running aggregate per key, in columns.

For every batch, the state gives each row the slot of its key, every aggregate adds the batch to its array, and the
updated row of each key in the batch is put out, in the order in which the keys first occur in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.kernels.gathering import taken
from penstock.operators.aggregates import Accumulator, Aggregate
from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.state.columns import ColumnState
from penstock.state.keys import KeyColumns
from penstock.state.parts import LoggedState

_PART = "aggregates"
_KIND = "aggregates"


def reduced_schema(input_schema: pa.Schema, key: Sequence[str], aggregates: Mapping[str, Aggregate]) -> pa.Schema:
    """Of the output: the key's columns, then one for each aggregate. Raises what is wrong with them."""
    if not aggregates:
        raise ValueError('reduce needs at least one aggregate: reduce(n=ps.count(), total=ps.sum("amount"))')
    fields = [input_schema.field(name) for name in key]
    for name, aggregate in aggregates.items():
        if name in key:
            raise ValueError(f"the aggregate {name!r} has the name of a key column: give it another")
        fields.append(pa.field(name, aggregate.type_in(input_schema)))
    return pa.schema(fields)


class ReduceOperator(Operator):
    def __init__(self, key: Sequence[str], aggregates: Mapping[str, Aggregate], input_schema: pa.Schema) -> None:
        self._schema = reduced_schema(input_schema, key, aggregates)
        self._columns = KeyColumns(input_schema, key)
        self._accumulators = {name: Accumulator(item, input_schema) for name, item in aggregates.items()}
        self._state = ColumnState(_PART, _KIND, self._columns, self._accumulators, self._description(aggregates))

    def open(self, context: OperatorContext) -> None:
        self._state.own(context.key_groups, context.total_key_groups)
        self._state.restore(context.uid, context.restored, "aggregates")

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        key_columns = [batch.column(name) for name in self._columns.names]
        found = self._state.find(key_columns)
        columns = [taken(column, found.first_rows) for column in key_columns]
        keys = len(self._state)
        columns += [accumulator.add_and_tell(batch, found, keys) for accumulator in self._accumulators.values()]
        out.emit(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def logged(self) -> Sequence[LoggedState]:
        return (self._state,)

    def _description(self, aggregates: Mapping[str, Aggregate]) -> dict[str, Any]:
        return {
            "type": "aggregates",
            "columns": [
                {"name": name, "is": str(aggregate), "of": str(self._accumulators[name].type)}
                for name, aggregate in aggregates.items()
            ],
        }
