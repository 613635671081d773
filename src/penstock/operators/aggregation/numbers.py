"""Counts, and sums, minima and maxima of numbers, dates and times: one number per slot.

Counts and sums of 64 bits may be kept beside the keys of a table, where a find adds to them (`table`); all others are
in an array of their own.

A sum, minimum or maximum of nothing is null. NaN counts as higher than all numbers. Sums of whole numbers are 64 bits
wide and wrap around.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.kernels.additions import ADD, ADD_FRACTION, COUNT, LEAVE
from penstock.kernels.hashing import fixed_width_values, read_only, storage_dtype, valid_rows
from penstock.kernels.loading import compiled
from penstock.operators.aggregation.accumulator import (
    INITIAL_SLOTS,
    Accumulator,
    Array,
    ToColumns,
    empty_slots,
    grown,
)
from penstock.state.index import Found, Payload, Slots


class NumberKind(StrEnum):
    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


_UFUNCS: Final = {
    NumberKind.COUNT: np.add,
    NumberKind.SUM: np.add,
    NumberKind.MIN: np.fmin,
    NumberKind.MAX: np.maximum,
}


class NumberAccumulator(Accumulator):
    def __init__(self, kind: NumberKind, column: str | None, type: pa.DataType, *, weighted: bool = False) -> None:
        """`weighted`: a count of rows that each stand for as many as their column says."""
        self._kind, self._column, self.type = kind, column, type
        self._counts_rows = kind is NumberKind.COUNT and not weighted
        self.stored = {"": type}
        self._neutral = _neutral(kind, storage_dtype(type))
        self._dtype = storage_dtype(type)
        self._own: Array | None = empty_slots((INITIAL_SLOTS,), self._dtype, self._neutral)
        """None: the values are kept beside the keys."""
        self._beside: Callable[[], Payload]
        self._seen: npt.NDArray[np.bool_] | None = None
        """Which slots have a value; None as long as all have. Counts always have one."""
        self._used = 0

    @property
    def _values(self) -> Array:
        return self._beside().view(self._dtype) if self._own is None else self._own

    # ---- beside the keys ----
    @property
    def fits_beside(self) -> bool:
        return self._kind in (NumberKind.COUNT, NumberKind.SUM) and self._dtype.itemsize == 8

    def keep_beside(self, payload: Callable[[], Payload]) -> None:
        """Before anything is added: the values are there, which are 0 for a new key."""
        self._own, self._beside = None, payload

    def addition(self, batch: pa.RecordBatch, values: Payload) -> int:
        """What a find is to do for the rows of a batch; fills in what is added by each."""
        column = None if self._column is None else batch.column(self._column)
        if self._seen is not None or (column is not None and column.null_count):
            return LEAVE
        if column is None or self._counts_rows:
            return COUNT
        values.view(self._dtype)[:] = fixed_width_values(column, storage_dtype(column.type).str)
        return ADD_FRACTION if self._dtype.kind == "f" else ADD

    def added(self, sums: Payload, keys: int, tell: bool) -> pa.Array | None:
        """After a find did so; the results, if they are told."""
        self._used = keys
        return self._column_of(sums.view(self._dtype), None) if tell else None

    # ---- adding ----
    def add(self, batch: pa.RecordBatch, slots: Slots, keys: int) -> None:
        self.expect(keys)
        column = None if self._column is None else batch.column(self._column)
        if column is not None and column.null_count:
            slots, column = slots[valid_rows(column)], column.drop_null()
            self._tell_seen()
        self._used = keys
        if self._seen is not None:
            self._seen[slots] = True
        self._accumulate(slots, column)

    def add_and_tell(self, batch: pa.RecordBatch, found: Found, keys: int) -> pa.Array:
        """In one pass for what most jobs do: counts, and sums without nulls."""
        kernels = compiled(len(found.slots)) if self._dtype.itemsize == 8 else None
        column = None if self._column is None else batch.column(self._column)
        plain = self._seen is None and (column is None or not column.null_count)
        if kernels is None or not plain or self._kind not in (NumberKind.COUNT, NumberKind.SUM):
            return super().add_and_tell(batch, found, keys)
        self.expect(keys)
        self._used = keys
        results = np.empty(len(found.first_rows), self._values.dtype)
        if self._counts_rows:
            kernels.count_and_tell(self._values, found.slots, found.places, results)
        else:
            assert column is not None
            values = fixed_width_values(column, storage_dtype(column.type).str).astype(self._values.dtype, copy=False)
            kernels.add_and_tell(self._values, found.slots, found.places, read_only(values), results)
        return self._column_of(results, None)

    def _tell_seen(self) -> None:
        """From now on slots may be without a value."""
        if self._seen is None and self._kind is not NumberKind.COUNT:
            self._seen = np.zeros(max(INITIAL_SLOTS, len(self._values)), np.bool_)
            self._seen[: self._used] = True

    def _accumulate(self, slots: Slots, column: pa.Array | None) -> None:
        kind, totals = self._kind, self._values
        kernels = compiled(len(slots)) if totals.dtype != np.float16 else None  # Numba knows no half floats
        if column is None or self._counts_rows:
            if kernels is not None:
                kernels.add_ones(totals, slots)
            else:
                np.add.at(totals, slots, 1)
            return
        values = fixed_width_values(column, storage_dtype(column.type).str)
        if kind in (NumberKind.COUNT, NumberKind.SUM):
            values = read_only(values.astype(totals.dtype, copy=False))
        if kernels is not None:
            functions = {NumberKind.MIN: kernels.keep_lowest, NumberKind.MAX: kernels.keep_highest}
            functions.get(kind, kernels.add_values)(totals, slots, values)
        else:
            with np.errstate(invalid="ignore"):  # comparing with NaN is no error here
                _UFUNCS[kind].at(totals, slots, values)

    def merge(self, other: Self, theirs: Slots, slots: Slots, keys: int) -> None:
        self.expect(keys)
        if other._seen is not None:
            self._tell_seen()
        self._used = keys
        if self._seen is not None:
            self._seen[slots] |= True if other._seen is None else other._seen[theirs]
        values, ufunc = self._values, _UFUNCS[self._kind]
        with np.errstate(invalid="ignore"):
            values[slots] = ufunc(values[slots], other._values[theirs])

    def reset(self, slots: Slots) -> None:
        self._tell_seen()
        self._values[slots] = self._neutral
        if self._seen is not None:
            self._seen[slots] = False

    def clear(self, keys: int) -> bool:
        if self._own is not None:
            self._own[:keys] = self._neutral
        self._seen, self._used = None, 0
        return True

    def results(self, slots: Slots | slice) -> pa.Array:
        values = self._values[slots]
        if isinstance(slots, slice):
            values = values.copy()
        return self._column_of(values, None if self._seen is None else self._seen[slots])

    def _column_of(self, values: Array, seen: Array | None) -> pa.Array:
        column = pa.array(values, mask=None if seen is None else ~seen)
        return column if column.type == self.type else column.view(self.type)

    @property
    def arrays(self) -> list[Array]:
        return [array for array in (self._own, self._seen) if array is not None]

    def frozen(self) -> ToColumns:
        return lambda taken: [self._column_of(taken[0].view(self._dtype), taken[1] if len(taken) > 1 else None)]

    def put(self, slots: Slots, columns: Sequence[pa.Array], keys: int) -> None:
        (column,) = columns
        self.expect(keys)
        if column.null_count:
            self._tell_seen()
        self._used = keys
        valid = valid_rows(column)
        self._values[slots] = np.where(valid, fixed_width_values(column, self._values.dtype.str), self._neutral)
        if self._seen is not None:
            self._seen[slots] = valid

    def expect(self, keys: int) -> None:
        if self._own is not None:
            self._own = grown(self._own, keys, self._neutral)
        if self._seen is not None:
            self._seen = grown(self._seen, keys, 0)


def _neutral(kind: NumberKind, dtype: np.dtype[Any]) -> Any:
    """What a slot starts from, so that any value replaces it."""
    if kind in (NumberKind.COUNT, NumberKind.SUM):
        return 0
    if dtype.kind == "f":
        return np.nan if kind is NumberKind.MIN else -np.inf
    limits = np.iinfo(dtype)
    return limits.max if kind is NumberKind.MIN else limits.min
