"""What all joins by event time have in common: when a row is late, and how far event time has come.

Both sides share one event time, the lowest of both. Records that are older than it are *late*: they go to the side
outputs `late` and `late_right`, and so do those without a time. What is late is known by key group (`Progress`), so
that it does not change when a job goes on at another parallelism.

Times are compared in ticks of the finer of the two columns, so that nothing is rounded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.kernels.hashing import hash_columns, key_groups_of_hashes
from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.operators.joins.rowlog import Keeps
from penstock.operators.joins.rows import Mask, Numbers
from penstock.operators.joins.shape import Incoming, JoinSide
from penstock.operators.joins.state import JoinState
from penstock.operators.windows import progress as progress_module
from penstock.operators.windows.progress import Progress
from penstock.operators.windows.timed import LATE
from penstock.operators.windows.times import EventTime, TimeColumn
from penstock.runtime.elements import MIN_WATERMARK
from penstock.state.parts import LoggedState, OperatorSnapshot

LATE_RIGHT: Final = "late_right"
TIME: Final = "time"

_LATE: Final = (LATE, LATE_RIGHT)


class TimedJoinOperator(Operator, ABC):
    """Of rows with a `time`, and whatever else is `kept` of them."""

    passes_watermarks = False
    hold = 0
    """By how many milliseconds results may be older than the event time of the input."""

    def __init__(
        self, join: str, sides: Sequence[JoinSide], times: Sequence[EventTime], kept: Sequence[Sequence[str]]
    ) -> None:
        self.sides = sides
        self._times = [TimeColumn(time, side.schema) for time, side in zip(times, sides, strict=True)]
        self.finer = max(self._times, key=lambda time: time.ticks)
        self.ticks = self.finer.ticks
        """In a millisecond, of all times here."""
        description = f"{join} ({self.ticks} ticks)"
        self.state = JoinState(description, sides, [(TIME, *names) for names in kept])

    def open(self, context: OperatorContext) -> None:
        self._own, self._total = context.key_groups, context.total_key_groups
        self.progress = Progress(context.key_groups, context.total_key_groups)
        stored = [part for part in context.restored if part.name == progress_module.PART]
        if stored:
            self.progress.restore(stored)
        self.state.open(context, [self.keeps(side) for side in (0, 1)])
        for side, rows in enumerate(self.state.sides):
            every = rows.rows()
            self.expect(side, rows.numbers(every), rows.kept(TIME, every))

    def keeps(self, side: int) -> Keeps:
        """Which stored rows are still needed."""
        return lambda kept, groups: self.is_needed(side, kept[TIME], self.progress.watermarks_of(groups))

    # ---- what each join says ----
    @abstractmethod
    def is_needed(self, side: int, times: Numbers, watermarks: Numbers) -> Mask:
        """Of stored rows, when event time has come so far: whether they may still matter."""

    @abstractmethod
    def expect(self, side: int, numbers: Numbers, times: Numbers) -> None:
        """These rows are kept from now on."""

    @abstractmethod
    def take_up(self, side: int, rows: Incoming, times: Numbers, watermarks: Numbers, out: Collector) -> None:
        """Rows that are not late, each at the event time of its key."""

    @abstractmethod
    def advance(self, watermark: int, out: Collector) -> None:
        """Event time is about to come so far; `progress` is still as it was."""

    def is_late(self, side: int, times: Numbers, watermarks: Numbers) -> Mask:
        late: Mask = times // self.ticks <= watermarks
        return late

    # ---- rows ----
    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        own = self._times[input]
        ticks, valid = own.of(batch)
        times = ticks * (self.ticks // own.ticks)
        watermarks = self._watermarks(self.sides[input].key_of(batch), len(times))
        late = self.is_late(input, times, watermarks)
        if valid is not None:
            late |= ~valid
        if late.any():
            out.emit_side(_LATE[input], batch.filter(pa.array(late)))
            batch, times, watermarks = batch.filter(pa.array(~late)), times[~late], watermarks[~late]
        if len(times):
            self.take_up(input, self.sides[input].rows_of(batch), times, watermarks, out)

    def _watermarks(self, keys: list[pa.Array], rows: int) -> Numbers:
        """Of every row the event time of its key."""
        groups = np.full(rows, 0, np.int32)
        if self.progress.differs:
            groups = key_groups_of_hashes(hash_columns(keys), self._total)
        return self.progress.watermarks_of(groups)

    def groups_of(self, slots: Numbers) -> npt.NDArray[np.int32]:
        """The key groups of some keys."""
        return key_groups_of_hashes(hash_columns(self.state.keys.of(slots)), self._total)

    # ---- time ----
    def on_watermark(self, time: int, out: Collector) -> None:
        if time > self.progress.watermark:
            self.advance(time, out)
            self.progress.advance(time)

    def emitted_watermark(self) -> int | None:
        watermark = self.progress.watermark
        return None if watermark == MIN_WATERMARK else max(watermark - self.hold, MIN_WATERMARK)

    # ---- snapshots ----
    def logged(self) -> Sequence[LoggedState]:
        return tuple(self.state.sides)

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        return OperatorSnapshot((self.progress.capture(),))
