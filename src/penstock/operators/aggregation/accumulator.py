"""What an aggregate keeps for all slots at once, and what whoever keeps it may ask of it.

Theory of operation. A *slot* is a key, or a key in a window; its number is given out by an index. An accumulator
holds the state of one aggregate for all slots, in arrays indexed by slot and in stores that only ever grow (`pile`,
`chains`). A batch is added with one call for all its rows. Two accumulators of the same aggregate can be merged slot
by slot, as if the rows of the other had come afterwards: that is how panes become sliding windows and sessions become
one.

Keeping it in a checkpoint takes three steps. `arrays` are those that change, for `FrozenArrays`; `frozen` gives a
function, to be called later and on any thread, from what was taken out of them to the stored columns; `put` takes these
up again. What `frozen` holds besides never changes.

No aggregate sees nulls, as in SQL: `count()` alone counts rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.kernels.hashing import valid_rows
from penstock.state.index import Found, Slots

Array = npt.NDArray[Any]
ToColumns = Callable[[Sequence[Array]], list[pa.Array]]

INITIAL_SLOTS = 1024


class Accumulator(ABC):
    """Slots are in use from 0 on; `keys` always says how many are after a call."""

    type: pa.DataType
    """Of the result."""
    stored: Mapping[str, pa.DataType]
    """The columns that a checkpoint keeps, by what is added to the aggregate's name: "" for the only or first one."""

    @abstractmethod
    def add(self, batch: pa.RecordBatch, slots: Slots, keys: int) -> None:
        """Adds the rows of a batch, each to its slot."""

    def add_and_tell(self, batch: pa.RecordBatch, found: Found, keys: int) -> pa.Array:
        """As `add`, and the results of the keys that were found, in the order in which they first occur."""
        self.add(batch, found.slots, keys)
        return self.results(found.slots[found.first_rows])

    @abstractmethod
    def merge(self, other: Self, theirs: Slots, slots: Slots, keys: int) -> None:
        """Adds what `other` has in the slots `theirs`, each to one of `slots`, none of which may occur twice."""

    @abstractmethod
    def reset(self, slots: Slots) -> None:
        """Nothing has been added to these slots."""

    def clear(self, keys: int) -> bool:
        """Nothing has been added to any slot, of which so many were in use. Returns whether that could be done in less
        time than a new one takes."""
        return False

    @abstractmethod
    def results(self, slots: Slots | slice) -> pa.Array:
        """The results of some slots; shares no memory with the accumulator."""

    @abstractmethod
    def expect(self, keys: int) -> None:
        """Makes room for so many slots at once."""

    @property
    @abstractmethod
    def arrays(self) -> list[Array]:
        """What changes, by slot."""

    @abstractmethod
    def frozen(self) -> ToColumns:
        """From what was taken of `arrays` for some slots to the columns of `stored`."""

    @abstractmethod
    def put(self, slots: Slots, columns: Sequence[pa.Array], keys: int) -> None:
        """Takes up stored columns, each row for its slot, whatever was there. No slot occurs twice."""


def grown(array: Array, keys: int, fill: Any) -> Array:
    """An array with room for so many slots: the same one, or a longer copy."""
    capacity = len(array)
    if keys <= capacity:
        return array
    while capacity < keys:
        capacity *= 2
    longer = empty_slots((capacity, *array.shape[1:]), array.dtype, fill)
    longer[: len(array)] = array
    return longer


def empty_slots(shape: tuple[int, ...], dtype: Any, fill: Any) -> Array:
    """Zeros cost nothing before they are written to."""
    return np.zeros(shape, dtype) if fill == 0 else np.full(shape, fill, dtype)


def without_nulls(slots: Slots, *columns: pa.Array) -> tuple[Slots, list[pa.Array]]:
    """The rows in which none of the columns is null."""
    valid: npt.NDArray[np.bool_] | None = None
    for column in columns:
        if column.null_count:
            own = valid_rows(column)
            valid = own if valid is None else valid & own
    if valid is None:
        return slots, list(columns)
    mask = pa.array(valid)
    return slots[valid], [column.filter(mask) for column in columns]


def listed(type: pa.DataType, lengths: Array, values: pa.Array) -> pa.Array:
    """A column of lists, of these lengths, whose items follow each other in `values`."""
    offsets = np.zeros(len(lengths) + 1, np.int32 if pa.types.is_list(type) else np.int64)
    np.cumsum(lengths, out=offsets[1:])
    make = pa.ListArray if pa.types.is_list(type) else pa.LargeListArray
    return make.from_arrays(pa.array(offsets), values, type=type)


def as_rows(slots: Slots | slice) -> Slots:
    return np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
