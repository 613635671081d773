"""reduce with a function of two rows: per key, all rows so far folded into one of the same columns.

The first row of a key is its first result; every further row gives `function(result, row)`. For every batch, the
updated row of each key in it is put out, in the order in which the keys first occur.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.operators.keyed import Row, row_type, rows_of, shown
from penstock.operators.rows import batch_of
from penstock.state.keys import KeyColumns
from penstock.state.layers import LayeredMap, Picture
from penstock.state.maplog import MapLog, of_pictures
from penstock.state.parts import Buffer, LoggedState
from penstock.state.tables import StateMismatch, encode_table, key_columns_of, read_table

_PART = "rows"
_KIND = "rows"
_PREFIX = "row."
_RUN = 4096

RowFunction = Callable[[Any, Any], Any]


class FoldOperator(Operator):
    """`function(result, row)` returns a row (what it was given, or a dict) with the stream's columns."""

    def __init__(self, function: RowFunction, key: Sequence[str], schema: pa.Schema) -> None:
        self._function, self._schema = function, schema
        self._columns = KeyColumns(schema, key)
        self._row_type = row_type(schema)
        self._names = set(schema.names)
        self._rows = LayeredMap()
        """A result is a row, which cannot change."""

    def open(self, context: OperatorContext) -> None:
        encoder = of_pictures(_encode, self._schema, self._columns, context.total_key_groups)
        self._log = MapLog(_PART, context.key_groups, [self._rows], encoder)
        for part in context.restored:
            header, batches = read_table(part, self._columns, context.key_groups)
            if header.kind != _KIND or dict(header.description) != _description(self._schema):
                raise StateMismatch(
                    f"operator {context.uid!r}: stored are rows of {_shown(header.description)}, but the stream has "
                    f"{_shown(_description(self._schema))}: keep its columns, or give the operator another uid"
                )
            for batch in batches:
                keys = self._columns.from_arrow(key_columns_of(batch, self._columns))
                stored = batch.select([_PREFIX + name for name in self._schema.names])
                self._rows.live.update(zip(keys, rows_of(stored, self._row_type), strict=True))

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        self._rows.settle()
        function, results = self._function, dict[Hashable, Row]()
        result: Row | None = None
        row: Row | None = None
        try:
            for key, row in zip(self._columns.of(batch), rows_of(batch, self._row_type), strict=True):
                result = results[key] if key in results else self._rows.get(key)
                results[key] = row if result is None else self._row(function(result, row))
        except Exception as error:
            error.add_note(f"The function was called with {shown(result)} and {shown(row)}")
            raise
        updated = batch_of([dict(result) for result in results.values()], self._schema)
        self._rows.update(dict(zip(results, rows_of(updated, self._row_type), strict=True)))
        out.emit(updated)

    def _row(self, result: Any) -> Row:
        """What the function returned, as it will be given to it the next time."""
        if isinstance(result, self._row_type):
            return result
        if not isinstance(result, Mapping) or result.keys() != self._names:
            batch_of([result], self._schema)  # says what is wrong with it
        return self._row_type(*map(result.__getitem__, self._schema.names))

    def logged(self) -> Sequence[LoggedState]:
        return (self._log,)


def _description(schema: pa.Schema) -> dict[str, Any]:
    return {"type": "row", "columns": [[field.name, str(field.type)] for field in schema]}


def _shown(description: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in description.get("columns", ()))


def _encode(schema: pa.Schema, keys: KeyColumns, total_groups: int, pictures: Sequence[Picture]) -> Iterable[Buffer]:
    entries = pictures[0].items()
    raw_keys, rows = list(entries), list(entries.values())
    columns: dict[str, list[pa.Array]] = {field.name: [] for field in schema}
    for start in range(0, len(rows), _RUN):
        values = zip(*map(msgspec.structs.astuple, rows[start : start + _RUN]), strict=True)
        for field, column in zip(schema, values, strict=True):
            columns[field.name].append(pa.array(column, field.type))
    stored = {_PREFIX + field.name: pa.chunked_array(columns[field.name], field.type) for field in schema}
    key_columns = keys.to_arrow(raw_keys)
    return encode_table(_KIND, _PART, _description(schema), keys, total_groups, key_columns, stored)
