"""Means, variances and standard deviations of numbers: count, mean and the sum of squared distances from it.

Kept so, and merged by Chan's formula, they lose no digits where all values are far from zero. A mean of nothing is
null, and so is a variance of fewer values than it needs (`ddof` and one more).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from penstock.kernels.hashing import fixed_width_values, read_only
from penstock.kernels.loading import compiled
from penstock.operators.aggregation.accumulator import (
    INITIAL_SLOTS,
    Accumulator,
    Array,
    ToColumns,
    grown,
    without_nulls,
)
from penstock.state.index import Slots

MEAN: Final = "mean"
VARIANCE: Final = "var"
DEVIATION: Final = "std"


class MomentsAccumulator(Accumulator):
    """`statistic` is one of the three above; `ddof` is what is taken off the count in a variance."""

    type = pa.float64()
    stored: Mapping[str, pa.DataType] = MappingProxyType(
        {"": pa.float64(), ".count": pa.int64(), ".squares": pa.float64()}
    )

    def __init__(self, statistic: str, column: str, ddof: int = 1) -> None:
        self._statistic, self._column, self._ddof = statistic, column, ddof
        self._counts = np.zeros(INITIAL_SLOTS, np.int64)
        self._means = np.zeros(INITIAL_SLOTS, np.float64)
        self._squares = np.zeros(INITIAL_SLOTS, np.float64)

    def add(self, batch: pa.RecordBatch, slots: Slots, keys: int) -> None:
        self.expect(keys)
        slots, (column,) = without_nulls(slots, batch.column(self._column))
        values = floats_of(column)
        if compiled(len(slots)) is not None:
            from penstock.kernels import aggregation

            aggregation.add_moments(self._counts, self._means, self._squares, slots, values)
            return
        distinct, places = np.unique(slots, return_inverse=True)
        counts = np.bincount(places, minlength=len(distinct))
        means = np.bincount(places, values, len(distinct)) / counts
        squares = np.bincount(places, (values - means[places]) ** 2, len(distinct))
        self._combine(distinct, counts, means, squares)

    def _combine(self, slots: Slots, counts: Array, means: Array, squares: Array) -> None:
        """Chan: two groups of values as one. No slot occurs twice."""
        before, distance = self._counts[slots], means - self._means[slots]
        together = before + counts
        share = counts / np.maximum(together, 1)
        self._counts[slots] = together
        self._means[slots] += distance * share
        self._squares[slots] += squares + distance * distance * before * share

    def merge(self, other: Self, theirs: Slots, slots: Slots, keys: int) -> None:
        self.expect(keys)
        self._combine(slots, other._counts[theirs], other._means[theirs], other._squares[theirs])

    def reset(self, slots: Slots) -> None:
        for array in self.arrays:
            array[slots] = 0

    def results(self, slots: Slots | slice) -> pa.Array:
        counts = self._counts[slots]
        if self._statistic == MEAN:
            return pa.array(self._means[slots].copy(), mask=counts == 0)
        enough = counts > self._ddof
        variance = self._squares[slots] / np.where(enough, counts - self._ddof, 1)
        return pa.array(variance if self._statistic == VARIANCE else np.sqrt(variance), mask=~enough)

    def expect(self, keys: int) -> None:
        self._counts, self._means, self._squares = (grown(array, keys, 0) for array in self.arrays)

    @property
    def arrays(self) -> list[Array]:
        return [self._counts, self._means, self._squares]

    def frozen(self) -> ToColumns:
        return lambda taken: [pa.array(taken[place]) for place in (1, 0, 2)]

    def put(self, slots: Slots, columns: Sequence[pa.Array], keys: int) -> None:
        self.expect(keys)
        for array, column in zip((self._means, self._counts, self._squares), columns, strict=True):
            array[slots] = column.to_numpy()


def floats_of(column: pa.Array) -> Array:
    """The values of a column of numbers without nulls as float64."""
    if pat.is_decimal(column.type):
        column = column.cast(pa.float64())
    if pat.is_float64(column.type):
        return fixed_width_values(column, "f8")
    return read_only(column.to_numpy(zero_copy_only=False).astype(np.float64))
