"""reduce with a function of two rows: per key, all rows so far folded into one of the same columns.

The first row of a key is its first result; every further row gives `function(result, row)`. For every batch, the
updated row of each key in it is put out, in the order in which the keys first occur.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.core.ids import Uid
from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.operators.keyed import Row, row_type, rows_of, shown
from penstock.operators.rows import batch_of
from penstock.state.backend import backend_of
from penstock.state.evolution import Decoder, Evolution
from penstock.state.keys import KeyColumns
from penstock.state.kinds import KeyedState
from penstock.state.parts import LoggedState
from penstock.state.schema import Description
from penstock.state.tables import StateMismatch

_PART = "rows"
_KIND = "rows"
_PREFIX = "row."

RowFunction = Callable[[Any, Any], Any]


class FoldOperator(Operator):
    """`function(result, row)` returns a row (what it was given, or a dict) with the stream's columns."""

    def __init__(self, function: RowFunction, key: Sequence[str], schema: pa.Schema) -> None:
        self._function, self._schema = function, schema
        self._columns = KeyColumns(schema, key)
        self._row_type = row_type(schema)
        self._names = set(schema.names)
        self._closing: list[Callable[[], None]] = []

    def open(self, context: OperatorContext) -> None:
        self._rows = RowsState(self._schema, self._row_type)
        self._backend = backend_of(context, self._columns)
        self._closing.append(self._backend.close)
        self._backend.add(self._rows)
        self._backend.restore(context.restored)

    def close(self) -> None:
        while self._closing:
            self._closing.pop()()

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        self._backend.settle()
        keys = self._columns.of(batch)
        self._backend.prefetch(set(keys))
        entries = self._rows.map
        function, results = self._function, dict[Hashable, Row]()
        result: Row | None = None
        row: Row | None = None
        try:
            for key, row in zip(keys, rows_of(batch, self._row_type), strict=True):
                result = results[key] if key in results else entries.get(key)
                results[key] = row if result is None else self._row(function(result, row))
        except Exception as error:
            error.add_note(f"The function was called with {shown(result)} and {shown(row)}")
            raise
        updated = batch_of([dict(result) for result in results.values()], self._schema)
        entries.update(dict(zip(results, rows_of(updated, self._row_type), strict=True)))
        self._backend.write_back()
        out.emit(updated)

    def _row(self, result: Any) -> Row:
        """What the function returned, as it will be given to it the next time."""
        if isinstance(result, self._row_type):
            return result
        if not isinstance(result, Mapping) or result.keys() != self._names:
            batch_of([result], self._schema)  # says what is wrong with it
        return self._row_type(*map(result.__getitem__, self._schema.names))

    def logged(self) -> Sequence[LoggedState]:
        return self._backend.logs


class RowsState(KeyedState):
    """One row per key, stored in the stream's own columns."""

    __slots__ = ("_schema",)
    kind = _KIND

    def __init__(self, schema: pa.Schema, make: type[Row]) -> None:
        codec = _Rows(schema, make)
        super().__init__(_PART, codec, None, Evolution(_KIND, codec, make, codec))
        self._schema = schema

    def decoder(self, uid: Uid, kind: str, stored: Description) -> Decoder:
        if not self.reads_as_is(kind, stored):
            raise StateMismatch(
                f"operator {uid!r}: stored are rows of {_shown(stored)}, but the stream has "
                f"{_shown(self.codec.description)}: keep its columns, or give the operator another uid"
            )
        return self.codec.decode

    def reads_as_is(self, kind: str, stored: Description) -> bool:
        return kind == _KIND and stored == self.codec.description

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        return {_PREFIX + field.name: field.type for field in self._schema}

    def spread(self, column: pa.Array | pa.ChunkedArray) -> Sequence[pa.Array | pa.ChunkedArray]:
        return column.flatten()

    def gathered(self, batch: pa.RecordBatch) -> pa.Array:
        columns = [batch.column(name) for name in self.columns]
        return pa.StructArray.from_arrays(columns, fields=list(self._schema))


class _Rows:
    """Between rows and a struct of the stream's columns. A row cannot change."""

    copy = None

    def __init__(self, schema: pa.Schema, make: type[Row]) -> None:
        self._schema, self._make = schema, make
        self.arrow_type = pa.struct(list(schema))
        self.description = _description(schema)

    def encode(self, values: Sequence[Any]) -> pa.Array:
        columns = zip(*map(msgspec.structs.astuple, values), strict=True) if values else [()] * len(self._schema)
        arrays = [pa.array(column, field.type) for field, column in zip(self._schema, columns, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=list(self._schema))

    def decode(self, column: pa.Array) -> list[Any]:
        return rows_of(pa.RecordBatch.from_arrays(column.flatten(), schema=self._schema), self._make)

    def from_plain(self, value: Any) -> Any:
        return self._make(*value)


def _description(schema: pa.Schema) -> Description:
    return {"type": "row", "columns": [[field.name, str(field.type)] for field in schema]}


def _shown(description: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in description.get("columns", ()))
