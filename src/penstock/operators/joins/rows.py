"""The rows that one side of a join keeps, in columns: found by key, added and removed one by one.

Theory of operation. Every row has a place: its columns are a row of a pile, and what is kept of it as a number (its
time, for example) is in arrays by place. Rows of a key are linked (`kernels.joining`). A removed row leaves its place
empty; when more places are empty than not, the rest is moved together. What identifies a row for longer than that is
its *number*: numbers rise with the places and are never used twice.

The compiled kernels are used from the first row on: a join is never so small that a second form of them would be worth
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.aggregation.accumulator import INITIAL_SLOTS, grown
from penstock.operators.aggregation.pile import Pile
from penstock.operators.joins.keys import JoinKeys
from penstock.state.captures import Captures

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NONE: Final[Numbers] = np.empty(0, np.int64)
_SPARE_PLACES: Final = 4096
"""So many empty places are not worth moving the others."""
_MOVED_AT_ONCE: Final = 1 << 18


class RowStore:
    """`kept` names what is kept of every row as a number."""

    def __init__(self, keys: JoinKeys, columns: pa.Schema, kept: Sequence[str]) -> None:
        self._keys, self._columns = keys, columns
        self._first, self._last = np.full(INITIAL_SLOTS, -1, np.int64), np.full(INITIAL_SLOTS, -1, np.int64)
        self._counts = np.zeros(INITIAL_SLOTS, np.int64)
        """These by key."""
        self._owner, self._number, self._following, self._previous = (
            np.empty(INITIAL_SLOTS, np.int64) for _ in range(4)
        )
        self._there = np.zeros(INITIAL_SLOTS, np.bool_)
        self._kept = {name: np.zeros(INITIAL_SLOTS, np.int64) for name in kept}
        """These by place."""
        self._used = self._gone = self._head = 0
        """Places in use; those of removed rows; before which there are only such."""
        self._next_number = 0
        self._pile = self._new_pile()
        self._captures = Captures()

    def _new_pile(self) -> Pile | None:
        return Pile(self._columns.types) if len(self._columns) else None

    def __len__(self) -> int:
        return self._used - self._gone

    # ---- changes ----
    def add(self, keys: Numbers, columns: Sequence[pa.Array], kept: Mapping[str, Numbers | int]) -> Numbers:
        """The numbers of the added rows."""
        from penstock.kernels import joining

        begin, end = self._used, self._used + len(keys)
        self._owner, self._number, self._following, self._previous = (
            grown(array, end, 0) for array in (self._owner, self._number, self._following, self._previous)
        )
        self._there = grown(self._there, end, 0)
        self._kept = {name: grown(array, end, 0) for name, array in self._kept.items()}
        numbers = np.arange(self._next_number, self._next_number + len(keys))
        self._owner[begin:end], self._number[begin:end], self._there[begin:end] = keys, numbers, True
        for name, array in self._kept.items():
            array[begin:end] = kept[name]
        if self._pile is not None:
            self._pile.add(columns)
        self._used, self._next_number = end, self._next_number + len(keys)
        self._make_room()
        joining.append(self._first, self._last, self._counts, self._following, self._previous, keys, begin)
        return numbers

    def _make_room(self) -> None:
        keys = len(self._keys)
        self._first, self._last = grown(self._first, keys, -1), grown(self._last, keys, -1)
        self._counts = grown(self._counts, keys, 0)

    def remove(self, rows: Numbers) -> None:
        from penstock.kernels import joining

        if len(rows):
            joining.unlink(self._first, self._last, self._counts, self._following, self._previous, self._owner, rows)
            self._there[rows] = False
            self._gone += len(rows)

    def change(self, name: str, rows: Numbers, value: int) -> None:
        """Keeps another number of these rows."""
        if self._captures:
            self._captures.keep(rows)
        self._kept[name][rows] = value

    def tidy(self) -> None:
        """Moves rows together if many places are empty. Rows that were asked for before are others then."""
        if 2 * self._gone <= self._used + _SPARE_PLACES:
            return
        rows = self.rows()
        places = np.full(self._used + 1, -1, np.int64)  # the last one stands for none
        places[rows] = np.arange(len(rows))
        self._first, self._last = places[self._first], places[self._last]
        self._following, self._previous = places[self._following[rows]], places[self._previous[rows]]
        self._owner, self._number, self._there = self._owner[rows], self._number[rows], self._there[rows]
        self._kept = {name: array[rows] for name, array in self._kept.items()}
        if self._pile is not None:
            former, self._pile = self._pile, Pile(self._columns.types)
            for begin in range(0, len(rows), _MOVED_AT_ONCE):
                self._pile.add(former.take(rows[begin : begin + _MOVED_AT_ONCE]))
        self._used, self._gone, self._head = len(rows), 0, 0
        self._captures = Captures()
        self._reserve()

    def _reserve(self) -> None:
        """Arrays grow by doubling, so none may be empty."""
        if not self._used:
            self._owner, self._number, self._following, self._previous = (
                np.empty(INITIAL_SLOTS, np.int64) for _ in range(4)
            )
            self._there = np.zeros(INITIAL_SLOTS, np.bool_)
            self._kept = {name: np.zeros(INITIAL_SLOTS, np.int64) for name in self._kept}

    def rename(self, slots: Numbers, places: Numbers) -> None:
        """Keys have other slots: these are left, in this order; `places` has the new one of each former slot."""
        self._make_room()
        self._first, self._last, self._counts = self._first[slots], self._last[slots], self._counts[slots]
        if not len(slots):
            self._first, self._last = np.full(INITIAL_SLOTS, -1, np.int64), np.full(INITIAL_SLOTS, -1, np.int64)
            self._counts = np.zeros(INITIAL_SLOTS, np.int64)
        owner = self._owner.copy()
        rows = self.rows()
        owner[rows] = places[owner[rows]]
        self._owner = owner

    # ---- questions ----
    def kept(self, name: str, rows: Numbers) -> Numbers:
        return self._kept[name][rows]

    def take(self, rows: Numbers) -> list[pa.Array]:
        """The columns of some rows; null for one below 0."""
        return [] if self._pile is None else self._pile.take(rows)

    def owners(self, rows: Numbers) -> Numbers:
        return self._owner[rows]

    def numbers(self, rows: Numbers) -> Numbers:
        return self._number[rows]

    def counts(self, keys: Numbers) -> Numbers:
        """How many rows each key has."""
        self._make_room()
        return self._counts[keys]

    def rows(self) -> Numbers:
        """All of them."""
        return np.flatnonzero(self._there[: self._used])

    def rows_up_to(self, name: str, limit: int) -> Numbers:
        """The first rows, as long as what is kept of them is not above the limit; it must rise with the places. Those
        that were given once are expected to be removed then."""
        end = int(np.searchsorted(self._kept[name][: self._used], limit, side="right"))
        begin, self._head = self._head, max(end, self._head)
        return np.flatnonzero(self._there[begin:end]) + begin

    def first_row(self) -> int | None:
        """The first one that `rows_up_to` has not given."""
        return self._head if self._head < self._used else None

    def numbered(self, numbers: Numbers) -> Numbers:
        """The rows with these numbers, as far as they are still there."""
        if not self._used:
            return NONE
        rows = np.minimum(np.searchsorted(self._number[: self._used], numbers), self._used - 1)
        found: Numbers = rows[self._there[rows] & (self._number[rows] == numbers)]
        return found

    def of(self, keys: Numbers) -> tuple[Numbers, Numbers]:
        """All rows of each of these keys: which of the keys, and the row."""
        from penstock.kernels import joining

        self._make_room()
        found: tuple[Numbers, Numbers] = joining.matches(self._first, self._counts, self._following, keys)
        return found

    def between(self, keys: Numbers, lows: Numbers, highs: Numbers) -> tuple[Numbers, Numbers]:
        """The same, of rows whose `time` is between bounds, both included."""
        from penstock.kernels import joining

        self._make_room()
        found: tuple[Numbers, Numbers] = joining.matches_between(
            self._first, self._following, self._kept["time"], keys, lows, highs
        )
        return found

    def newest(self, keys: Numbers, limits: Numbers) -> Numbers:
        """Of each of these keys the row of the highest `time` up to its limit, the last one of equals; -1 for none."""
        from penstock.kernels import joining

        self._make_room()
        found: Numbers = joining.newest(self._first, self._following, self._kept["time"], keys, limits)
        return found

    def hashed(self, keys: Numbers, hashes: Numbers) -> tuple[Numbers, Mask]:
        """For each of these keys a row with that `hash`, none of them twice, -1 for none; and which rows are taken."""
        from penstock.kernels import joining

        self._make_room()
        taken = np.zeros(self._used, np.bool_)
        found: Numbers = joining.equal(self._first, self._following, self._kept["hash"], keys, hashes, taken)
        return found, taken
