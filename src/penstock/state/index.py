"""The index of a columnar state: which slot of the state's arrays belongs to which key.

Slots are given out in the order in which keys first occur, one after another, and never change. An index notes which
slots are found between two calls of `take_touched`: each once, when it is first found. Two forms with the same
behaviour: a hash table over the keys' words for keys of plain numbers in large batches, and a Python dict for every
other key and for small batches. An index of the one form can be turned into the other at any time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import count
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from penstock.kernels.hashing import QUIET_NAN, fixed_width_values, read_only
from penstock.kernels.loading import compiled
from penstock.state.keys import Key, KeyColumns

Slots = npt.NDArray[np.int64]

_INITIAL_KEYS = 1024
_MAX_STAMP = np.iinfo(np.int32).max


class KeyIndex(Protocol):
    def find(self, columns: list[pa.Array]) -> tuple[Slots, Slots]:
        """The slot of every row's key, new slots for new keys; and the rows in which each key of these occurs first."""
        ...

    def look_up(self, columns: list[pa.Array]) -> Slots:
        """The slot of every row's key, -1 where it is not known."""
        ...

    def captured(self) -> Callable[[Slots | None], list[pa.Array]]:
        """The key columns of all slots as they are now, or of some of them; to be called later, on any thread."""
        ...

    def expect(self, keys: int) -> None:
        """So many keys will come: room for all of them is made at once, instead of again and again as they come."""
        ...

    def take_touched(self) -> Slots:
        """The slots that were found or made since the last call, each once."""
        ...

    def __len__(self) -> int: ...


class DictIndex:
    """For keys of any type."""

    def __init__(self, keys: KeyColumns) -> None:
        self._columns = keys
        self._slots: defaultdict[Key, int] = defaultdict(count().__next__)
        self._keys: list[Key] = []
        """By slot. Only ever appended to, so that a snapshot needs no copy."""
        self._untouched = np.ones(_INITIAL_KEYS, np.bool_)
        """By slot."""
        self._touched: list[Slots] = []

    def find(self, columns: list[pa.Array]) -> tuple[Slots, Slots]:
        keys = self._columns.from_arrow(columns)
        known = len(self._keys)
        slots = np.fromiter(map(self._slots.__getitem__, keys), np.int64, len(keys))
        _, first_rows = np.unique(slots, return_index=True)
        first_rows.sort()
        found = slots[first_rows]
        self._keys.extend(keys[row] for row in first_rows[found >= known].tolist())
        if len(self._keys) > len(self._untouched):
            self._untouched = _grown(self._untouched, 2 * len(self._keys), 1)
        self._touched.append(found[self._untouched[found]])
        self._untouched[found] = False
        return slots, first_rows

    def look_up(self, columns: list[pa.Array]) -> Slots:
        known, keys = self._slots, self._columns.from_arrow(columns)
        return np.fromiter((known.get(key, -1) for key in keys), np.int64, len(keys))

    def captured(self) -> Callable[[Slots | None], list[pa.Array]]:
        keys, length = self._keys, len(self._keys)

        def columns(slots: Slots | None) -> list[pa.Array]:
            return self._columns.to_arrow(keys[:length] if slots is None else [keys[slot] for slot in slots.tolist()])

        return columns

    def expect(self, keys: int) -> None:
        """A dict grows by itself."""

    def take_touched(self) -> Slots:
        touched, self._touched = _joined(self._touched), []
        self._untouched[touched] = True
        return touched

    def __len__(self) -> int:
        return len(self._keys)


