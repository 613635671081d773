"""For every slot a list that grows: entries in the order in which they came, linked from the last one back.

Entries of all slots are numbered as they come; `previous` says for each which one of its slot came before. So adding a
batch is one pass, and the entries of any slots are found without looking at others. Numbers are never used twice and
links never change: a capture needs only the last entry and the length of each slot's chain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from penstock.kernels.loading import compiled
from penstock.operators.aggregation.accumulator import INITIAL_SLOTS, Array, grown
from penstock.state.index import Slots

_SPARE_ENTRIES: Final = 4096


class Chains:
    def __init__(self) -> None:
        self.last = np.full(INITIAL_SLOTS, -1, np.int64)
        self.lengths = np.zeros(INITIAL_SLOTS, np.int64)
        """Both by slot."""
        self._previous = np.empty(INITIAL_SLOTS, np.int64)
        """By entry."""
        self.entries = 0
        self._gone = 0

    def expect(self, keys: int) -> None:
        self.last, self.lengths = grown(self.last, keys, -1), grown(self.lengths, keys, 0)

    def add(self, slots: Slots) -> None:
        """One entry for each of these, numbered from `entries` on."""
        first, self.entries = self.entries, self.entries + len(slots)
        self._previous = grown(self._previous, self.entries, 0)
        if compiled(len(slots)) is not None:
            from penstock.kernels import aggregation

            aggregation.link(self.last, self._previous, slots, first)
        else:
            order = np.argsort(slots, kind="stable")
            ordered = slots[order]
            begins = np.ones(len(slots), np.bool_)
            begins[1:] = ordered[1:] != ordered[:-1]
            before = np.empty(len(slots), np.int64)
            before[1:] = order[:-1] + first
            before[begins] = self.last[ordered[begins]]
            self._previous[first + order] = before
            ends = np.append(begins[1:], [True])[: len(slots)]
            self.last[ordered[ends]] = first + order[ends]
        np.add.at(self.lengths, slots, 1)

    def of(self, slots: Slots | slice) -> tuple[Array, Array]:
        """The entries of some slots, slot by slot, oldest first; and how many each slot has."""
        return self.finder()(self.last[slots], self.lengths[slots])

    def finder(self) -> Callable[[Array, Array], tuple[Array, Array]]:
        """From what is in `last` and `lengths` for some slots to their entries; to be called later, on any thread."""
        previous = self._previous
        return lambda last, lengths: (_unlinked(last, lengths, previous), lengths)

    def reset(self, slots: Slots) -> None:
        self._gone += int(self.lengths[slots].sum())
        self.last[slots], self.lengths[slots] = -1, 0

    @property
    def wasteful(self) -> bool:
        """Whether more entries are of no chain any more than are of one: then the owner should begin anew."""
        return 2 * self._gone > self.entries + _SPARE_ENTRIES


def _unlinked(last: Array, lengths: Array, previous: Array) -> Array:
    if compiled(len(last)) is not None:
        from penstock.kernels import aggregation

        entries: Array = aggregation.unlink(np.ascontiguousarray(last), np.ascontiguousarray(lengths), previous)
        return entries
    ends = np.cumsum(lengths)
    entries = np.empty(int(ends[-1]) if len(ends) else 0, np.int64)
    places, entry, left = ends - 1, last.copy(), lengths.copy()
    while len(open_chains := np.flatnonzero(left > 0)):
        entries[places[open_chains]] = entry[open_chains]
        places[open_chains] -= 1
        left[open_chains] -= 1
        more = open_chains[left[open_chains] > 0]
        entry[more] = previous[entry[more]]
    return entries
