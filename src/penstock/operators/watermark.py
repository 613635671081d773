"""with_watermark: event time from a column.

The watermark is the highest time seen so far, minus the delay that late records may have, minus one millisecond (a
record of exactly that time may still follow). It replaces whatever came from upstream, except for the end of all time.
It never goes back; over a restart it is kept as operator state: each subtask takes up its own, and at another
parallelism, where records of all old subtasks may arrive at each new one, the lowest.

Where a source reads several splits at a time, each has a time of its own, and the watermark is that of the slowest: a
split that is read faster than another makes no record of the other late. With `idle_after`, a split that has had no
records for so long is left out; when all are, the subtask says that it is idle, and event time goes on without it.

With `max_drift`, a source that is further ahead of the slowest one of the job that has it too waits (`core/drift.py`):
what it read ahead would only pile up in windows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.barrier import Barrier
from penstock.kernels.hashing import fixed_width_values, storage_dtype
from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.runtime.elements import MAX_WATERMARK, MIN_WATERMARK
from penstock.state.parts import CapturedPart, OperatorSnapshot, PartKind
from penstock.state.tables import check_version

_PART: Final = "watermark"
_STATE: Final = struct.Struct("<BIq")
"""Version, parallelism of the writer, watermark."""
_VERSION: Final = 1

_TICKS_PER_MS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}


@dataclass(slots=True)
class _Split:
    """What is known of one split; of the input as a whole, where there are none."""

    time: int = MIN_WATERMARK
    """Its own watermark."""
    heard_ms: int = 0
    """When it last had records, or was first heard of; by the wall clock. Kept if splits can become idle."""
    idle: bool = False


class WatermarkOperator(Operator):
    passes_watermarks = False

    def __init__(self, column: str, delay_ms: int, idle_ms: int | None = None, drift_ms: int | None = None) -> None:
        self._column, self._delay_ms, self._idle_ms, self._drift_ms = column, delay_ms, idle_ms, drift_ms
        self._slowest: int | None = None
        self._watermark = MIN_WATERMARK
        self._parallelism = 1
        self._splits: dict[str | None, _Split] = {}
        self._split: str | None = None

    def open(self, context: OperatorContext) -> None:
        self._parallelism, self._clock = context.parallelism, context.clock
        self._splits = {None: self._new_split()}
        parts = {part.subtask: part for part in context.restored if part.name == _PART}
        stored = {subtask: _STATE.unpack(part.read()) for subtask, part in parts.items()}
        if not stored:
            return
        for subtask, (version, _, _) in stored.items():
            check_version(parts[subtask], version, _VERSION)
        own = stored.get(context.subtask)
        if own is not None and own[1] == context.parallelism and context.same_share:
            self._watermark = own[2]
        else:
            self._watermark = min(watermark for _, _, watermark in stored.values())

    def _new_split(self) -> _Split:
        return _Split(heard_ms=0 if self._idle_ms is None else self._clock.wall_ms())

    def on_split(self, split: str | None, splits: frozenset[str] | None) -> None:
        self._split = split
        names: list[str | None] = [*sorted(splits or ())]
        if split not in names:
            names.append(split)
        self._splits = {name: self._splits.get(name) or self._new_split() for name in names}

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        split = self._splits[self._split]
        if self._idle_ms is not None:
            split.heard_ms, split.idle = self._clock.wall_ms(), False
        highest = latest_ms(batch.column(self._column))
        if highest is not None:
            split.time = max(split.time, highest - self._delay_ms - 1)
            self._advance()
        out.emit(batch)

    def _advance(self) -> None:
        """The watermark is that of the slowest split that speaks; while none does, time stands still."""
        times = [split.time for split in self._splits.values() if not split.idle]
        self._watermark = max(self._watermark, min(times, default=MIN_WATERMARK))

    def on_watermark(self, time: int, out: Collector) -> None:
        if time == MAX_WATERMARK:
            self._watermark = MAX_WATERMARK

    def emitted_watermark(self) -> int | None:
        return None if self._watermark == MIN_WATERMARK else self._watermark

    # ---- idleness ----
    def is_idle(self, input_idle: bool) -> bool:
        return input_idle or all(split.idle for split in self._splits.values())

    def next_timer(self) -> int | None:
        if self._idle_ms is None or self._watermark == MAX_WATERMARK:
            return None
        heard = [split.heard_ms for split in self._splits.values() if not split.idle]
        return min(heard) + self._idle_ms if heard else None

    def on_timer(self, now_ms: int, out: Collector) -> None:
        if self._idle_ms is not None:
            for split in self._splits.values():
                if self.is_ahead:  # it has records, but waits
                    split.heard_ms = now_ms
                split.idle |= split.heard_ms + self._idle_ms <= now_ms
            self._advance()

    # ---- alignment ----
    @property
    def is_aligned(self) -> bool:
        return self._drift_ms is not None

    @property
    def aligned_time(self) -> int | None:
        """None while it says nothing about time."""
        silent = self._watermark in (MIN_WATERMARK, MAX_WATERMARK) or self.is_idle(False)
        return None if self._drift_ms is None or silent else self._watermark

    @property
    def is_ahead(self) -> bool:
        """Further ahead of the slowest source than it may be."""
        if self._drift_ms is None or self._slowest is None or self._watermark == MAX_WATERMARK:
            return False
        return self._watermark - self._slowest > self._drift_ms

    def align(self, slowest: int) -> None:
        self._slowest = slowest

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        state = _STATE.pack(_VERSION, self._parallelism, self._watermark)
        return OperatorSnapshot((CapturedPart(_PART, PartKind.UNION, lambda: (state,), small=True),))


def latest_ms(column: pa.Array) -> int | None:
    """The column's highest time in milliseconds since the epoch (whole numbers are taken as that); None if all are
    null."""
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"))
    highest = _highest(column)
    if highest is None or not pa.types.is_timestamp(column.type):
        return highest
    return _milliseconds(highest, column.type.unit)


def _highest(column: pa.Array) -> int | None:
    """Arrow's own search lets go of the GIL, and waiting for it again takes longer than looking at a few thousand
    numbers does."""
    if column.null_count or not len(column):
        return pc.max(column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).as_py()
    return int(fixed_width_values(column, storage_dtype(column.type)).max())


def _milliseconds(time: int, unit: str) -> int:
    """Rounded down: a watermark must not promise more than was seen."""
    return time * 1_000 if unit == "s" else time // _TICKS_PER_MS[unit]
