"""map and flat_map: a user's function of one row.

Rows are dicts made from whole columns, and results become whole columns again: Arrow is never asked for one value. Only
when something does not fit are the results looked at one by one, to say which row, column and value it was.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from types import GeneratorType
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from penstock.operators.base import Collector, Operator
from penstock.operators.conform import SchemaMismatch

Row = dict[str, Any]

_FRACTIONS = (float, np.floating, Decimal)
_PLAIN: Final[Mapping[pa.DataType, tuple[type, Any]]] = {pa.int64(): (int, np.int64), pa.float64(): (float, np.float64)}
"""Columns that NumPy makes of values of one type, in less than half the time that Arrow takes."""


_SEVERAL: Final = frozenset({list, tuple, GeneratorType})
"""What flat_map mostly returns, which needs no closer look."""


def column_values(column: pa.Array) -> list[Any]:
    """The column as Python values. Nanoseconds are beyond `datetime`: such times are cut to microseconds."""
    types, data_type = pa.types, column.type
    if column.null_count == 0 and (types.is_integer(data_type) or types.is_floating(data_type)):
        values: list[Any] = column.to_numpy().tolist()
        return values
    if types.is_timestamp(data_type) or types.is_duration(data_type) or types.is_date(data_type):
        return _times(column)
    return _listed(column)


def _times(column: pa.Array) -> list[Any]:
    """By way of NumPy, which is many times as fast as Arrow here; but it knows no time zones, and answers with a bare
    number where Python's calendar ends and Arrow raises."""
    data_type = column.type
    if pa.types.is_date(data_type):
        column = column.cast(pa.date32())
    else:
        zone = data_type.tz if pa.types.is_timestamp(data_type) else None
        micros = pa.timestamp("us", zone) if pa.types.is_timestamp(data_type) else pa.duration("us")
        column = column.cast(micros, safe=data_type.unit != "ns")
        if zone is not None:
            return _listed(column)
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return _listed(column) if int in set(map(type, values)) else values


def _listed(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    names, columns = batch.schema.names, map(column_values, batch.columns)
    make = _maker(tuple(names))
    if make is not None:
        return map(msgspec.structs.asdict, map(make, *columns))
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


@lru_cache(maxsize=64)
def _maker(names: tuple[str, ...]) -> Callable[..., msgspec.Struct] | None:
    """Makes what becomes a row at once, several times as fast as a dict from names and values; None where a name cannot
    be that of an attribute."""
    if not names or not all(name.isidentifier() and not name.startswith("__") for name in names):
        return None
    return msgspec.defstruct("Values", names, gc=False)


def batch_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """The rows as one batch; every row must have exactly the schema's columns."""
    width = len(schema)
    try:
        if not set(map(len, rows)) <= {width}:
            raise KeyError
        columns = [_column(list(map(itemgetter(field.name), rows)), field.type) for field in schema]
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        _explain_misfit(rows, schema)
        raise SchemaMismatch(f"the returned rows do not fit the declared schema: {error}") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(values: list[Any], data_type: pa.DataType) -> pa.Array:
    plain, dtype = _PLAIN.get(data_type, (None, None))
    if plain is not None and set(map(type, values)) == {plain}:
        return pa.array(np.fromiter(values, dtype, len(values)))
    _refuse_silent_loss(values, data_type)
    return pa.array(values, data_type)


def _refuse_silent_loss(values: list[Any], data_type: pa.DataType) -> None:
    """Arrow would cut 1.5 to 1 in a column of whole numbers or times, and a datetime to its date, without a word."""
    types = pa.types
    if types.is_list(data_type):
        items = [item for value in values if value is not None for item in value]
        _refuse_silent_loss(items, data_type.value_type)
    elif types.is_integer(data_type) or types.is_temporal(data_type):
        found = set(map(type, values))
        if any(issubclass(kind, _FRACTIONS) for kind in found):
            raise TypeError(f"a fraction does not fit into {data_type}")
        if types.is_date(data_type) and any(issubclass(kind, dt.datetime) for kind in found):
            raise TypeError(f"a datetime does not fit into {data_type}")


def _explain_misfit(rows: Sequence[object], schema: pa.Schema) -> None:
    """Finds the first row that does not fit and raises with what is wrong with it."""
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise SchemaMismatch(
                f"result {number} is {type(row).__name__} {_shown(row)}, but a row is a dict: return {_example(schema)}"
            )
        missing = [name for name in schema.names if name not in row]
        extra = [str(name) for name in row if name not in schema.names]
        if missing:
            raise SchemaMismatch(
                f"result {number} lacks the column(s) {missing}: {_shown(row)}. Declared are {schema.names}; use None "
                "for no value"
            )
        if extra:
            raise SchemaMismatch(
                f"result {number} has the undeclared column(s) {extra}: {_shown(row)}. Add them to returns={{...}} or "
                "leave them out"
            )
        for field in schema:
            try:
                _column([row[field.name]], field.type)
            except (TypeError, ValueError, OverflowError, AttributeError) as error:
                value = row[field.name]
                raise SchemaMismatch(
                    f"result {number}: column {field.name!r} is declared as {field.type}, but got "
                    f"{type(value).__name__} {_shown(value)}. "
                    "Return a value of that type, or declare another in returns={...}"
                ) from error


def _shown(value: object, limit: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."


def _example(schema: pa.Schema) -> str:
    return "{" + ", ".join(f"{name!r}: ..." for name in schema.names) + "}"


def _with_row(error: Exception, row: Row) -> None:
    """The runtime shows the first row of the batch; this says which one it really was."""
    error.add_note(f"The function was called with the row {_shown(row)}")


class MapOperator(Operator):
    """One row in, one row out."""

    def __init__(self, function: Callable[[Row], Mapping[str, Any]], schema: pa.Schema) -> None:
        self._function, self._schema = function, schema

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        function, results, row = self._function, [], {}
        try:
            for row in rows_of(batch):
                results.append(function(row))
        except Exception as error:
            _with_row(error, row)
            raise
        out.emit(batch_of(results, self._schema))


class FlatMapOperator(Operator):
    """One row in, any number of rows out, in order."""

    def __init__(self, function: Callable[[Row], Iterable[Mapping[str, Any]]], schema: pa.Schema) -> None:
        self._function, self._schema = function, schema

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        function, row = self._function, {}
        results: list[Mapping[str, Any]] = []
        try:
            for row in rows_of(batch):
                result = function(row)
                results.extend(result if type(result) in _SEVERAL else _checked(result))
        except Exception as error:
            _with_row(error, row)
            raise
        if results:
            out.emit(batch_of(results, self._schema))


def _checked(result: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """A dict is iterable too, and None is the common slip: both deserve a word."""
    if isinstance(result, Mapping) or not isinstance(result, Iterable):
        raise SchemaMismatch(
            f"flat_map must return an iterable of dicts, but returned {type(result).__name__} {_shown(result)}: "
            "return a list (empty to emit nothing), or use yield; for exactly one row use map"
        )
    return result
