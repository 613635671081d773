"""Keys as Python values: what the hash maps of keyed state are indexed by.

A key is a plain hashable value, a tuple of them for several columns. It is *raw* where that is faster or more exact:
times and dates are their whole numbers, so that nanoseconds survive; equal keys are equal values, so both zeros are one
key and all NaNs are one object. `shown` gives the value that a user expects to see.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from penstock.kernels.hashing import hash_columns, supports

Key = Hashable

KEY_PREFIX = "key."
"""Of the key's columns in files."""

_NAN = math.nan
_RUN = 8192


class KeyColumns:
    """The columns of a stream that make up its key."""

    def __init__(self, schema: pa.Schema, names: Sequence[str]) -> None:
        if not names:
            raise ValueError("a key needs at least one column")
        for name in names:
            if schema.get_field_index(name) < 0:
                raise ValueError(f"the key column {name!r} is not in the stream, which has {schema.names}")
            if not supports(schema.field(name).type):
                raise TypeError(f"the column {name!r} of type {schema.field(name).type} cannot be part of a key")
        self.names = tuple(names)
        self.types = tuple(_decoded_type(schema.field(name).type) for name in names)
        self.file_fields = [
            pa.field(KEY_PREFIX + name, kind) for name, kind in zip(self.names, self.types, strict=True)
        ]

    def of(self, batch: pa.RecordBatch) -> list[Key]:
        """The key of every row."""
        return self.from_arrow([batch.column(name) for name in self.names])

    def from_arrow(self, columns: Iterable[pa.Array]) -> list[Key]:
        values = [_raw_values(column, kind) for column, kind in zip(columns, self.types, strict=True)]
        return values[0] if len(values) == 1 else list(zip(*values, strict=True))

    def to_arrow(self, keys: Sequence[Key]) -> list[pa.Array]:
        """The columns of keys; the inverse of `from_arrow`. In runs, not to hold the interpreter's lock for long."""
        runs = [self._run_to_arrow(keys[start : start + _RUN]) for start in range(0, len(keys), _RUN)]
        if not runs:
            return [pa.array([], kind) for kind in self.types]
        return [pa.concat_arrays(columns) for columns in zip(*runs, strict=True)]

    def _run_to_arrow(self, keys: Sequence[Any]) -> list[pa.Array]:
        columns: Iterable[Sequence[Any]] = [keys] if len(self.types) == 1 else zip(*keys, strict=True)
        return [_from_raw(values, kind) for values, kind in zip(columns, self.types, strict=True)]

    def hashes(self, columns: list[pa.Array]) -> npt.NDArray[np.uint64]:
        """Of every row of key columns."""
        return hash_columns(columns)

    def shown(self, key: Key) -> Any:
        """The key as a user's function sees it: dates and times as such, a tuple where there are several columns."""
        values = [column[0].as_py() for column in self._run_to_arrow([key])]
        return values[0] if len(values) == 1 else tuple(values)

    @property
    def shows_raw(self) -> bool:
        """Whether `shown` changes nothing."""
        return not any(map(_is_temporal, self.types))


def _decoded_type(kind: pa.DataType) -> pa.DataType:
    return _decoded_type(kind.value_type) if pat.is_dictionary(kind) else kind


def _is_temporal(kind: pa.DataType) -> bool:
    return bool(pat.is_temporal(kind))


def _storage_type(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def _raw_values(column: pa.Array, kind: pa.DataType) -> list[Any]:
    if pat.is_dictionary(column.type):
        column = column.dictionary_decode()
    if _is_temporal(kind):
        return column.view(_storage_type(kind)).to_pylist()
    if pat.is_floating(kind):
        return [value if value is None or value == value else _NAN for value in column.to_pylist()]
    return column.to_pylist()


def _from_raw(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if _is_temporal(kind):
        return pa.array(values, _storage_type(kind)).view(kind)
    return pa.array(values, kind)
