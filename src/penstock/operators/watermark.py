"""with_watermark: event time from a column.

The watermark is the highest time seen so far, minus the delay that late records may have, minus one millisecond (a
record of exactly that time may still follow). It replaces whatever came from upstream, except for the end of all time.
It never goes back; over a restart it is kept as operator state: each subtask takes up its own, and at another
parallelism, where records of all old subtasks may arrive at each new one, the lowest.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.barrier import Barrier
from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.runtime.elements import MAX_WATERMARK, MIN_WATERMARK
from penstock.state.parts import CapturedPart, OperatorSnapshot, PartKind

_PART: Final = "watermark"
_STATE: Final = struct.Struct("<BIq")
"""Version, parallelism of the writer, watermark."""
_VERSION: Final = 1

_TICKS_PER_MS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}


class WatermarkOperator(Operator):
    passes_watermarks = False

    def __init__(self, column: str, delay_ms: int) -> None:
        self._column, self._delay_ms = column, delay_ms
        self._watermark = MIN_WATERMARK
        self._parallelism = 1

    def open(self, context: OperatorContext) -> None:
        self._parallelism = context.parallelism
        stored = {part.subtask: _STATE.unpack(part.read()) for part in context.restored if part.name == _PART}
        if not stored:
            return
        for version, _, _ in stored.values():
            if version != _VERSION:
                raise ValueError(
                    f"the stored watermark of {context.uid!r} has version {version}; this Penstock reads version "
                    f"{_VERSION}"
                )
        own = stored.get(context.subtask)
        if own is not None and own[1] == context.parallelism and context.same_share:
            self._watermark = own[2]
        else:
            self._watermark = min(watermark for _, _, watermark in stored.values())

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        highest = latest_ms(batch.column(self._column))
        if highest is not None:
            self._watermark = max(self._watermark, highest - self._delay_ms - 1)
        out.emit(batch)

    def on_watermark(self, time: int, out: Collector) -> None:
        if time == MAX_WATERMARK:
            self._watermark = MAX_WATERMARK

    def emitted_watermark(self) -> int | None:
        return None if self._watermark == MIN_WATERMARK else self._watermark

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        state = _STATE.pack(_VERSION, self._parallelism, self._watermark)
        return OperatorSnapshot((CapturedPart(_PART, PartKind.UNION, lambda: (state,)),))


def latest_ms(column: pa.Array) -> int | None:
    """The column's highest time in milliseconds since the epoch (whole numbers are taken as that); None if all are
    null."""
    data_type = column.type
    if pa.types.is_date(data_type):
        column = column.cast(pa.timestamp("ms"))
        data_type = column.type
    if pa.types.is_timestamp(data_type):
        highest = pc.max(column.cast(pa.int64())).as_py()
        return None if highest is None else _milliseconds(highest, data_type.unit)
    return pc.max(column).as_py()


def _milliseconds(time: int, unit: str) -> int:
    """Rounded down: a watermark must not promise more than was seen."""
    return time * 1_000 if unit == "s" else time // _TICKS_PER_MS[unit]
