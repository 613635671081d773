"""Pairs of a slot and a value, each with a number: what aggregates over sets and histograms are made of.

An index finds the number of every pair, and chains list the pairs of a slot. A slot that is reset gets a new identity
in the index, so that its old pairs are found no more.
"""

from __future__ import annotations

from typing import Self

import numpy as np
import pyarrow as pa

from penstock.operators.aggregation.accumulator import INITIAL_SLOTS, Array, grown
from penstock.operators.aggregation.chains import Chains
from penstock.operators.aggregation.pile import Pile
from penstock.state.index import DictIndex, KeyIndex, Slots, suited_index
from penstock.state.keys import KeyColumns


class Pairs:
    def __init__(self, value: pa.DataType) -> None:
        self._type = value
        self._keys = KeyColumns(pa.schema([("identity", pa.int64()), ("value", value)]), ("identity", "value"))
        self._index: KeyIndex = DictIndex(self._keys)
        self._identities = np.arange(INITIAL_SLOTS)
        """By slot."""
        self._next_identity = INITIAL_SLOTS
        self.chains = Chains()
        """An entry is a pair's number."""
        self.values = Pile([value])
        """Row i is the value of pair i."""

    def __len__(self) -> int:
        return self.chains.entries

    def expect(self, keys: int) -> None:
        self.chains.expect(keys)
        known = len(self._identities)
        if keys > known:
            self._identities = grown(self._identities, keys, 0)
            fresh = len(self._identities) - known
            self._identities[known:] = np.arange(self._next_identity, self._next_identity + fresh)
            self._next_identity += fresh

    def find(self, slots: Slots, values: pa.Array) -> Array:
        """The number of every pair, new ones for new pairs."""
        if not len(slots):
            return np.empty(0, np.int64)
        columns = [pa.array(self._identities[slots]), values]
        self._index = suited_index(self._index, self._keys, columns)
        known = len(self)
        found = self._index.find(columns)
        numbers = found.slots
        fresh = found.first_rows[numbers[found.first_rows] >= known]
        self.chains.add(slots[fresh])
        self.values.add([values.take(pa.array(fresh))])
        return numbers

    def of(self, slots: Slots | slice) -> tuple[Array, Array]:
        """The numbers of the pairs of some slots, slot by slot; and how many each has."""
        return self.chains.of(slots)

    def reset(self, slots: Slots) -> None:
        self.chains.reset(slots)
        self._identities[slots] = np.arange(self._next_identity, self._next_identity + len(slots))
        self._next_identity += len(slots)

    def anew(self) -> tuple[Self, Array]:
        """The pairs that slots still have, in new stores; and which number here each of them there has."""
        used = np.flatnonzero(self.chains.lengths)
        numbers, lengths = self.of(used)
        other = type(self)(self._type)
        other.expect(len(self.chains.last))
        other.find(np.repeat(used, lengths), self.values.take(numbers)[0])
        return other, numbers
