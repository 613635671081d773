"""Running aggregates: what is kept per key, as arrays indexed by slot, and how a batch is added to it.

Nulls are as in SQL: they are not counted, summed or compared; a sum, minimum or maximum of nothing is null. NaN counts
as higher than all numbers. Sums of whole numbers are 64 bits wide and wrap around.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from penstock.kernels.hashing import fixed_width_values, read_only, storage_dtype, valid_rows
from penstock.kernels.loading import compiled
from penstock.state.index import Found, Slots

_INITIAL_SLOTS = 1024


class AggregateKind(StrEnum):
    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True)
class Aggregate:
    """One column of a running aggregate; `column` None counts rows."""

    kind: AggregateKind
    column: str | None = None

    def type_in(self, schema: pa.Schema) -> pa.DataType:
        """The type of the result; raises what is wrong with the column."""
        if self.column is None:
            return pa.int64()
        if schema.get_field_index(self.column) < 0:
            raise ValueError(f"{self}: there is no column {self.column!r}; the stream has {schema.names}")
        kind = schema.field(self.column).type
        if self.kind is AggregateKind.COUNT:
            return pa.int64()
        numeric = pat.is_integer(kind) or pat.is_floating(kind)
        if self.kind is AggregateKind.SUM:
            if not numeric:
                raise TypeError(f"{self}: a column of type {kind} has no sum; cast it to a number first")
            return pa.float64() if pat.is_floating(kind) else pa.uint64() if pat.is_uint64(kind) else pa.int64()
        if not numeric and not (pat.is_temporal(kind) and not pat.is_interval(kind)):
            raise TypeError(
                f"{self}: {self.kind} takes numbers, dates and times, not {kind}; "
                "for other types use reduce with a function of two rows, or process"
            )
        return kind

    def __str__(self) -> str:
        return f"{self.kind}({self.column or ''})"


def count(column: str | None = None) -> Aggregate:
    """How many rows there were; of a column, how many values that are not null."""
    return Aggregate(AggregateKind.COUNT, column)


def sum(column: str) -> Aggregate:
    """The sum of a column of numbers: int64 (uint64 for uint64) or float64."""
    return Aggregate(AggregateKind.SUM, column)


def min(column: str) -> Aggregate:
    """The lowest value of a column of numbers, dates or times."""
    return Aggregate(AggregateKind.MIN, column)


def max(column: str) -> Aggregate:
    """The highest value of a column of numbers, dates or times."""
    return Aggregate(AggregateKind.MAX, column)


class Accumulator:
    """The values of one aggregate for all slots."""

    def __init__(self, aggregate: Aggregate, schema: pa.Schema) -> None:
        self._aggregate = aggregate
        self.type = aggregate.type_in(schema)
        self._values: npt.NDArray[Any] = np.zeros(_INITIAL_SLOTS, storage_dtype(self.type))
        self._seen: npt.NDArray[np.bool_] | None = None
        """Which slots have a value; None as long as all have. Counts always have one."""
        self._used = 0

    def add(self, batch: pa.RecordBatch, slots: Slots, keys: int) -> None:
        """Adds the rows of a batch, each to its slot; `keys` slots are in use afterwards."""
        fresh = slice(self._used, keys)
        self._reserve(keys)
        name = self._aggregate.column
        column = None if name is None else batch.column(name)
        if column is not None and column.null_count:
            valid = valid_rows(column)
            slots, column = slots[valid], column.drop_null()
            if self._seen is None and self._aggregate.kind is not AggregateKind.COUNT:
                self._seen = np.zeros(len(self._values), np.bool_)
                self._seen[: fresh.start] = True
        self._values[fresh] = self._neutral()
        if self._seen is not None:
            self._seen[slots] = True
        self._accumulate(slots, column)

    def add_and_tell(self, batch: pa.RecordBatch, found: Found, keys: int) -> pa.Array:
        """As `add`, and the results for the keys of `found`: in one pass for what most jobs do."""
        kernels = compiled(len(found.slots)) if self._values.dtype.itemsize == 8 else None
        name = self._aggregate.column
        column = None if name is None else batch.column(name)
        counts = self._aggregate.kind is AggregateKind.COUNT
        plain = self._seen is None and (column is None or not column.null_count)
        if kernels is None or not plain or not (counts or self._aggregate.kind is AggregateKind.SUM):
            self.add(batch, found.slots, keys)
            return self.results(found.slots[found.first_rows])
        fresh = slice(self._used, keys)
        self._reserve(keys)
        self._values[fresh] = 0
        results = np.empty(len(found.first_rows), self._values.dtype)
        if counts:
            kernels.count_and_tell(self._values, found.slots, found.places, results)
        else:
            assert column is not None
            values = fixed_width_values(column, storage_dtype(column.type).str).astype(self._values.dtype, copy=False)
            kernels.add_and_tell(self._values, found.slots, found.places, read_only(values), results)
        return self.frozen_results(results, None)

    def _accumulate(self, slots: Slots, column: pa.Array | None) -> None:
        kind, totals = self._aggregate.kind, self._values
        kernels = compiled(len(slots)) if totals.dtype != np.float16 else None  # Numba knows no half floats
        if column is None or kind is AggregateKind.COUNT:
            if kernels is not None:
                kernels.add_ones(totals, slots)
            else:
                np.add.at(totals, slots, 1)
            return
        values = fixed_width_values(column, storage_dtype(column.type).str)
        if kind is AggregateKind.SUM:
            values = read_only(values.astype(totals.dtype, copy=False))
        if kernels is not None:
            function = {"sum": kernels.add_values, "min": kernels.keep_lowest, "max": kernels.keep_highest}[kind]
            function(totals, slots, values)
        else:
            ufunc = {"sum": np.add, "min": np.fmin, "max": np.maximum}[kind]
            with np.errstate(invalid="ignore"):  # comparing with NaN is no error here
                ufunc.at(totals, slots, values)

    def results(self, slots: Slots | slice) -> pa.Array:
        """The values of some slots; shares no memory with the accumulator."""
        values = self._values[slots]
        if isinstance(slots, slice):
            values = values.copy()
        return self.frozen_results(values, None if self._seen is None else self._seen[slots])

    @property
    def arrays(self) -> list[npt.NDArray[Any]]:
        """What is kept, for `FrozenArrays`; `frozen_results` turns it back into a column."""
        return [self._values] if self._seen is None else [self._values, self._seen]

    def frozen_results(self, values: npt.NDArray[Any], seen: npt.NDArray[np.bool_] | None) -> pa.Array:
        """The column of values that were taken from `arrays`. Touches nothing that changes."""
        column = pa.array(values, mask=None if seen is None else ~seen)
        return column if column.type == self.type else column.view(self.type)

    def put(self, slots: Slots, column: pa.Array, keys: int) -> None:
        """Takes up stored results, each for its slot."""
        self._reserve(keys)
        if column.null_count and self._seen is None:
            self._seen = np.zeros(len(self._values), np.bool_)
            self._seen[: self._used] = True
        valid = valid_rows(column)
        self._values[slots] = np.where(valid, fixed_width_values(column, self._values.dtype.str), self._neutral())
        if self._seen is not None:
            self._seen[slots] = valid

    def _neutral(self) -> Any:
        """What a slot starts from, so that any value replaces it."""
        dtype, kind = self._values.dtype, self._aggregate.kind
        if kind in (AggregateKind.COUNT, AggregateKind.SUM):
            return 0
        if dtype.kind == "f":
            return np.nan if kind is AggregateKind.MIN else -np.inf
        limits = np.iinfo(dtype)
        return limits.max if kind is AggregateKind.MIN else limits.min

    def _reserve(self, keys: int) -> None:
        self.expect(keys)
        self._used = keys

    def expect(self, keys: int) -> None:
        """Makes room for so many keys at once."""
        capacity = len(self._values)
        if keys > capacity:
            while capacity < keys:
                capacity *= 2
            self._values = np.concatenate([self._values, np.zeros(capacity - len(self._values), self._values.dtype)])
            if self._seen is not None:
                self._seen = np.concatenate([self._seen, np.zeros(capacity - len(self._seen), np.bool_)])
