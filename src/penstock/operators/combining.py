"""Aggregates before the exchange: the rows of a batch that have the same key become one, where that pays.

Theory of operation. Counts, sums, minima and maxima of some rows can be told by one row, of which the receiver makes
the same as of all of them: the number of rows is added, sums are added, and the lowest of the lowest is kept. What is
sent has the key and one column for each aggregate, and so has no column that nobody needs. The receiver keeps what it
would keep without: its state does not tell whether rows were combined (`combining`).

Grouping a batch costs about as much as sending it, so it is only done where keys repeat, as they do where a few keys
have most of the records. From time to time a batch is grouped to find out; in between, rows are sent one by one, in the
same form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.aggregation.accumulator import Accumulator
from penstock.operators.aggregation.declare import Aggregate
from penstock.operators.aggregation.numbers import NumberAccumulator, NumberKind
from penstock.state.keys import KeyColumns
from penstock.state.slottable import SlotTable

_COMBINABLE: Final = ("count", "sum", "min", "max")
_PAYS_BELOW: Final = 0.5
"""Keys per row: grouping begins to pay."""
_FAILS_ABOVE: Final = 0.7
"""No longer."""
_TRY_EVERY: Final = 32
"""Batches that are not grouped."""
_LEAST_ROWS: Final = 256
"""A smaller batch tells little about the next ones."""
_MOST_KEYS: Final = 1 << 18
"""That are remembered from batch to batch, where that pays: it saves making room for them again."""


class Combine(StrEnum):
    """Whether rows are combined before they are sent."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def combinable(aggregates: Mapping[str, Aggregate]) -> bool:
    return all(aggregate.name in _COMBINABLE for aggregate in aggregates.values())


def combined_schema(schema: pa.Schema, key: Sequence[str], aggregates: Mapping[str, Aggregate]) -> pa.Schema:
    """Of the rows that are sent."""
    fields = [schema.field(name) for name in key]
    return pa.schema(fields + [pa.field(name, _sent_type(one, schema)) for name, one in aggregates.items()])


def combining(aggregates: Mapping[str, Aggregate]) -> dict[str, Aggregate]:
    """The same aggregates, of the rows that are sent. They call themselves what the others are called."""
    made: dict[str, Aggregate] = {}
    for name, aggregate in aggregates.items():
        make = _total_count if aggregate.name == "count" else aggregate.make
        made[name] = _Renamed(aggregate.name, (name,), make, shown=str(aggregate))
    return made


@dataclass(frozen=True)
class _Renamed(Aggregate):
    shown: str = ""

    def __str__(self) -> str:
        return self.shown


def _total_count(aggregate: Aggregate, schema: pa.Schema) -> Accumulator:
    """What counts come to: 0 is the count of nothing, so it is no sum."""
    return NumberAccumulator(NumberKind.COUNT, aggregate.column, pa.int64(), weighted=True)


def _sent_type(aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:
    return pa.int32() if aggregate.name == "count" else aggregate.type_in(schema)


class AggregatesCombiner:
    """Implements `Combiner`."""

    def __init__(
        self, key: Sequence[str], aggregates: Mapping[str, Aggregate], schema: pa.Schema, when: Combine
    ) -> None:
        self._aggregates, self._input = dict(aggregates), schema
        self._schema = combined_schema(schema, key, aggregates)
        self._columns = KeyColumns(schema, key)
        self._table = SlotTable(self._columns, {})
        self._when = when
        self._pays = when is Combine.ALWAYS
        self._until_try = 0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._pays:
            return self._grouped(batch)
        if batch.num_rows >= _LEAST_ROWS:
            self._until_try -= 1
            if self._until_try < 0:
                self._until_try = _TRY_EVERY
                return self._grouped(batch)
        keys = [batch.column(name) for name in self._columns.names]
        return self._made(keys, [self._one_by_one(name, batch) for name in self._aggregates])

    def _grouped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if (len(self._table) > _MOST_KEYS or not self._pays) and not self._table.forget_keys():
            self._table = SlotTable(self._columns, {})
        key_columns = [batch.column(name) for name in self._columns.names]
        found = self._table.find(key_columns)
        groups = len(found.first_rows)
        self._learn(groups / max(1, batch.num_rows))
        places = found.places.astype(np.int64)
        results = []
        for aggregate in self._aggregates.values():
            accumulator = aggregate.accumulator(self._input)
            accumulator.add(batch, places, groups)
            results.append(accumulator.results(slice(0, groups)))
        return self._made([found.of_keys(column) for column in key_columns], results)

    def _learn(self, keys_per_row: float) -> None:
        if self._when is Combine.AUTO:
            self._pays = keys_per_row < (_FAILS_ABOVE if self._pays else _PAYS_BELOW)

    def _one_by_one(self, name: str, batch: pa.RecordBatch) -> pa.Array:
        """What the aggregate makes of each row alone."""
        aggregate, rows = self._aggregates[name], batch.num_rows
        if aggregate.where is not None:
            accumulator = aggregate.accumulator(self._input)
            accumulator.add(batch, np.arange(rows), rows)
            return accumulator.results(slice(0, rows))
        if aggregate.name == "count":
            if not aggregate.columns or not batch.column(aggregate.column).null_count:
                return pa.array(np.ones(rows, np.int32))
            return batch.column(aggregate.column).is_valid()
        return batch.column(aggregate.column)

    def _made(self, keys: list[pa.Array], results: list[pa.Array]) -> pa.RecordBatch:
        columns = [
            column if column.type == field.type else pc.cast(column, field.type)
            for column, field in zip([*keys, *results], self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
