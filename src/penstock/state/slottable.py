"""A table of keys and values in columns: every key has a slot, and the values of all keys lie in arrays by slot.

Theory of operation. An index gives each key its slot (`index`); what is kept there is the business of the values'
owners (`SlotValues`: aggregates, for example). The table notes which slots are touched between two cuts, so that the
changes since a cut are known without looking at all keys. A capture copies nothing but the values of a few changed
slots: the keys of slots in use never change, and of a large capture the arrays are frozen (`frozen`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.ids import Cut
from penstock.state.captures import Captures
from penstock.state.index import DictIndex, Found, KeyIndex, Slots, suited_index
from penstock.state.keys import KeyColumns
from penstock.state.tables import Rows

Array = npt.NDArray[Any]


_NONE: Final = np.empty(0, np.int64)
_KEYS_AT_ONCE: Final = 1 << 17
"""Slots of a capture, up to which their keys are copied with their values."""


class SlotValues(Protocol):
    """Some columns of values, by slot."""

    stored: Mapping[str, pa.DataType]
    """The columns that a checkpoint keeps, by what is added to the values' name: "" for the only or first one."""

    @property
    def arrays(self) -> list[Array]:
        """What is kept and changes, by slot."""
        ...

    def frozen(self) -> Callable[[Sequence[Array]], list[pa.Array]]:
        """From what was taken of `arrays` for some slots to the columns of `stored`; touches nothing that changes."""
        ...

    def put(self, slots: Slots, columns: Sequence[pa.Array], keys: int) -> None:
        """Takes up stored columns, each row for its slot; `keys` slots are in use then."""
        ...

    def expect(self, keys: int) -> None:
        """Makes room for so many slots at once."""
        ...


@dataclass(frozen=True)
class Section:
    """Some rows of a table as they were at a capture; to be read later, on any thread."""

    rows: int
    keys: Callable[[], list[pa.Array]]
    values: Callable[[Rows], list[pa.Array]]
    """The stored columns of some of the rows, which are numbered as in `keys`."""


@dataclass(slots=True)
class Home:
    """Where the index of a table is: for those who want to know it without the table, which refers to them. (What
    refers to itself is not freed before Python looks for it, and tables are large.)"""

    index: KeyIndex


