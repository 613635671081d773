"""reduce: a running aggregate per key, in columns.

For every batch, the key index gives each row its slot, every aggregate adds the batch to its array, and the updated row
of each key in the batch is put out, in the order in which the keys first occur in it. A snapshot copies the arrays and
nothing else; it becomes one table, laid out by key group, with the results as plain columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.operators.aggregates import Accumulator, Aggregate
from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.state.index import DictIndex, KeyIndex, suited_index
from penstock.state.keys import KeyColumns
from penstock.state.parts import Buffer, CapturedPart, OperatorSnapshot, PartKind
from penstock.state.tables import StateMismatch, encode_table, key_columns_of, read_table

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
        self._aggregates = dict(aggregates)
        self._accumulators = {name: Accumulator(item, input_schema) for name, item in aggregates.items()}
        self._index: KeyIndex = DictIndex(self._columns)

    def open(self, context: OperatorContext) -> None:
        self._own, self._total = context.key_groups, context.total_key_groups
        for part in context.restored:
            header, batches = read_table(part, self._columns, context.key_groups)
            if header.kind != _KIND or dict(header.description) != self._description():
                raise StateMismatch(
                    f"operator {context.uid!r}: stored are the aggregates {_shown(header.description)}, but declared "
                    f"are {_shown(self._description())}: declare them as they were, or give the operator another uid"
                )
            for batch in batches:
                self._take_up(batch)

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        key_columns = [batch.column(name) for name in self._columns.names]
        self._index = suited_index(self._index, self._columns, key_columns)
        slots, first_rows = self._index.find(key_columns)
        for accumulator in self._accumulators.values():
            accumulator.add(batch, slots, len(self._index))
        rows, updated = pa.array(first_rows), slots[first_rows]
        columns = [column.take(rows) for column in key_columns]
        columns += [accumulator.results(updated) for accumulator in self._accumulators.values()]
        out.emit(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        used = slice(0, len(self._index))
        results = {name: accumulator.results(used) for name, accumulator in self._accumulators.items()}
        encode = partial(_encode, self._description(), self._columns, self._total, self._index.captured(), results)
        return OperatorSnapshot((CapturedPart(_PART, PartKind.KEYED, encode, key_groups=self._own),))

    def _take_up(self, batch: pa.RecordBatch) -> None:
        key_columns = key_columns_of(batch, self._columns)
        self._index = suited_index(self._index, self._columns, key_columns)
        slots, _ = self._index.find(key_columns)
        for name, accumulator in self._accumulators.items():
            accumulator.put(slots, batch.column(name), len(self._index))

    def _description(self) -> dict[str, Any]:
        return {
            "type": "aggregates",
            "columns": [
                {"name": name, "is": str(aggregate), "of": str(self._accumulators[name].type)}
                for name, aggregate in self._aggregates.items()
            ],
        }


def _encode(
    description: Mapping[str, Any],
    keys: KeyColumns,
    total_groups: int,
    key_columns: Callable[[], list[pa.Array]],
    results: Mapping[str, pa.Array],
) -> Sequence[Buffer]:
    return encode_table(_KIND, _PART, description, keys, total_groups, key_columns(), results)


def _shown(description: Mapping[str, Any]) -> str:
    return ", ".join(f"{item['name']}={item['is']}: {item['of']}" for item in description.get("columns", ()))