class HashIndex:
    """For keys of numbers without nulls."""

    def __init__(self, keys: KeyColumns, kernels: ModuleType) -> None:
        self._types, self._kernels = keys.types, kernels
        self._count = 0
        self._stamp = 0
        """Of the last call of `find`."""
        self._since = 0
        """Of the last call of `find` before the slots that were touched were taken."""
        self._touched: list[Slots] = []
        self._keys = np.empty((_INITIAL_KEYS, len(keys.types)), np.uint64)
        """By slot. Rows that are in use never change, so that a snapshot needs no copy."""
        self._stamps = np.zeros(_INITIAL_KEYS, np.int32)
        self._table = np.zeros((2 * _INITIAL_KEYS, 2), np.uint64)

    @staticmethod
    def takes(columns: list[pa.Array]) -> bool:
        return all(_is_number(column.type) and column.null_count == 0 for column in columns)

    def find(self, columns: list[pa.Array]) -> tuple[Slots, Slots]:
        matrix = _matrix(columns)
        self._reserve(self._count + len(matrix))
        if self._stamp == _MAX_STAMP:
            self._begin_stamps_anew()
        self._stamp += 1
        slots, first_rows, touched, self._count = self._kernels.find_or_insert(
            self._table, self._keys, self._stamps, np.int32(self._stamp), np.int32(self._since), self._count, matrix
        )
        self._touched.append(touched)
        return slots, first_rows

    def _begin_stamps_anew(self) -> None:
        touched = _joined(self._touched)
        self._stamps[:] = 0
        self._stamps[touched] = 1
        self._stamp, self._since, self._touched = 1, 0, [touched]

    def look_up(self, columns: list[pa.Array]) -> Slots:
        known = [column.null_count == 0 for column in columns]
        if not all(known):
            return self._look_up_valid(columns)
        return self._kernels.look_up(self._table, self._keys, _matrix(columns))

    def _look_up_valid(self, columns: list[pa.Array]) -> Slots:
        """A key with a null is not here."""
        valid = np.logical_and.reduce([column.is_valid().to_numpy(zero_copy_only=False) for column in columns])
        slots = np.full(len(valid), -1, np.int64)
        slots[valid] = self.look_up([column.filter(pa.array(valid)) for column in columns])
        return slots

    def captured(self) -> Callable[[Slots | None], list[pa.Array]]:
        keys = self._keys[: self._count]

        def columns(slots: Slots | None) -> list[pa.Array]:
            chosen = keys if slots is None else keys[slots]
            return [_column(np.ascontiguousarray(chosen[:, place]), kind) for place, kind in enumerate(self._types)]

        return columns

    def expect(self, keys: int) -> None:
        self._reserve(keys)

    def take_touched(self) -> Slots:
        touched, self._touched, self._since = _joined(self._touched), [], self._stamp
        return touched

    def __len__(self) -> int:
        return self._count

    def _reserve(self, keys: int) -> None:
        capacity = len(self._keys)
        if keys > capacity:
            while capacity < keys:
                capacity *= 2
            self._keys = _grown(self._keys, capacity)
            self._stamps = _grown(self._stamps, capacity)
        if 2 * keys > len(self._table):
            table = np.zeros((2 * capacity, 2), np.uint64)
            self._kernels.rehash(self._table, table)
            self._table = table


def suited_index(index: KeyIndex, keys: KeyColumns, columns: list[pa.Array]) -> KeyIndex:
    """The index to use for a batch with these key columns: the same, or one of the other form with the same keys.

    A dict is used until the first batch that is worth loading the compiled kernels; a key that holds a null brings it
    back for good.
    """
    if isinstance(index, HashIndex):
        if HashIndex.takes(columns):
            return index
        return _refilled(DictIndex(keys), index)
    kernels = compiled(len(columns[0]))
    if kernels is None or not HashIndex.takes(columns):
        return index
    known = index.captured()(None)
    if not HashIndex.takes(known):
        return index
    return _refilled(HashIndex(keys, kernels), index)


def _refilled(index: KeyIndex, other: KeyIndex) -> KeyIndex:
    """With the same slots, and the same of them touched."""
    if len(other):
        index.find(other.captured()(None))
        index.take_touched()
        touched = other.take_touched()
        if len(touched):
            index.find([column.take(pa.array(touched)) for column in other.captured()(None)])
    return index


def _is_number(kind: pa.DataType) -> bool:
    return bool(pat.is_integer(kind) or pat.is_floating(kind) or (pat.is_temporal(kind) and not pat.is_interval(kind)))


def storage_dtype(kind: pa.DataType) -> np.dtype[Any]:
    """How the values of a type of numbers (dates and times included) lie in memory."""
    if pat.is_floating(kind):
        return np.dtype(f"f{kind.bit_width // 8}")
    return np.dtype(f"{'u' if pat.is_unsigned_integer(kind) else 'i'}{kind.bit_width // 8}")


def _matrix(columns: list[pa.Array]) -> npt.NDArray[np.uint64]:
    words = [_words(column) for column in columns]
    return read_only(words[0].reshape(-1, 1) if len(words) == 1 else np.stack(words, axis=1))


def _words(column: pa.Array) -> npt.NDArray[np.uint64]:
    values = fixed_width_values(column, storage_dtype(column.type).str)
    if values.dtype.kind != "f":
        return values.astype(np.int64, copy=False).view(np.uint64)
    with np.errstate(invalid="ignore"):
        wide = values.astype(np.float64) + 0.0
    words = wide.view(np.uint64)
    words[np.isnan(wide)] = QUIET_NAN
    return words


def _column(words: npt.NDArray[np.uint64], kind: pa.DataType) -> pa.Array:
    if pat.is_floating(kind):
        return pa.array(words.view(np.float64).astype(storage_dtype(kind), copy=False))
    return pa.array(words.view(np.int64).astype(storage_dtype(kind), copy=False)).view(kind)


def _grown(array: npt.NDArray[Any], length: int, new: int = 0) -> npt.NDArray[Any]:
    make = np.ones if new else np.zeros
    grown = make((length, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown


def _joined(slots: list[Slots]) -> Slots:
    return np.concatenate(slots) if slots else np.empty(0, np.int64)
