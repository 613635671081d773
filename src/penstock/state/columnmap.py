"""The entries of a keyed state of a flat type, in columns: a key's slot in a compiled index, its value in arrays.

Theory of operation. A hash map of Python objects is quick to look at, but slow to store: every value has to be turned
into columns for every capture, under the interpreter's lock, and the function waits meanwhile. Here values are columns
all the time (`flat`), and captures are those of a table of slots (`slottable`). What makes that affordable is that the
keys of a batch come all at once: their values are read in bulk before the function is called (`read`, or `prefetch`),
and those that have changed are written in bulk afterwards (`write`, or `write_back`). In between they are plain Python
values. Between batches everything is in the table.

Keys that are looked up and have no value take no slot. A key that is removed keeps its slot, marked as absent, because
the changes since a cut have to name it. When most slots are absent and no capture will ask for them, the others move to
a new table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from itertools import compress, repeat
from operator import is_
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.ids import Cut
from penstock.kernels.gathering import taken
from penstock.state.errors import UnstorableValue
from penstock.state.flat import FlatValues
from penstock.state.index import Slots
from penstock.state.keys import KeyColumns
from penstock.state.layers import REMOVED, Layer
from penstock.state.slottable import Section, SlotTable
from penstock.state.tables import REMOVED_COLUMN
from penstock.state.touched import Numbers

LEAST_ABSENT: Final = 4096
"""Fewer absent slots are never worth moving the others."""

Explain = Callable[[UnstorableValue, Sequence[Hashable], Sequence[Any]], UnstorableValue]
"""The error with the key that it came from, given all keys and values."""
Mask = npt.NDArray[np.bool_]
_VALUE: Final = "value"
_NONE: Final = np.empty(0, np.int64)


class Reading(NamedTuple):
    """What was read for a batch, by row."""

    key_columns: list[pa.Array]
    slots: Slots
    """-1 of a key that has none."""
    values: Sequence[Any]


class Changes(NamedTuple):
    """What has become of the values of many keys."""

    rows: Mask | None
    """Those that have changed; None: all."""
    values: Sequence[Any]
    """Of the rows that have changed."""
    removed: Mask | None
    """Of these, those that are to go; None: none."""


class _Absence:
    """Implements `SlotValues`: which slots have no value."""

    stored: Mapping[str, pa.DataType] = {"": pa.bool_()}

    def __init__(self) -> None:
        self.flags = np.ones(LEAST_ABSENT, np.bool_)

    @property
    def arrays(self) -> list[npt.NDArray[Any]]:
        return [self.flags]

    def frozen(self) -> Callable[[Sequence[npt.NDArray[Any]]], list[pa.Array]]:
        return lambda arrays: [pa.array(arrays[0])]

    def put(self, slots: Slots, columns: Sequence[pa.Array], keys: int) -> None:
        self.expect(keys)
        self.flags[slots] = columns[0].to_numpy(zero_copy_only=False)

    def expect(self, keys: int) -> None:
        if keys > len(self.flags):
            longer = np.ones(1 << (keys - 1).bit_length(), np.bool_)
            longer[: len(self.flags)] = self.flags
            self.flags = longer

    def only(self, slots: Slots) -> None:
        flags = self.flags
        self.flags = np.ones(max(LEAST_ABSENT, len(slots)), np.bool_)
        self.flags[: len(slots)] = flags[slots]


class ColumnMap:
    """Implements `KeyedMap` for values of a flat type, none of which can change in place."""

    copy: Callable[[Any], Any] | None = None
    is_plain = False

    def __init__(self, keys: KeyColumns, values: FlatValues, explain: Explain) -> None:
        self._keys, self._values, self._explain = keys, values, explain
        self._absence = _Absence()
        self._table = SlotTable(keys, {_VALUE: values, REMOVED_COLUMN: self._absence})
        self._absent = 0
        """How many slots have no value."""
        self._marked = False
        """Whether there was a cut: before the first one, no capture is of changes."""
        self.live: Layer = {}
        """What was looked up for the batch at hand, `REMOVED` for what is not there, with its changes."""
        self.changed: Layer = {}
        """What is not yet in the table."""

    # ---- in bulk ----
    def read(self, key_columns: list[pa.Array], absent: Callable[[], Any]) -> Reading:
        """The value of every row's key; `absent` makes one for each key that has none."""
        slots = self._table.look_up(key_columns)
        known = slots >= 0
        if self._absent:
            known[known] = ~self._absence.flags[slots[known]]
        if known.all():
            return Reading(key_columns, slots, self._values.read(slots))
        found = iter(self._values.read(slots[known]))
        return Reading(key_columns, slots, [next(found) if here else absent() for here in known.tolist()])

    def write(self, reading: Reading, raw_keys: Sequence[Hashable], changes: Changes) -> None:
        """Keeps what has become of values that were read, of keys all of which are different."""
        columns, slots, values = reading.key_columns, reading.slots, changes.values
        if changes.rows is not None:
            columns, slots = _chosen(columns, changes.rows), slots[changes.rows]
            raw_keys = list(compress(raw_keys, changes.rows))
        if changes.removed is not None:
            kept = ~changes.removed
            self._remove(slots[changes.removed])
            columns, slots = _chosen(columns, kept), slots[kept]
            raw_keys, values = list(compress(raw_keys, kept)), list(compress(values, kept))
        if len(values):
            self._set(columns, slots, raw_keys, values)

    def _set(self, columns: list[pa.Array], slots: Slots, raw_keys: Sequence[Hashable], values: Sequence[Any]) -> None:
        try:
            arrays = self._values.arrays_of(values)
        except UnstorableValue as error:
            raise self._explain(error, raw_keys, values) from error
        if self._absent:
            self._absent -= int(np.count_nonzero(self._absence.flags[slots[slots >= 0]]))
        if slots.min() < 0:
            slots = self._table.find(columns).slots
            self._absence.expect(len(self._table))
        else:
            self._table.touch(slots)
        self._values.write(slots, arrays, len(self._table))
        self._absence.flags[slots] = False

    def _remove(self, slots: Slots) -> None:
        slots = slots[slots >= 0]
        slots = slots[~self._absence.flags[slots]]
        self._table.touch(slots)
        self._values.forget(slots)
        self._absence.flags[slots] = True
        self._absent += len(slots)

    def take_up_columns(self, key_columns: list[pa.Array], column: pa.Array, gone: pa.Array | None, all: int) -> None:
        """Takes up rows as they were stored; so many keys are expected in all."""
        self.write_back()
        flags = pa.array(np.zeros(len(column), np.bool_)) if gone is None else gone
        self._table.take_up(key_columns, {_VALUE: column, REMOVED_COLUMN: flags}, all)
        self._absent = int(np.count_nonzero(self._absence.flags[: len(self._table)]))

    # ---- one by one ----
    def prefetch(self, keys: Collection[Hashable]) -> None:
        """Reads the values of these keys, all at once."""
        missing = [key for key in keys if key not in self.live]
        if missing:
            found = self.read(self._keys.to_arrow(missing), lambda: REMOVED)
            self.live.update(zip(missing, found.values, strict=True))

    def write_back(self) -> None:
        """Puts what has changed into the table, and forgets what was read."""
        changed, self.changed, self.live = self.changed, {}, {}
        if changed:
            self._put(list(changed), list(changed.values()))

    def _put(self, raw_keys: Sequence[Hashable], values: list[Any]) -> None:
        columns = self._keys.to_arrow(raw_keys)
        removed = np.fromiter(map(is_, values, repeat(REMOVED)), np.bool_, len(values))
        changes = Changes(None, values, removed if removed.any() else None)
        self.write(Reading(columns, self._table.look_up(columns), ()), raw_keys, changes)

    def from_below(self, key: Hashable, default: Any) -> Any:
        """Of a key that `live` does not have."""
        self.prefetch((key,))
        found = self.live[key]
        return default if found is REMOVED else found

    def get(self, key: Hashable, default: Any = None) -> Any:
        found = self.live.get(key, self)
        if found is self:
            return self.from_below(key, default)
        return default if found is REMOVED else found

    peek = get

    def own(self, key: Hashable, value: Any) -> Any:
        return value

    def set(self, key: Hashable, value: Any) -> None:
        self.live[key] = self.changed[key] = value

    def update(self, entries: Mapping[Any, Any]) -> None:
        self.live.update(entries)
        self.changed.update(entries)

    def take_up(self, keys: Sequence[Hashable], values: Sequence[Any]) -> None:
        self.write_back()
        if len(keys):
            self._put(keys, list(values))

    def remove(self, key: Hashable) -> None:
        self.live[key] = self.changed[key] = REMOVED

    def __contains__(self, key: Hashable) -> bool:
        return self.get(key, REMOVED) is not REMOVED

    def __len__(self) -> int:
        self.write_back()
        return self.size

    def items(self) -> Iterator[tuple[Any, Any]]:
        self.write_back()
        slots = self._present()
        keys = self._keys.from_arrow(self._table.keys_of(slots))
        return zip(keys, self._values.read(slots), strict=True)

    # ---- captures ----
    @property
    def size(self) -> int:
        return len(self._table) - self._absent

    def settle(self) -> None:
        """Between batches."""
        if not self._marked:
            self._tidy(_NONE)

    def mark(self, cut: Cut, floor: Cut) -> None:
        self._table.mark(cut, floor)
        self._marked = True
        self._tidy(self._table.touched_since(floor))

    def changed_since(self, cut: Cut) -> int | None:
        return self._table.changed_since(cut) if self._marked else None

    def changes(self, since: Cut) -> tuple[Section, bool]:
        """What has changed since then, and whether keys have gone."""
        slots = self._table.touched_since(since)
        return self._table.section(slots), bool(self._absence.flags[slots].any())

    def whole(self) -> Section:
        return self._table.section(self._present() if self._absent else None)

    def _present(self) -> Slots:
        return np.flatnonzero(~self._absence.flags[: len(self._table)])

    def _tidy(self, needed: Slots | Numbers) -> None:
        """Leaves absent slots behind but for those that are needed, if there are more of them than of others."""
        if self._absent <= max(LEAST_ABSENT, self.size):
            return
        kept = ~self._absence.flags[: len(self._table)]
        kept[needed] = True
        slots = np.flatnonzero(kept)
        if 2 * len(slots) <= len(self._table):
            self._table, _ = self._table.only(slots)
            self._values.only(slots)
            self._absence.only(slots)
            self._absent = int(np.count_nonzero(self._absence.flags[: len(slots)]))


def _chosen(columns: Sequence[pa.Array], rows: Mask) -> list[pa.Array]:
    places = np.flatnonzero(rows)
    return [taken(column, places) for column in columns]
