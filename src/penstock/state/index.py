"""The index of a columnar state: which slot of the state's arrays belongs to which key.

Slots are given out one after another as keys first occur, and never change. An index notes which slots are found
between two calls of `take_touched`: each once, when it is first found. It also keeps some words of 64 bits beside each
key, its *payload*: what is looked up there lies next to the key in memory. Two forms with the same behaviour: a
compiled hash table (`hashindex`), and a Python dict as long as batches are too small to be worth loading compiled code
for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.kernels.gathering import taken
from penstock.kernels.loading import compiled
from penstock.state.keys import Key, KeyColumns
from penstock.state.keywords import has_long, has_nulls
from penstock.state.touched import Numbers, Touched

Slots = npt.NDArray[np.int64]
Payload = npt.NDArray[np.uint64]
Places = Numbers | slice
"""Some of the slots that were captured, by their places among them."""

_LEAST_ROOM = 1024
"""Keys that an index gets room for with its first one."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a call of `find` found."""

    slots: Slots
    """Of every row's key."""
    first_rows: Slots
    """Where each of these keys occurs first."""
    places: npt.NDArray[np.int32]
    """Of every row: which of `first_rows` has its key."""

    def of_keys(self, column: pa.Array) -> pa.Array:
        """What a column of the rows has in `first_rows`."""
        return column if len(self.first_rows) == len(self.slots) else taken(column, self.first_rows)


@dataclass(frozen=True, slots=True)
class CapturedEntries:
    """Some slots as they were at a capture; to be read later, by one thread, from the first to the last."""

    keys: Callable[[slice], list[pa.Array]]
    payloads: Callable[[Places], list[Payload]]
    """An array for each word."""


class KeyIndex(Protocol):
    fresh: Payload
    """Of a new key."""

    @property
    def payload(self) -> Payload:
        """By slot, a column for each word. Replaced by a longer one as keys come, and then never changed again."""
        ...

    def find(self, columns: list[pa.Array]) -> Found:
        """Looks the key of every row up; new keys get new slots."""
        ...

    def takes(self, columns: list[pa.Array]) -> bool:
        """Whether it can look these keys up."""
        ...

    def look_up(self, columns: list[pa.Array]) -> Slots:
        """The slot of every row's key, -1 where it has none; no slot counts as touched."""
        ...

    def captured(self) -> Callable[[Slots | slice | None], list[pa.Array]]:
        """The key columns of all slots as they are now, or of some of them; to be called later, on any thread."""
        ...

    def expect(self, keys: int) -> None:
        """So many keys will come: room for all of them is made at once, instead of again and again as they come."""
        ...

    def captured_entries(self, slots: Numbers | Slots | None) -> CapturedEntries:
        """Some or all slots in use, as they are now."""
        ...

    def keep(self, slots: Slots) -> None:
        """The payloads of these slots are about to change, though nobody has asked for their keys."""
        ...

    def take_touched(self) -> Touched:
        """The slots that were found or made since the last call, each once."""
        ...

    def __len__(self) -> int: ...


class DictIndex:
    """For small batches. `payload`: the words of a new key."""

    def __init__(self, keys: KeyColumns, payload: Sequence[int] = ()) -> None:
        self._columns = keys
        self.fresh = np.array(payload, np.uint64)
        self.payload: Payload = np.empty((0, len(payload)), np.uint64)
        self._slots: defaultdict[Key, int] = defaultdict(count().__next__)
        self._keys: list[Key] = []
        """By slot. Only ever appended to, so that a snapshot needs no copy."""
        self._untouched = np.ones(0, np.bool_)
        """By slot."""
        self._touched = Touched()

    def find(self, columns: list[pa.Array]) -> Found:
        keys = self._columns.from_arrow(columns)
        known = len(self._keys)
        slots = np.fromiter(map(self._slots.__getitem__, keys), np.int64, len(keys))
        _, first_rows, places = np.unique(slots, return_index=True, return_inverse=True)
        order = np.argsort(first_rows)
        ranks = np.empty(len(order), np.int32)
        ranks[order] = np.arange(len(order), dtype=np.int32)
        first_rows = first_rows[order]
        found = slots[first_rows]
        self._keys.extend(keys[row] for row in first_rows[found >= known].tolist())
        self._touch(found)
        self.expect(len(self._keys))
        return Found(slots, first_rows, ranks[places])

    def _touch(self, found: Slots) -> None:
        if len(self._keys) > len(self._untouched):
            longer = np.ones(max(_LEAST_ROOM, 2 * len(self._keys)), np.bool_)
            longer[: len(self._untouched)] = self._untouched
            self._untouched = longer
        self._touched.add(found[self._untouched[found]].astype(np.int32))
        self._untouched[found] = False

    def takes(self, columns: list[pa.Array]) -> bool:
        return True

    def look_up(self, columns: list[pa.Array]) -> Slots:
        known, keys = self._slots, self._columns.from_arrow(columns)
        return np.fromiter((known.get(key, -1) for key in keys), np.int64, len(keys))

    def captured(self) -> Callable[[Slots | slice | None], list[pa.Array]]:
        keys, length = self._keys, len(self._keys)

        def columns(slots: Slots | slice | None) -> list[pa.Array]:
            if slots is None or isinstance(slots, slice):
                return self._columns.to_arrow(keys[:length] if slots is None else keys[slots])
            return self._columns.to_arrow([keys[slot] for slot in slots.tolist()])

        return columns

    def expect(self, keys: int) -> None:
        """A dict grows by itself, what is beside its keys does not."""
        if keys > len(self.payload):
            self.payload = np.concatenate([self.payload, np.tile(self.fresh, (max(_LEAST_ROOM, keys), 1))])

    def captured_entries(self, slots: Numbers | Slots | None) -> CapturedEntries:
        payload = self.payload[: len(self._keys)] if slots is None else self.payload[slots]
        words = list(payload.T.copy())
        return CapturedEntries(keys_at(self.captured(), slots), lambda places: [word[places] for word in words])

    def keep(self, slots: Slots) -> None:
        """What was captured is a copy."""

    def take_touched(self) -> Touched:
        touched, self._touched = self._touched, Touched()
        self._untouched[touched.numbers()] = True
        return touched

    def __len__(self) -> int:
        return len(self._keys)


def keys_at(
    keys_of: Callable[[Slots | slice], list[pa.Array]], slots: Numbers | Slots | None
) -> Callable[[slice], list[pa.Array]]:
    """The keys of slots, by their places among these."""
    if slots is None:
        return keys_of
    chosen = slots
    return lambda places: keys_of(chosen[places].astype(np.int64))


def suited_index(index: KeyIndex, keys: KeyColumns, columns: list[pa.Array]) -> KeyIndex:
    """The index to use for a batch with these key columns: the same, or another one with the same keys in the same
    slots. A dict is used until the first batch that is worth loading the compiled kernels."""
    if compiled(len(columns[0])) is None if isinstance(index, DictIndex) else index.takes(columns):
        return index
    from penstock.kernels import table
    from penstock.state.hashindex import HashIndex

    known = index.captured()(None) if len(index) else []
    everything = [*columns, *known]
    nulls, short = any(map(has_nulls, everything)), not any(map(has_long, everything))
    made = HashIndex(keys, table, nulls=nulls, short=short, payload=index.fresh)
    if known:
        made.take_over(known, index.take_touched().numbers(), index.payload[: len(index)])
    return made
