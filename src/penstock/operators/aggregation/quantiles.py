"""Approximate quantiles: DDSketch, a histogram per slot whose buckets grow by a constant factor.

A value lies in the bucket ceil(log(|value|) / log(g)), g = (1 + error) / (1 - error); the middle of a bucket is at most
`error` away from all of it, relatively. So a quantile is off by at most that share of its value, and sketches merge by
adding counts (Masson, Rim, Lee: "DDSketch", 2019). The buckets of all slots are pairs of slot and bucket.

Buckets are numbered so that their order is that of the values: 0 is zero itself, buckets of negative values mirror
those of positive ones. Infinities have buckets of their own; NaN counts as higher than all numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Self

import numpy as np
import pyarrow as pa

from penstock.operators.aggregation.accumulator import (
    INITIAL_SLOTS,
    Accumulator,
    Array,
    ToColumns,
    grown,
    listed,
    without_nulls,
)
from penstock.operators.aggregation.moments import floats_of
from penstock.operators.aggregation.pairs import Pairs
from penstock.state.index import Slots

_ONE: Final = 1 << 28
"""The bucket of 1.0: all others of positive values are around it."""
_INFINITY: Final = 1 << 29
_NAN: Final = _INFINITY + 1
_BUCKET: Final = pa.struct([("bucket", pa.int32()), ("count", pa.int64())])


class QuantileAccumulator(Accumulator):
    type = pa.float64()
    stored: Mapping[str, pa.DataType] = MappingProxyType({"": pa.large_list(_BUCKET)})

    def __init__(self, column: str, quantile: float, error: float = 0.01) -> None:
        self._column, self._quantile = column, quantile
        self._growth = (1.0 + error) / (1.0 - error)
        self._pairs = Pairs(pa.int64())
        self._counts = np.zeros(INITIAL_SLOTS, np.int64)
        """By pair."""

    def add(self, batch: pa.RecordBatch, slots: Slots, keys: int) -> None:
        self.expect(keys)
        slots, (column,) = without_nulls(slots, batch.column(self._column))
        self._count(slots, self._buckets(floats_of(column)), None)

    def _count(self, slots: Slots, buckets: Array, counts: Array | None) -> None:
        pairs = self._pairs.find(slots, pa.array(buckets))
        self._counts = grown(self._counts, len(self._pairs), 0)
        np.add.at(self._counts, pairs, 1 if counts is None else counts)

    def _buckets(self, values: Array) -> Array:
        size = np.abs(values)
        with np.errstate(divide="ignore", invalid="ignore"):
            power = np.ceil(np.log(size) / math.log(self._growth))
        inside = np.isfinite(values) & (size > 0)
        buckets = np.where(inside, np.where(inside, power, 0).astype(np.int64) + _ONE, 0)
        buckets[np.isinf(values)] = _INFINITY
        return np.where(np.isnan(values), _NAN, np.where(values < 0, -buckets, buckets))

    def _middles(self, buckets: Array) -> Array:
        distance = np.where(np.abs(buckets) < _INFINITY, np.abs(buckets) - _ONE, 0)
        with np.errstate(over="ignore", under="ignore"):
            middle = 2.0 / (self._growth + 1.0) * np.exp(np.where(buckets == 0, 0, distance) * math.log(self._growth))
        middle = np.where(np.abs(buckets) == _INFINITY, np.inf, middle)
        middle = np.where(buckets == 0, 0.0, np.where(buckets < 0, -middle, middle))
        return np.where(buckets == _NAN, np.nan, middle)

    def merge(self, other: Self, theirs: Slots, slots: Slots, keys: int) -> None:
        self.expect(keys)
        pairs, lengths = other._pairs.of(theirs)
        self._count(np.repeat(slots, lengths), other._pairs.values.take(pairs)[0].to_numpy(), other._counts[pairs])

    def reset(self, slots: Slots) -> None:
        self._pairs.reset(slots)
        if self._pairs.chains.wasteful:
            self._pairs, numbers = self._pairs.anew()
            self._counts = grown(self._counts[numbers], INITIAL_SLOTS, 0) if len(numbers) else np.zeros(1, np.int64)

    def results(self, slots: Slots | slice) -> pa.Array:
        pairs, lengths = self._pairs.of(slots)
        buckets, counts = self._pairs.values.take(pairs)[0].to_numpy(), self._counts[pairs]
        owner = np.repeat(np.arange(len(lengths)), lengths)
        order = np.lexsort((buckets, owner))
        buckets, through = buckets[order], np.cumsum(counts[order])
        ends = np.cumsum(lengths)
        before = np.append([0], through)[ends - lengths]
        totals = np.append([0], through)[ends] - before
        wanted = before + np.floor(self._quantile * np.maximum(totals - 1, 0)).astype(np.int64) + 1
        place = np.searchsorted(through, wanted)
        found = np.append(buckets, [0])[np.minimum(place, len(buckets))]
        return pa.array(self._middles(found), mask=totals == 0)

    def expect(self, keys: int) -> None:
        self._pairs.expect(keys)

    @property
    def arrays(self) -> list[Array]:
        return [self._pairs.chains.last, self._pairs.chains.lengths]

    def frozen(self) -> ToColumns:
        find, take, kind = self._pairs.chains.finder(), self._pairs.values.taker(), self.stored[""]
        counts = self._counts[: len(self._pairs)].copy()  # they change in place

        def columns(taken: Sequence[Array]) -> list[pa.Array]:
            pairs, lengths = find(taken[0], taken[1])
            items = [take(pairs)[0].cast(pa.int32()), pa.array(counts[pairs])]
            return [listed(kind, lengths, pa.StructArray.from_arrays(items, fields=list(_BUCKET)))]

        return columns

    def put(self, slots: Slots, columns: Sequence[pa.Array], keys: int) -> None:
        self.expect(keys)
        self.reset(slots)
        (column,) = columns
        buckets, counts = column.flatten().flatten()
        slots = np.repeat(slots, column.value_lengths().to_numpy())
        self._count(slots, buckets.cast(pa.int64()).to_numpy(), counts.to_numpy())
