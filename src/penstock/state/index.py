"""The index of a columnar state: which slot of the state's arrays belongs to which key.

Slots are given out in the order in which keys first occur, one after another, and never change. Two forms with the same
behaviour: a hash table over the keys' words for keys of plain numbers in large batches, and a Python dict for every
other key and for small batches. An index of the one form can be turned into the other at any time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment in the life of an index."""

    era: object
    """Stamps of different eras cannot be compared: those of different indexes, or before and after they began anew."""
    stamp: int


class KeyIndex(Protocol):
    def find(self, columns: list[pa.Array]) -> tuple[Slots, Slots]:
        """The slot of every row's key, new slots for new keys; and the rows in which each key of these occurs first."""
        ...

    def captured(self) -> Callable[[Slots | None], list[pa.Array]]:
        """The key columns of all slots as they are now, or of some of them; to be called later, on any thread."""
        ...

    def expect(self, keys: int) -> None:
        """So many keys will come: room for all of them is made at once, instead of again and again as they come."""
        ...

    def mark(self) -> Mark:
        """Now, after the last call of `find`."""
        ...

    def found_since(self, mark: Mark) -> Slots | None:
        """The slots that were found or made after the mark, in rising order; None if that cannot be told any more."""
        ...

    def __len__(self) -> int: ...


class DictIndex:
    """For keys of any type."""

    def __init__(self, keys: KeyColumns) -> None:
        self._columns = keys
        self._slots: defaultdict[Key, int] = defaultdict(count().__next__)
        self._keys: list[Key] = []
        """By slot. Only ever appended to, so that a snapshot needs no copy."""
        self._mark = Mark(object(), 0)
        self._stamps = np.zeros(_INITIAL_KEYS, np.int64)
        """By slot: which call of `find` found it last."""

    def find(self, columns: list[pa.Array]) -> tuple[Slots, Slots]:
        keys = self._columns.from_arrow(columns)
        known = len(self._keys)
        slots = np.fromiter(map(self._slots.__getitem__, keys), np.int64, len(keys))
        _, first_rows = np.unique(slots, return_index=True)
        first_rows.sort()
        found = slots[first_rows]
        self._keys.extend(keys[row] for row in first_rows[found >= known].tolist())
        if len(self._keys) > len(self._stamps):
            self._stamps = _grown(self._stamps, 2 * len(self._keys))
        self._mark = replace(self._mark, stamp=self._mark.stamp + 1)
        self._stamps[found] = self._mark.stamp
        return slots, first_rows

    def captured(self) -> Callable[[Slots | None], list[pa.Array]]:
        keys, length = self._keys, len(self._keys)

        def columns(slots: Slots | None) -> list[pa.Array]:
            return self._columns.to_arrow(keys[:length] if slots is None else [keys[slot] for slot in slots.tolist()])

        return columns

    def expect(self, keys: int) -> None:
        """A dict grows by itself."""

    def mark(self) -> Mark:
        return self._mark

    def found_since(self, mark: Mark) -> Slots | None:
        same_era = mark.era is self._mark.era
        return np.flatnonzero(self._stamps[: len(self._keys)] > mark.stamp) if same_era else None

    def __len__(self) -> int:
        return len(self._keys)


class HashIndex:
    """For keys of numbers without nulls."""

    def __init__(self, keys: KeyColumns, kernels: ModuleType) -> None:
        self._types, self._kernels = keys.types, kernels
        self._count = 0
        self._stamp = 0
        self._era = object()
        self._keys = np.empty((_INITIAL_KEYS, len(keys.types)), np.uint64)
        """By slot. Rows that are in use never change, so that a snapshot needs no copy."""
        self._stamps = np.zeros(_INITIAL_KEYS, np.int32)
        self._table = np.zeros((2 * _INITIAL_KEYS, 2), np.uint64)

    @staticmethod
    def takes(columns: list[pa.Array]) -> bool:
        return all(_is_number(column.type) and column.null_count == 0 for column in columns)

    def find(self, columns: list[pa.Array]) -> tuple[Slots, Slots]:
        words = [_words(column) for column in columns]
        matrix = read_only(words[0].reshape(-1, 1) if len(words) == 1 else np.stack(words, axis=1))
        self._reserve(self._count + len(matrix))
        if self._stamp == _MAX_STAMP:
            self._stamps[:] = 0
            self._stamp, self._era = 0, object()
        self._stamp += 1
        slots, first_rows, self._count = self._kernels.find_or_insert(
            self._table, self._keys, self._stamps, np.int32(self._stamp), self._count, matrix
        )
        return slots, first_rows

    def captured(self) -> Callable[[Slots | None], list[pa.Array]]:
        keys = self._keys[: self._count]

        def columns(slots: Slots | None) -> list[pa.Array]:
            chosen = keys if slots is None else keys[slots]
            return [_column(np.ascontiguousarray(chosen[:, place]), kind) for place, kind in enumerate(self._types)]

        return columns

    def expect(self, keys: int) -> None:
        self._reserve(keys)

    def mark(self) -> Mark:
        return Mark(self._era, self._stamp)

    def found_since(self, mark: Mark) -> Slots | None:
        if mark.era is not self._era:
            return None
        return np.flatnonzero(self._stamps[: self._count] > np.int32(mark.stamp))

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
    if len(other):
        index.find(other.captured()(None))
    return index


def _is_number(kind: pa.DataType) -> bool:
    return bool(pat.is_integer(kind) or pat.is_floating(kind) or (pat.is_temporal(kind) and not pat.is_interval(kind)))


def storage_dtype(kind: pa.DataType) -> np.dtype[Any]:
    """How the values of a type of numbers (dates and times included) lie in memory."""
    if pat.is_floating(kind):
        return np.dtype(f"f{kind.bit_width // 8}")
    return np.dtype(f"{'u' if pat.is_unsigned_integer(kind) else 'i'}{kind.bit_width // 8}")


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


def _grown(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    grown = np.zeros((length, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown
