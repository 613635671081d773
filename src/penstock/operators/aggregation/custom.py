"""Aggregates that the user writes: a state of any type that checkpoints can hold, and functions on it.

The functions are called per slot, not per row: `add` gets all of a slot's values in the batch at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from penstock.operators.aggregation.accumulator import INITIAL_SLOTS, Accumulator, Array, ToColumns, as_rows, grown
from penstock.operators.rows import column_values
from penstock.state.codec import Codec, codec_for
from penstock.state.index import Slots


@dataclass(frozen=True)
class Functions:
    """`create()` makes a state, `add(state, values)` and `merge(state, other)` return one with more in it, and
    `result(state)` is what it says."""

    create: Callable[[], Any]
    add: Callable[[Any, list[Any]], Any]
    merge: Callable[[Any, Any], Any]
    result: Callable[[Any], Any]


class CustomAccumulator(Accumulator):
    """States are replaced, not changed in place: where a state's type can change, the functions get a copy."""

    def __init__(self, columns: Sequence[str], functions: Functions, state: Any, type: pa.DataType) -> None:
        self._columns, self._functions, self.type = tuple(columns), functions, type
        self._codec: Codec = codec_for(state)
        self.stored = {"": self._codec.arrow_type, ".there": pa.bool_()}
        self._states = np.full(INITIAL_SLOTS, None, object)
        self._there = np.zeros(INITIAL_SLOTS, np.bool_)

    def _own(self, slot: int) -> Any:
        """A state that may be changed."""
        if not self._there[slot]:
            return self._functions.create()
        return self._copied(self._states[slot])

    def _copied(self, state: Any) -> Any:
        copy = self._codec.copy
        return state if copy is None else copy(state)

    def add(self, batch: pa.RecordBatch, slots: Slots, keys: int) -> None:
        self.expect(keys)
        order = np.argsort(slots, kind="stable")
        columns = [column_values(batch.column(name).take(pa.array(order))) for name in self._columns]
        values: list[Any] = list(columns[0]) if len(columns) == 1 else list(zip(*columns, strict=True))
        ordered = slots[order]
        begins = np.flatnonzero(np.append([True], ordered[1:] != ordered[:-1]))
        bounds = [*begins.tolist(), len(ordered)]
        for slot, start, end in zip(ordered[begins].tolist(), bounds[:-1], bounds[1:], strict=True):
            self._states[slot] = self._functions.add(self._own(slot), values[start:end])
        self._there[ordered[begins]] = True

    def merge(self, other: Self, theirs: Slots, slots: Slots, keys: int) -> None:
        self.expect(keys)
        for their, slot in zip(theirs.tolist(), slots.tolist(), strict=True):
            if other._there[their]:
                self._states[slot] = self._functions.merge(self._own(slot), self._copied(other._states[their]))
                self._there[slot] = True

    def reset(self, slots: Slots) -> None:
        self._states[slots], self._there[slots] = None, False

    def results(self, slots: Slots | slice) -> pa.Array:
        result = self._functions.result
        return pa.array([result(self._own(slot)) for slot in as_rows(slots).tolist()], self.type)

    def expect(self, keys: int) -> None:
        self._states, self._there = grown(self._states, keys, None), grown(self._there, keys, 0)

    @property
    def arrays(self) -> list[Array]:
        return [self._states, self._there]

    def frozen(self) -> ToColumns:
        codec, functions = self._codec, self._functions

        def columns(taken: Sequence[Array]) -> list[pa.Array]:
            states = [state if there else functions.create() for state, there in zip(taken[0], taken[1], strict=True)]
            return [codec.encode(states), pa.array(taken[1])]

        return columns

    def put(self, slots: Slots, columns: Sequence[pa.Array], keys: int) -> None:
        self.expect(keys)
        there = columns[1].to_numpy(zero_copy_only=False)
        for slot, state in zip(slots.tolist(), self._codec.decode(columns[0]), strict=True):
            self._states[slot] = state
        self._there[slots] = there
