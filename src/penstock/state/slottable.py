"""A table of keys and values in columns: every key has a slot, and the values of all keys lie in arrays by slot.

Theory of operation. An index gives each key its slot (`index`); what is kept there is the business of the values'
owners (`SlotValues`: aggregates, for example). The table notes which slots are touched between two cuts, so that the
changes since a cut are known without looking at all keys. A capture copies nothing but the values of a few changed
slots: the keys of slots in use never change, and of a large capture the arrays are frozen (`frozen`), and so are the
values that lie beside their keys (`undo`).
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
from penstock.state.hashindex import HashIndex
from penstock.state.index import CapturedEntries, DictIndex, Found, KeyIndex, Places, Slots, suited_index
from penstock.state.keys import KeyColumns
from penstock.state.touched import Numbers, Touched

Array = npt.NDArray[Any]


_NONE: Final = np.empty(0, np.int32)
_MOST_FORGOTTEN: Final = 1 << 16
"""A table with room for more keys is not used again."""


class SlotValues(Protocol):
    """Some columns of values, by slot."""

    stored: Mapping[str, pa.DataType]
    """The columns that a checkpoint keeps, by what is added to the values' name: "" for the only or first one."""

    @property
    def arrays(self) -> list[Array]:
        """What is kept and changes, by slot; without what is kept beside the keys."""
        ...

    def frozen(self) -> Callable[[Sequence[Array]], list[pa.Array]]:
        """From what was taken for some slots to the columns of `stored`: first the word beside the keys, if there is
        one, then of `arrays`. Touches nothing that changes."""
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
    entries: CapturedEntries
    values: Callable[[Places], list[pa.Array]]
    """The stored columns of some of the rows, which are numbered as in `keys`."""

    def keys(self, rows: slice = slice(None)) -> list[pa.Array]:
        """Of some of the rows."""
        begin, end, _ = rows.indices(self.rows)
        return self.entries.keys(slice(begin, end))


@dataclass(slots=True)
class Home:
    """Where the index of a table is: for those who want to know it without the table, which refers to them. (What
    refers to itself is not freed before Python looks for it, and tables are large.)"""

    index: KeyIndex


class SlotTable:
    def __init__(self, keys: KeyColumns, values: Mapping[str, SlotValues], beside: Sequence[str] = ()) -> None:
        """`beside`: the values of which a word is kept beside each key, zero at first."""
        self._keys, self._values, self._words = keys, values, {name: word for word, name in enumerate(beside)}
        self._home = Home(DictIndex(keys, [0] * len(beside)))
        self._expected = 0
        """So many keys will come: an index of another form is to be told."""
        self._noted = np.zeros(0, np.bool_)
        """By slot: whether it was touched since the last cut, besides those that the index knows of."""
        self._touched: list[tuple[Cut, Touched]] = []
        """Up to each cut, the slots that were touched since the one before it; none before the floor."""
        self._floor = Cut(0)
        self._captures = Captures()
        self._was_captured = False

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
        self._keep(found)
        return found

    def _keep(self, found: Found) -> None:
        """The arrays of values are about to be changed at these slots."""
        if self._captures:
            self._captures.keep(found.slots[found.first_rows])

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
        self._was_captured = True
        return self._index.captured()

    def touch(self, slots: Slots) -> None:
        """The values of these slots are about to be changed, though nobody asked for their keys."""
        if len(self) > len(self._noted):
            self._noted = np.concatenate([self._noted, np.zeros(2 * len(self) - len(self._noted), np.bool_)])
        self._noted[slots] = True
        self._index.keep(slots)
        if self._captures:
            self._captures.keep(slots)

    def expect(self, keys: int) -> None:
        self._expected = max(keys, self._expected)
        self._index.expect(keys)
        for values in self._values.values():
            values.expect(keys)

    def forget_keys(self) -> bool:
        """Gets ready for other keys, which costs less than a new table does; the values are for their owners to clear.
        Returns whether it has: a large one would keep its memory, and what was captured may still be read."""
        index = self._index
        if self._was_captured or not isinstance(index, HashIndex) or index.capacity > _MOST_FORGOTTEN:
            return False
        index.clear()
        self._noted, self._touched, self._floor = np.zeros(0, np.bool_), [], Cut(0)
        return True

    # ---- captures ----
    def mark(self, cut: Cut, floor: Cut) -> None:
        self._touched = [(known, slots) for known, slots in self._touched if known > floor]
        self._touched.append((cut, self._take_touched()))
        self._floor = floor

    def _take_touched(self) -> Touched:
        """Those since the last call, each once."""
        touched, noted = self._index.take_touched(), self._noted
        if not len(noted):
            return touched
        self._noted = np.zeros(0, np.bool_)
        marked = np.zeros(len(self), np.bool_)
        touched.mark(marked)
        touched.add(np.flatnonzero(noted[: len(self)] & ~marked[: len(noted)]).astype(np.int32))
        return touched

    def changed_since(self, cut: Cut) -> int | None:
        """At most, and up to the last mark; None if that cannot be told."""
        return None if cut < self._floor else sum(len(slots) for known, slots in self._touched if known > cut)

    def touched_since(self, cut: Cut) -> Numbers:
        """The slots that changed since then, up to the last mark, each once."""
        touched = [slots for known, slots in self._touched if known > cut]
        if not touched:
            return _NONE
        if len(touched) == 1:
            return touched[0].numbers()
        marked = np.zeros(len(self), np.bool_)
        for slots in touched:
            slots.mark(marked)
        return np.flatnonzero(marked).astype(np.int32)

    def changes(self, since: Cut) -> Section:
        return self.section(self.touched_since(since))

    def whole(self) -> Section:
        return self.section(None)

    def section(self, slots: Numbers | Slots | None) -> Section:
        """Of some slots, or of all, as they are now."""
        self._was_captured = True
        arrays = [values.arrays for values in self._values.values()]
        read = self._captures.reader([array for own in arrays for array in own], slots, len(self))
        entries, has_words = self._index.captured_entries(slots), bool(self._words)
        groups = [
            (self._words.get(name), len(own), values.frozen())
            for own, (name, values) in zip(arrays, self._values.items(), strict=True)
        ]

        def columns(rows: Places) -> list[pa.Array]:
            beside, taken = entries.payloads(rows) if has_words else [], iter(read(rows))
            return [
                column
                for word, count, to_columns in groups
                for column in to_columns([*([] if word is None else [beside[word]]), *islice(taken, count)])
            ]

        return Section(len(self) if slots is None else len(slots), entries, columns)

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

        other._touched = [(cut, Touched([moved(touched.numbers()).astype(np.int32)])) for cut, touched in self._touched]
        other.touch(moved(self._take_touched().numbers()))
        other._floor = self._floor
        return other, places

    # ---- restores ----
    def take_up(self, key_columns: list[pa.Array], columns: Mapping[str, pa.Array], expected: int = 0) -> None:
        """Takes up stored rows, of keys none of which occurs twice; so many keys in all are expected."""
        self.expect(max(expected, len(self)))
        slots = self.find(key_columns).slots
        for name, values in self._values.items():
            values.put(slots, [columns[name + suffix] for suffix in values.stored], len(self))
