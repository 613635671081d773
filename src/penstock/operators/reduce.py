"""reduce: a running aggregate per key, in columns.

For every batch, the table gives each row the slot of its key, every aggregate adds the batch to its array, and the
updated row of each key in the batch is put out, in the order in which the keys first occur in it. As a changelog, a
column says what each row is: `insert` of a new key; `update_before` and `update_after` of a known one, one after the
other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.operators.aggregation.declare import Aggregate
from penstock.operators.aggregation.table import AggregateTable, described, result_fields
from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.state.columns import ColumnState
from penstock.state.keys import KeyColumns
from penstock.state.parts import LoggedState

OPERATION: Final = "op"

_PART: Final = "aggregates"
_KIND: Final = "aggregates"
_INSERT, _BEFORE, _AFTER = 0, 1, 2
_NAMES: Final = pa.array(["insert", "update_before", "update_after"])


class Output(StrEnum):
    """What is put out of a key that had records."""

    UPDATES = "updates"
    """Its row as it is now."""
    CHANGELOG = "changelog"
    """What has changed: the row as it was, and as it is now."""


def reduced_schema(
    input_schema: pa.Schema,
    key: Sequence[str],
    aggregates: Mapping[str, Aggregate],
    output: Output = Output.UPDATES,
) -> pa.Schema:
    """Of the output: the key's columns, then one for each aggregate. Raises what is wrong with them."""
    fields = [input_schema.field(name) for name in key]
    if output is Output.CHANGELOG:
        fields.insert(0, pa.field(OPERATION, pa.string()))
    taken = [field.name for field in fields]
    if len(set(taken)) < len(taken):
        raise ValueError(f"a changelog has a column {OPERATION!r} of its own: give the key column another name")
    return pa.schema(fields + result_fields(aggregates, input_schema, "reduce", taken))


class ReduceOperator(Operator):
    def __init__(
        self,
        key: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        input_schema: pa.Schema,
        output: Output = Output.UPDATES,
    ) -> None:
        self._schema = reduced_schema(input_schema, key, aggregates, output)
        self._output = output
        self._columns = KeyColumns(input_schema, key)
        self._table = AggregateTable(self._columns, aggregates, input_schema)
        description = {"type": "aggregates", "columns": described(aggregates, input_schema)}
        self._state = ColumnState(_PART, _KIND, self._columns, self._table, description)

    def open(self, context: OperatorContext) -> None:
        self._state.own(context.key_groups, context.total_key_groups)
        self._state.restore(context.uid, context.restored, _shown)

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        key_columns = [batch.column(name) for name in self._columns.names]
        if self._output is Output.UPDATES:
            found, results = self._table.find_add_and_tell(batch, key_columns)
            keys = [found.of_keys(column) for column in key_columns]
            out.emit(pa.RecordBatch.from_arrays([*keys, *results], schema=self._schema))
            return
        known = len(self._table)
        found = self._table.find(key_columns)
        keys = [found.of_keys(column) for column in key_columns]
        updated = found.slots[found.first_rows]
        old = updated < known
        before = self._table.results(updated[old])
        out.emit(self._changelog(keys, old, before, self._table.add_and_tell(batch, found)))

    def _changelog(
        self, keys: list[pa.Array], old: Any, before: list[pa.Array], after: list[pa.Array]
    ) -> pa.RecordBatch:
        """Of every key the row after, preceded by the row before if it is not new."""
        count, old_rows = len(old), np.flatnonzero(old)
        # Behind each other, then sorted by key; a row before has half a place less than the one after.
        order = pa.array(np.argsort(np.concatenate([2 * old_rows, 2 * np.arange(count) + 1]), kind="stable"))
        kinds = np.concatenate([np.full(len(old_rows), _BEFORE), np.where(old, _AFTER, _INSERT)])
        columns = [_NAMES.take(pa.array(kinds))]
        columns += [pa.concat_arrays([column.take(pa.array(old_rows)), column]) for column in keys]
        columns += [pa.concat_arrays(pair) for pair in zip(before, after, strict=True)]
        return pa.RecordBatch.from_arrays([column.take(order) for column in columns], schema=self._schema)

    def logged(self) -> Sequence[LoggedState]:
        return (self._state,)


def _shown(description: Mapping[str, Any]) -> str:
    columns = ", ".join(f"{item['name']}={item['is']}: {item['of']}" for item in description.get("columns", ()))
    return f"the aggregates {columns}"
