"""The values of an Arrow column as bytes, one by one, and back: what key-value stores hold.

A *cell* is the bytes of one value. Which form it has follows from the column's type alone:

    null of any type             no bytes at all
    booleans                     1 byte
    numbers, times, decimals     as in the column: little-endian, of the type's width
    strings, binaries            a 0, then the bytes
    structs                      MessagePack array of the fields' cells
    lists                        MessagePack array of the items' cells
    dictionary-encoded           that of the value
    everything else              an Arrow IPC record batch message of one row, without the schema

Whole columns are converted at a time: what is done for each value is as little as cutting bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

NULL = b""
_PRESENT = b"\0"

_packed = msgspec.msgpack.Encoder().encode
_unpacked = msgspec.msgpack.Decoder(list[bytes]).decode


class Cells(Protocol):
    """Between columns of one type and cells."""

    def dump(self, column: pa.Array) -> list[bytes]: ...

    def load(self, cells: Sequence[bytes]) -> pa.Array: ...


def cells_of(kind: pa.DataType) -> Cells:
    """How the values of columns of this type become cells."""
    if pat.is_boolean(kind):
        return _Cast(kind, pa.uint8())
    if pat.is_primitive(kind) or pat.is_decimal(kind) or pat.is_fixed_size_binary(kind):
        return _FixedWidth(kind)
    if any(test(kind) for test in (pat.is_string, pat.is_large_string, pat.is_binary, pat.is_large_binary)):
        return _Binary(kind)
    if pat.is_struct(kind):
        return _Struct(kind)
    if pat.is_list(kind) or pat.is_large_list(kind):
        return _List(kind)
    if pat.is_dictionary(kind):
        return _Cast(kind, kind.value_type)
    return _Message(kind)


class _FixedWidth:
    def __init__(self, kind: pa.DataType) -> None:
        self._type, self._width = kind, kind.bit_width // 8

    def dump(self, column: pa.Array) -> list[bytes]:
        width = self._width
        start = column.offset * width
        raw = bytes(memoryview(column.buffers()[1])[start : start + len(column) * width]) if len(column) else b""
        cells = [raw[at : at + width] for at in range(0, len(raw), width)]
        if column.null_count:
            for place in _nulls(column):
                cells[place] = NULL
        return cells

    def load(self, cells: Sequence[bytes]) -> pa.Array:
        validity = None
        if NULL in cells:
            validity = pa.array([cell != NULL for cell in cells]).buffers()[1]
            blank = bytes(self._width)
            cells = [cell or blank for cell in cells]
        return pa.Array.from_buffers(self._type, len(cells), [validity, pa.py_buffer(b"".join(cells))])


class _Binary:
    def __init__(self, kind: pa.DataType) -> None:
        self._type = kind

    def dump(self, column: pa.Array) -> list[bytes]:
        values = column.cast(pa.large_binary()).to_pylist()
        if column.null_count:
            return [NULL if value is None else _PRESENT + value for value in values]
        return [_PRESENT + value for value in values]

    def load(self, cells: Sequence[bytes]) -> pa.Array:
        return pa.array([cell[1:] if cell else None for cell in cells], pa.large_binary()).cast(self._type)


class _Struct:
    def __init__(self, kind: pa.DataType) -> None:
        self._fields = list(kind)
        self._cells = [cells_of(field.type) for field in self._fields]

    def dump(self, column: pa.Array) -> list[bytes]:
        parts = [cells.dump(part) for cells, part in zip(self._cells, column.flatten(), strict=True)]
        packed = [_packed(row) for row in zip(*parts, strict=True)] if parts else [_packed(())] * len(column)
        for place in _nulls(column):
            packed[place] = NULL
        return packed

    def load(self, cells: Sequence[bytes]) -> pa.Array:
        nothing = [NULL] * len(self._fields)
        rows = [_unpacked(cell) if cell else nothing for cell in cells]
        columns = [part.load([row[place] for row in rows]) for place, part in enumerate(self._cells)]
        mask = pa.array([not cell for cell in cells]) if NULL in cells else None
        if not columns:
            return pa.array([{} if cell else None for cell in cells], pa.struct(self._fields))
        return pa.StructArray.from_arrays(columns, fields=self._fields, mask=mask)


class _List:
    def __init__(self, kind: pa.DataType) -> None:
        self._type, self._items = kind, cells_of(kind.value_type)
        self._array = pa.LargeListArray if pat.is_large_list(kind) else pa.ListArray

    def dump(self, column: pa.Array) -> list[bytes]:
        # `flatten` leaves out what nulls refer to, so the lengths, not the offsets, say where a row's items are.
        items = self._items.dump(column.flatten())
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        ends = np.concatenate(([0], np.cumsum(lengths))).tolist()
        packed = [_packed(items[start:end]) for start, end in pairwise(ends)]
        for place in _nulls(column):
            packed[place] = NULL
        return packed

    def load(self, cells: Sequence[bytes]) -> pa.Array:
        rows: list[list[bytes]] = [_unpacked(cell) if cell else [] for cell in cells]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        items = self._items.load([item for row in rows for item in row])
        offset_type = pa.int64() if pat.is_large_list(self._type) else pa.int32()
        mask = pa.array([not cell for cell in cells]) if NULL in cells else None
        return self._array.from_arrays(pa.array(offsets, offset_type), items, type=self._type, mask=mask)


class _Cast:
    """Of a type whose values another type holds too."""

    def __init__(self, kind: pa.DataType, stored: pa.DataType) -> None:
        self._type, self._stored, self._cells = kind, stored, cells_of(stored)

    def dump(self, column: pa.Array) -> list[bytes]:
        return self._cells.dump(column.cast(self._stored))

    def load(self, cells: Sequence[bytes]) -> pa.Array:
        return self._cells.load(cells).cast(self._type)


class _Message:
    def __init__(self, kind: pa.DataType) -> None:
        self._schema = pa.schema([("value", kind)])

    def dump(self, column: pa.Array) -> list[bytes]:
        rows = [column.slice(place, 1) for place in range(len(column))]
        batches = [pa.RecordBatch.from_arrays([row], schema=self._schema) for row in rows]
        return [batch.serialize().to_pybytes() for batch in batches]

    def load(self, cells: Sequence[bytes]) -> pa.Array:
        rows: list[Any] = [pa.ipc.read_record_batch(pa.py_buffer(cell), self._schema).column(0) for cell in cells]
        return pa.concat_arrays(rows) if rows else pa.array([], self._schema.field(0).type)


def _nulls(column: pa.Array) -> list[int]:
    return np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist() if column.null_count else []
