"""Keys as words of 64 bits and tails of bytes: what a compiled table is indexed by (see `kernels.table`).

Every key column has its words: a number, date, time or truth value one, a decimal two or four, a string or binary its
length. The bytes of all strings and binaries of a key, one after another, are its tail. Where none has more than 15
bytes, they are two words each, and no key has a tail: one access to memory less for every lookup. Where keys hold
nulls, a last word says which columns are null, and what they have besides is zero. Equal keys have equal words and
tails, so both zeros are one key and so are all NaNs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from penstock.kernels.hashing import (
    fixed_width_values,
    float_words,
    is_bytes,
    offsets_and_bytes,
    read_only,
    storage_dtype,
    valid_rows,
)

Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

_SHORT = 15
"""Bytes of a string that is two words, with one for its length."""
NO_BYTES: Bytes = read_only(np.empty(0, np.uint8))


@dataclass(frozen=True)
class Encoded:
    """Some keys. `words` has a row for each word; `offsets` are those of the tails in `data`."""

    words: Words
    offsets: Offsets | None = None
    data: Bytes = field(default_factory=lambda: NO_BYTES)

    def tail(self, row: int) -> bytes:
        return b"" if self.offsets is None else self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()


class KeyWords:
    """`nulls`: whether keys may hold nulls, which takes a word more. `short`: no string or binary is long."""

    def __init__(self, types: Sequence[pa.DataType], *, nulls: bool, short: bool = False) -> None:
        self._types, self.nulls, self._short = tuple(types), nulls, short
        self._widths = [2 if short and is_bytes(kind) else _width(kind) for kind in types]
        self.width = sum(self._widths) + nulls
        self.tailed = not short and any(map(is_bytes, types))

    def takes(self, columns: Sequence[pa.Array]) -> bool:
        return (self.nulls or not any(map(has_nulls, columns))) and not (self._short and any(map(has_long, columns)))

    def takes_rows(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        """Of which rows it takes the key."""
        taken = np.ones(len(columns[0]), np.bool_)
        for column in map(_decoded, columns):
            if not self.nulls:
                taken &= valid_rows(column)
            if self._short and is_bytes(column.type):
                taken &= np.diff(offsets_and_bytes(_emptied(column))[0]) <= _SHORT
        return taken

    # ---- to words ----
    def encode(self, columns: Sequence[pa.Array]) -> Encoded:
        columns = [_decoded(column) for column in columns]
        words: list[Words] = []
        tails: list[pa.Array] = []
        for column in columns:
            if is_bytes(column.type):
                column = _emptied(column)
                if self._short:
                    words.append(_packed(column))
                    continue
                tails.append(column)
            words.extend(word.reshape(1, -1) for word in _words_of(column))
        if self.nulls:
            words.append(_null_word(columns).reshape(1, -1))
        matrix = words[0] if len(words) == 1 else np.concatenate(words)
        if not tails:
            return Encoded(read_only(matrix))
        offsets, data = offsets_and_bytes(tails[0] if len(tails) == 1 else _joined(tails))
        return Encoded(read_only(matrix), read_only(offsets), read_only(data))

    # ---- and back ----
    def decode(self, words: Words, gather: Any, starts: Words | None) -> list[pa.Array]:
        """The columns of keys, given their words (a row for each) and where in the arena their tails begin.
        `gather(starts, offsets)` gives bytes out of it."""
        columns: list[pa.Array] = []
        place = 0
        begin = None if starts is None else starts.astype(np.int64)
        for number, (kind, width) in enumerate(zip(self._types, self._widths, strict=True)):
            own = words[place : place + width]
            place += width
            if is_bytes(kind) and self._short:
                column = _unpacked(own, kind)
            elif is_bytes(kind):
                assert begin is not None
                lengths = own[0].view(np.int64)
                offsets = np.zeros(len(lengths) + 1, np.int64)
                np.cumsum(lengths, out=offsets[1:])
                column = _bytes_column(kind, offsets, gather(read_only(begin), read_only(offsets)))
                begin = begin + lengths
            else:
                column = _column(own, kind)
            columns.append(self._with_nulls(column, words[-1], number))
        return columns

    def _with_nulls(self, column: pa.Array, null_word: Words, place: int) -> pa.Array:
        if not self.nulls:
            return column
        valid = (null_word >> np.uint64(place)) & np.uint64(1) == 0
        return column if valid.all() else pc.if_else(pa.array(valid), column, pa.scalar(None, column.type))


def has_nulls(column: pa.Array) -> bool:
    """Whether a value is null, in the column or in the dictionary that it refers to."""
    if pat.is_dictionary(column.type) and column.dictionary.null_count:
        return True
    return bool(column.null_count) or pat.is_null(column.type)


def has_long(column: pa.Array) -> bool:
    """Whether a value is a string or binary that does not fit into two words."""
    kind = column.type
    if pat.is_dictionary(kind):
        return has_long(column.dictionary)
    if not is_bytes(kind):
        return False
    if pat.is_fixed_size_binary(kind):
        return bool(kind.byte_width > _SHORT)
    return bool(_kernels().longest(read_only(offsets_and_bytes(_emptied(column))[0])) > _SHORT)


def _packed(column: pa.Array) -> Words:
    offsets, data = offsets_and_bytes(column)
    words: Words = _kernels().pack(read_only(offsets), read_only(data))
    return words


def _unpacked(words: Words, kind: pa.DataType) -> pa.Array:
    low, high = (read_only(np.ascontiguousarray(word)) for word in words)
    return _bytes_column(kind, *_kernels().unpack(low, high))


def _kernels() -> ModuleType:
    from penstock.kernels import compiled  # words are for compiled tables, so it is loaded

    return compiled


def _width(kind: pa.DataType) -> int:
    if pat.is_null(kind):
        return 0
    return kind.bit_width // 64 if pat.is_decimal(kind) and kind.bit_width > 64 else 1


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pat.is_dictionary(column.type) else column


def _null_word(columns: Sequence[pa.Array]) -> Words:
    """A bit for each column, set where it is null."""
    word = np.zeros(len(columns[0]), np.uint64)
    for place, column in enumerate(columns):
        if column.null_count:
            word |= np.where(valid_rows(column), np.uint64(0), np.uint64(1 << place))
    return word


def _emptied(column: pa.Array) -> pa.Array:
    """A column of bytes with empty ones, or zeros, in place of nulls."""
    if not column.null_count:
        return column
    length = column.type.byte_width if pat.is_fixed_size_binary(column.type) else 0
    return column.fill_null(pa.scalar(bytes(length), pa.binary()).cast(column.type))


def _words_of(column: pa.Array) -> list[Words]:
    if is_bytes(column.type):
        return [np.diff(offsets_and_bytes(column)[0]).view(np.uint64)]
    words = _number_words(column)
    if not column.null_count:
        return words
    valid = valid_rows(column)
    return [np.where(valid, word, np.uint64(0)) for word in words]


def _number_words(column: pa.Array) -> list[Words]:
    """What lies under a null is arbitrary."""
    kind = column.type
    if pat.is_null(kind):
        return []
    if pat.is_boolean(kind):
        return [fixed_width_values(column.cast(pa.uint8()), "u1").astype(np.uint64)]
    if pat.is_floating(kind):
        return [float_words(fixed_width_values(column, storage_dtype(kind).str))]
    if _width(kind) > 1:
        values = fixed_width_values(column, f"V{kind.bit_width // 8}")
        return list(values.view(np.uint64).reshape(len(column), -1).T)
    return [fixed_width_values(column, storage_dtype(kind).str).astype(np.int64, copy=False).view(np.uint64)]


def _joined(tails: Sequence[pa.Array]) -> pa.Array:
    """The bytes of several columns, row by row."""
    plain = [column.cast(pa.binary()).cast(pa.large_binary()) for column in tails]
    return pc.binary_join_element_wise(*plain, pa.scalar(b"", pa.large_binary()))


def _bytes_column(kind: pa.DataType, offsets: Offsets, data: Bytes) -> pa.Array:
    rows = len(offsets) - 1
    if pat.is_string_view(kind) or pat.is_binary_view(kind):
        return _bytes_column(pa.large_binary(), offsets, data).cast(kind)
    if pat.is_fixed_size_binary(kind):
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)])
    wide = pat.is_large_string(kind) or pat.is_large_binary(kind)
    return pa.Array.from_buffers(
        kind, rows, [None, pa.py_buffer(offsets if wide else offsets.astype(np.int32)), pa.py_buffer(data)]
    )


def _column(words: Words, kind: pa.DataType) -> pa.Array:
    rows = words.shape[1]
    if pat.is_null(kind):
        return pa.nulls(rows)
    if pat.is_boolean(kind):
        return pa.array(words[0] != 0)
    if pat.is_floating(kind):
        return pa.array(words[0].view(np.float64).astype(storage_dtype(kind), copy=False))
    if len(words) > 1:
        buffer = pa.py_buffer(np.ascontiguousarray(words.T))
        return pa.Array.from_buffers(kind, rows, [None, buffer])
    values = words[0].view(np.int64).astype(storage_dtype(kind), copy=False)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values)])