class SlotTable:
    def __init__(self, keys: KeyColumns, values: Mapping[str, SlotValues], payload: Sequence[int] = ()) -> None:
        """`payload`: what is kept of a new key beside it, for owners of values who want it there."""
        self._keys, self._values = keys, values
        self._home = Home(DictIndex(keys, payload))
        self._expected = 0
        """So many keys will come: an index of another form is to be told."""
        self._noted = np.zeros(0, np.bool_)
        """By slot: whether it was touched since the last cut, besides those that the index knows of."""
        self._touched: list[tuple[Cut, npt.NDArray[np.uint32]]] = []
        """Up to each cut, the slots that were touched since the one before it; none before the floor."""
        self._floor = Cut(0)
        self._captures = Captures()

    @property
    def _index(self) -> KeyIndex:
        return self._home.index

    def __len__(self) -> int:
        return len(self._index)

    @property
    def stored(self) -> dict[str, pa.DataType]:
        return {name + suffix: kind for name, values in self._values.items() for suffix, kind in values.stored.items()}

    # ---- use ----
    def find(self, key_columns: list[pa.Array]) -> Found:
        """Looks the key of every row up; new keys get new slots. The values of these slots may be changed from here to
        the next call."""
        found = self._suited_index(key_columns).find(key_columns)
        if self._captures:
            self._captures.keep(found.slots[found.first_rows])
        return found

    def look_up(self, key_columns: list[pa.Array]) -> Slots:
        """The slot of every row's key, -1 where there is none."""
        return self._suited_index(key_columns).look_up(key_columns)

    def _suited_index(self, key_columns: list[pa.Array]) -> KeyIndex:
        index = suited_index(self._index, self._keys, key_columns)
        if index is not self._index:
            self._home.index = index
            index.expect(self._expected)
        return index

    def keys_of(self, slots: Slots | slice) -> list[pa.Array]:
        return self._index.captured()(slots)

    def keys_reader(self) -> Callable[[Slots], list[pa.Array]]:
        """`keys_of` the slots that are in use now; to be called later, on any thread."""
        return self._index.captured()

    def touch(self, slots: Slots) -> None:
        """The values of these slots are about to be changed, though nobody asked for their keys."""
        if len(self) > len(self._noted):
            self._noted = np.concatenate([self._noted, np.zeros(2 * len(self) - len(self._noted), np.bool_)])
        self._noted[slots] = True
        if self._captures:
            self._captures.keep(slots)

    def expect(self, keys: int) -> None:
        self._expected = max(keys, self._expected)
        self._index.expect(keys)
        for values in self._values.values():
            values.expect(keys)

    # ---- captures ----
    def mark(self, cut: Cut, floor: Cut) -> None:
        self._touched = [(known, slots) for known, slots in self._touched if known > floor]
        self._touched.append((cut, self._take_touched().astype(np.uint32)))
        self._floor = floor

    def _take_touched(self) -> Slots:
        """Those since the last call, each once."""
        touched, noted = self._index.take_touched(), self._noted
        if not len(noted):
            return touched
        self._noted = np.zeros(0, np.bool_)
        noted[touched[touched < len(noted)]] = True
        return np.concatenate([np.flatnonzero(noted), touched[touched >= len(noted)]])

    def changed_since(self, cut: Cut) -> int | None:
        """At most, and up to the last mark; None if that cannot be told."""
        return None if cut < self._floor else sum(len(slots) for known, slots in self._touched if known > cut)

    def touched_since(self, cut: Cut) -> Slots:
        """The slots that changed since then, up to the last mark, each once."""
        touched = [slots for known, slots in self._touched if known > cut]
        if not touched:
            return _NONE
        if len(touched) == 1:
            return touched[0].astype(np.int64)
        marked = np.zeros(len(self), np.bool_)
        for slots in touched:
            marked[slots] = True
        return np.flatnonzero(marked)

    def changes(self, since: Cut) -> Section:
        return self.section(self.touched_since(since))

    def whole(self) -> Section:
        return self.section(None)

    def section(self, slots: Slots | None) -> Section:
        """Of some slots, or of all, as they are now."""
        arrays = [values.arrays for values in self._values.values()]
        read = self._captures.reader([array for own in arrays for array in own], slots, len(self))
        groups = [(len(own), values.frozen()) for own, values in zip(arrays, self._values.values(), strict=True)]
        keys = self._index.captured()
        if slots is not None and len(slots) <= _KEYS_AT_ONCE and not isinstance(self._index, DictIndex):
            # They lie beside values that were just copied: near now, and far away by the time they are written.
            near = keys(slots)
            keys = lambda _: near  # noqa: E731

        def columns(rows: Rows) -> list[pa.Array]:
            taken = iter(read(rows))
            return [column for count, to_columns in groups for column in to_columns(list(islice(taken, count)))]

        return Section(len(self) if slots is None else len(slots), lambda: keys(slots), columns)

    def only(self, slots: Slots) -> tuple[Self, Slots]:
        """Another table with the keys of these slots alone, in their order; and, by slot here, the slot there, or -1.
        The values are for their owners to move."""
        other, places = type(self)(self._keys, self._values), np.full(len(self), -1, np.int64)
        if len(slots):
            other.find(self.keys_of(slots))
            other._index.take_touched()
        places[slots] = np.arange(len(slots))

        def moved(touched: npt.NDArray[Any]) -> Slots:
            there: Slots = places[touched]
            return there[there >= 0]

        other._touched = [(cut, moved(touched).astype(np.uint32)) for cut, touched in self._touched]
        other.touch(moved(self._take_touched()))
        other._floor = self._floor
        return other, places

    # ---- restores ----
    def take_up(self, key_columns: list[pa.Array], columns: Mapping[str, pa.Array], expected: int = 0) -> None:
        """Takes up stored rows, of keys none of which occurs twice; so many keys in all are expected."""
        self.expect(max(expected, len(self)))
        slots = self.find(key_columns).slots
        for name, values in self._values.items():
            values.put(slots, [columns[name + suffix] for suffix in values.stored], len(self))
