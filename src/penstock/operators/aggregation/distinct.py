"""How many different values a slot has: exactly, by keeping them all, or about, by HyperLogLog.

HyperLogLog keeps 2^precision registers of one byte per slot, whatever the number of values: each value's stable hash
chooses a register, which keeps the highest number of leading zeros (plus one) of the rest. The estimate is Ertl's
("New cardinality estimation algorithms for HyperLogLog sketches", 2017): unbiased for few and many values without any
table of corrections. Its standard error is 1.04 / sqrt(2^precision).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

import numpy as np
import pyarrow as pa

from penstock.kernels.hashing import hash_columns
from penstock.kernels.loading import compiled
from penstock.operators.aggregation.accumulator import (
    INITIAL_SLOTS,
    Accumulator,
    Array,
    ToColumns,
    grown,
    listed,
    without_nulls,
)
from penstock.operators.aggregation.pairs import Pairs
from penstock.state.index import Slots

DEFAULT_PRECISION: Final = 12


class DistinctAccumulator(Accumulator):
    """Exact."""

    type = pa.int64()

    def __init__(self, column: str, value: pa.DataType) -> None:
        self._column = column
        self.stored = {"": pa.large_list(value)}
        self._pairs = Pairs(value)

    def add(self, batch: pa.RecordBatch, slots: Slots, keys: int) -> None:
        self.expect(keys)
        slots, (column,) = without_nulls(slots, batch.column(self._column))
        self._pairs.find(slots, column)

    def merge(self, other: Self, theirs: Slots, slots: Slots, keys: int) -> None:
        self.expect(keys)
        numbers, lengths = other._pairs.of(theirs)
        self._pairs.find(np.repeat(slots, lengths), other._pairs.values.take(numbers)[0])

    def reset(self, slots: Slots) -> None:
        self._pairs.reset(slots)
        if self._pairs.chains.wasteful:
            self._pairs, _ = self._pairs.anew()

    def results(self, slots: Slots | slice) -> pa.Array:
        return pa.array(self._pairs.chains.lengths[slots].copy())

    def expect(self, keys: int) -> None:
        self._pairs.expect(keys)

    @property
    def arrays(self) -> list[Array]:
        return [self._pairs.chains.last, self._pairs.chains.lengths]

    def frozen(self) -> ToColumns:
        find, take, kind = self._pairs.chains.finder(), self._pairs.values.taker(), self.stored[""]

        def columns(taken: Sequence[Array]) -> list[pa.Array]:
            numbers, lengths = find(taken[0], taken[1])
            return [listed(kind, lengths, take(numbers)[0])]

        return columns

    def put(self, slots: Slots, columns: Sequence[pa.Array], keys: int) -> None:
        self.expect(keys)
        self.reset(slots)
        (column,) = columns
        self._pairs.find(np.repeat(slots, column.value_lengths().to_numpy()), column.flatten())


class SketchAccumulator(Accumulator):
    """HyperLogLog."""

    type = pa.int64()

    def __init__(self, column: str, precision: int = DEFAULT_PRECISION) -> None:
        self._column, self._precision = column, precision
        self.stored = {"": pa.binary(1 << precision)}
        self._registers = np.zeros((INITIAL_SLOTS, 1 << precision), np.uint8)

    def add(self, batch: pa.RecordBatch, slots: Slots, keys: int) -> None:
        self.expect(keys)
        slots, (column,) = without_nulls(slots, batch.column(self._column))
        if not len(slots):
            return
        hashes = hash_columns([column])
        places = (hashes >> np.uint64(64 - self._precision)).astype(np.int64)
        ranks = self._ranks(hashes)
        if compiled(len(slots)) is not None:
            from penstock.kernels import aggregation

            aggregation.raise_registers(self._registers, slots, places, ranks)
        else:
            np.maximum.at(self._registers, (slots, places), ranks)

    def _ranks(self, hashes: Array) -> Array:
        """One more than the zeros before the first one of the bits that did not choose the register."""
        bits = 64 - self._precision
        rest = (hashes << np.uint64(self._precision)) >> np.uint64(self._precision)
        # A float64 has the place of the highest bit in its exponent; halving first keeps it from being rounded up.
        high, low = rest >> np.uint64(32), rest & np.uint64(0xFFFFFFFF)
        length = np.where(high > 0, 32 + np.frexp(high.astype(np.float64))[1], np.frexp(low.astype(np.float64))[1])
        return (bits - length + 1).astype(np.uint8)

    def merge(self, other: Self, theirs: Slots, slots: Slots, keys: int) -> None:
        self.expect(keys)
        self._registers[slots] = np.maximum(self._registers[slots], other._registers[theirs])

    def reset(self, slots: Slots) -> None:
        self._registers[slots] = 0

    def results(self, slots: Slots | slice) -> pa.Array:
        return pa.array(np.rint(estimates(self._registers[slots], self._precision)).astype(np.int64))

    def expect(self, keys: int) -> None:
        self._registers = grown(self._registers, keys, 0)

    @property
    def arrays(self) -> list[Array]:
        return [self._registers]

    def frozen(self) -> ToColumns:
        kind = self.stored[""]

        def columns(taken: Sequence[Array]) -> list[pa.Array]:
            buffer = pa.py_buffer(np.ascontiguousarray(taken[0]))
            return [pa.Array.from_buffers(kind, len(taken[0]), [None, buffer])]

        return columns

    def put(self, slots: Slots, columns: Sequence[pa.Array], keys: int) -> None:
        self.expect(keys)
        (column,) = columns
        width = 1 << self._precision
        content = np.frombuffer(column.buffers()[1], np.uint8, len(column) * width, column.offset * width)
        self._registers[slots] = content.reshape(-1, width)


def estimates(registers: Array, precision: int) -> Array:
    """Of every row of registers, about how many values it has seen."""
    size, most = 1 << precision, 64 - precision
    histogram = np.zeros((len(registers), most + 2))
    for rank in range(most + 2):
        histogram[:, rank] = (registers == rank).sum(axis=1)
    total = size * _tau(1.0 - histogram[:, most + 1] / size)
    for rank in range(most, 0, -1):
        total = 0.5 * (total + histogram[:, rank])
    total += size * _sigma(histogram[:, 0] / size)
    with np.errstate(divide="ignore"):
        return size * size / (2.0 * np.log(2.0)) / total


def _sigma(share: Array) -> Array:
    """x + sum of x^(2^k) * 2^(k - 1): of the registers that saw nothing."""
    full = share == 1.0
    x, y = np.where(full, 0.0, share), np.ones_like(share)
    total, before = x.copy(), np.full_like(x, -1.0)
    while (total != before).any():
        before = total
        x = x * x
        total, y = total + x * y, y + y
    return np.where(full, np.inf, total)


def _tau(share: Array) -> Array:
    """The same at the other end: of the registers that cannot rise any more."""
    trivial = (share == 0.0) | (share == 1.0)
    x, y = np.where(trivial, 1.0, share), np.ones_like(share)
    total, before = 1.0 - x, np.full_like(x, -1.0)
    while (total != before).any():
        before = total
        x = np.sqrt(x)
        y = y * 0.5
        total = total - (1.0 - x) ** 2 * y
    return np.where(trivial, 0.0, total / 3.0)
