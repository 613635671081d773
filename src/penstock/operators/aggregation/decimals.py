"""Sums of decimals, exact: 128 bits per slot, as four limbs of 32 bits, whatever the precision of the column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.kernels.hashing import fixed_width_values, valid_rows
from penstock.operators.aggregation.accumulator import (
    INITIAL_SLOTS,
    Accumulator,
    Array,
    ToColumns,
    grown,
    without_nulls,
)
from penstock.state.index import Slots

_LIMBS: Final = 4
_LOW: Final = np.int64(0xFFFFFFFF)


class DecimalSumAccumulator(Accumulator):
    def __init__(self, column: str, scale: int) -> None:
        self._column = column
        self.type = pa.decimal128(38, scale)
        self.stored = {"": self.type}
        self._limbs = np.zeros((INITIAL_SLOTS, _LIMBS), np.int64)
        """The lowest first; all but the highest are below 2^32, and only that one has a sign."""
        self._seen = np.zeros(INITIAL_SLOTS, np.bool_)

    def add(self, batch: pa.RecordBatch, slots: Slots, keys: int) -> None:
        self.expect(keys)
        slots, (column,) = without_nulls(slots, batch.column(self._column))
        self._seen[slots] = True
        np.add.at(self._limbs, slots, limbs_of(column.cast(self.type)))
        self._carry(slots)

    def _carry(self, slots: Slots) -> None:
        limbs = self._limbs[slots]
        for place in range(_LIMBS - 1):
            limbs[:, place + 1] += limbs[:, place] >> np.int64(32)
            limbs[:, place] &= _LOW
        self._limbs[slots] = limbs

    def merge(self, other: Self, theirs: Slots, slots: Slots, keys: int) -> None:
        self.expect(keys)
        self._seen[slots] |= other._seen[theirs]
        self._limbs[slots] += other._limbs[theirs]
        self._carry(slots)

    def reset(self, slots: Slots) -> None:
        self._limbs[slots], self._seen[slots] = 0, False

    def results(self, slots: Slots | slice) -> pa.Array:
        return self._column_of(self._limbs[slots], self._seen[slots])

    def _column_of(self, limbs: Array, seen: npt.NDArray[np.bool_]) -> pa.Array:
        top = limbs[:, -1]
        if ((top >= 1 << 31) | (top < -(1 << 31))).any():
            raise OverflowError(f"sum({self._column}): a sum of decimals exceeds 128 bits")
        words = np.ascontiguousarray((limbs & _LOW).astype(np.uint32))
        validity = pa.array(seen).buffers()[1]
        return pa.Array.from_buffers(self.type, len(limbs), [validity, pa.py_buffer(words)])

    def expect(self, keys: int) -> None:
        self._limbs, self._seen = grown(self._limbs, keys, 0), grown(self._seen, keys, 0)

    @property
    def arrays(self) -> list[Array]:
        return [self._limbs, self._seen]

    def frozen(self) -> ToColumns:
        return lambda taken: [self._column_of(taken[0], taken[1])]

    def put(self, slots: Slots, columns: Sequence[pa.Array], keys: int) -> None:
        self.expect(keys)
        (column,) = columns
        valid = valid_rows(column)
        self._limbs[slots] = np.where(valid[:, None], limbs_of(column), 0)
        self._seen[slots] = valid


def limbs_of(column: pa.Array) -> Array:
    """The unscaled values of a column of 128-bit decimals, the lowest limb first."""
    words = fixed_width_values(column, "V16").view(np.uint32).reshape(-1, _LIMBS)
    limbs = words.astype(np.int64)
    limbs[:, -1] = words[:, -1].view(np.int32)
    return limbs
