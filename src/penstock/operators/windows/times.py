"""Event time as a column: from whatever a stream keeps it in to whole numbers, and back for a window's bounds.

Times are compared in the column's own ticks where that is finer than a millisecond, so that nothing is rounded: a
record of 9.9995 s is not in the window that begins at 10 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from penstock.kernels.hashing import fixed_width_values

Times = npt.NDArray[np.int64]

_TICKS: Final = {"s": 1, "ms": 1, "us": 1_000, "ns": 1_000_000}
_DAY: Final = 86_400_000


@dataclass(frozen=True)
class EventTime:
    """Where a stream has its event time."""

    column: str
    shift: int = 0
    """Milliseconds to add: what a window puts out happened in its last millisecond, one before `window_end`."""


class TimeColumn:
    """The times of the rows of a stream."""

    def __init__(self, time: EventTime, schema: pa.Schema) -> None:
        self._name, self._type = time.column, schema.field(time.column).type
        self.ticks = _TICKS[self._type.unit] if pat.is_timestamp(self._type) else 1
        """In a millisecond."""
        self._shift = time.shift * self.ticks

    @property
    def bound_type(self) -> pa.DataType:
        """The type of `window_start` and `window_end`: that of the column, but fine and wide enough."""
        if pat.is_timestamp(self._type):
            return self._type if self._type.unit != "s" else pa.timestamp("ms", self._type.tz)
        return pa.timestamp("ms") if pat.is_date(self._type) else pa.int64()

    def of(self, batch: pa.RecordBatch) -> tuple[Times, npt.NDArray[np.bool_] | None]:
        """In ticks; and which rows have a time, None if all have. What stands for no time is arbitrary."""
        column = batch.column(self._name)
        valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
        return self._ticks_of(column) + self._shift if self._shift else self._ticks_of(column), valid

    def _ticks_of(self, column: pa.Array) -> Any:
        width = self._type.bit_width // 8
        unsigned = pat.is_unsigned_integer(self._type)
        values = fixed_width_values(column, f"{'u' if unsigned else 'i'}{width}").astype(np.int64, copy=False)
        if pat.is_date32(self._type):
            return values * _DAY
        return values * 1_000 if pat.is_timestamp(self._type) and self._type.unit == "s" else values

    def from_ticks(self, ticks: Times) -> pa.Array:
        """A column of times in `bound_type`."""
        return pa.array(ticks).view(self.bound_type)

    def bounds(self, times: Times) -> pa.Array:
        """A column of milliseconds in `bound_type`."""
        return self.from_ticks(times * self.ticks)
