"""Session windows: of each key, the records between which there was never a pause as long as the gap.

Theory of operation. A batch is taken up by the state, where sessions begin, grow and become one. A session ends a gap
after its last record: when the watermark passes that, it is put out, in portions, and takes no more records. The
operator answers for its own watermark, which stays before the end of a session that is not out yet.

A record is late if a session of it alone would be over: it goes to the side output `late`, and so do records without a
time. With an allowed lateness a session goes on to take records after it was put out. A record that changes it, without
making it go on beyond the watermark, has its row put out again at once; if it does go on, it is put out when it ends.

What is stored: the sessions; how far event time has come; and those sessions that had ended, but were not out yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.kernels.hashing import hash_columns, key_groups_of_hashes
from penstock.operators.aggregation.declare import Aggregate
from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.operators.windows import progress as progress_module
from penstock.operators.windows import sessionstate
from penstock.operators.windows.calendar import Calendar
from penstock.operators.windows.declare import EveryCount, EveryTime, SessionWindows, Trigger
from penstock.operators.windows.early import EarlyByCount, EarlyByTime
from penstock.operators.windows.intervals import Numbers
from penstock.operators.windows.keying import Keying
from penstock.operators.windows.progress import Progress
from penstock.operators.windows.sessionstate import FIRED, OPEN, PENDING, Sessions
from penstock.operators.windows.timed import LATE, windowed_schema
from penstock.operators.windows.times import EventTime, TimeColumn
from penstock.runtime.elements import MAX_WATERMARK, MIN_WATERMARK
from penstock.state.index import Slots
from penstock.state.parts import CapturedPart, LoggedState, OperatorSnapshot, PartKind

PORTION: Final = 1 << 16
"""How many sessions are put out in one step."""

_PENDING_PART: Final = "pending"
_DUE_NOW: Final = 0
_ALL: Final = 0
"""The pane, for early results: there are no panes here."""


class SessionWindowOperator(Operator):
    passes_watermarks = False

    def __init__(
        self,
        windows: SessionWindows,
        key: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        input_schema: pa.Schema,
        time: EventTime,
        lateness: int = 0,
        early: Trigger | None = None,
    ) -> None:
        self._keying = Keying(key, input_schema)
        self._time = TimeColumn(time, input_schema)
        self._schema = windowed_schema(input_schema, key, aggregates, self._time.bound_type)
        self._gap, self._lateness = windows.gap * self._time.ticks, lateness
        description = {"windows": str(windows), "ticks": self._time.ticks}
        self._sessions = Sessions(self._keying.columns, aggregates, input_schema, self._gap, description)
        self._ends, self._overs = Calendar(self._gap // 4), Calendar(self._gap // 4)
        self._pending = np.empty(0, np.int64)
        """Sessions that have ended and are not out yet, the first first."""
        self._by_count = EarlyByCount(early.count) if isinstance(early, EveryCount) else None
        self._by_time = EarlyByTime(early.ms) if isinstance(early, EveryTime) else None

    def open(self, context: OperatorContext) -> None:
        self._clock, self._own, self._total = context.clock, context.key_groups, context.total_key_groups
        self._progress = Progress(context.key_groups, context.total_key_groups)
        self._sessions.own(context.key_groups, context.total_key_groups)
        parts = {
            name: [part for part in context.restored if part.name == name]
            for name in (progress_module.PART, sessionstate.PART, _PENDING_PART)
        }
        if parts[progress_module.PART]:
            self._progress.restore(parts[progress_module.PART])
        slots = self._sessions.restore(context.uid, parts[sessionstate.PART], self._is_needed)
        self._resume(slots, self._sessions.put_apart(parts[_PENDING_PART]))

    def _is_needed(self, ends: Numbers, groups: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Of stored sessions: whether they are still to be put out, or may still change."""
        end = self._milliseconds(ends)
        needed: npt.NDArray[np.bool_] = end > self._progress.fired_of(groups)
        return needed | (end - 1 + self._lateness > self._progress.watermarks_of(groups))

    def _resume(self, slots: Slots, pending: Slots) -> None:
        sessions = self._sessions
        groups = key_groups_of_hashes(hash_columns(sessions.keys_of(slots)), self._total)
        out = self._milliseconds(sessions.end[slots]) <= self._progress.fired_of(groups)
        sessions.status[slots[out]] = FIRED
        twins = sessions.twins(pending)  # those that may still change are among the others, too
        sessions.free(pending[twins >= 0])
        pending = np.where(twins >= 0, twins, pending)
        sessions.status[pending] = PENDING
        self._pending = pending[np.argsort(sessions.end[pending], kind="stable")]
        self._ends.file(sessions.end[slots[~out]], slots[~out])
        self._overs.file(sessions.end[slots[out]] + self._lateness * self._time.ticks, slots[out])

    def _milliseconds(self, ends: Any) -> Any:
        """Of ends in ticks: the first millisecond that is not before."""
        return -(-ends // self._time.ticks)

    # ---- rows ----
    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        times, valid = self._time.of(batch)
        late = self._late_rows(batch, times)
        if valid is not None:
            late = ~valid if late is None else late | ~valid
        if late is not None and late.any():
            out.emit_side(LATE, batch.filter(pa.array(late)))
            batch, times = batch.filter(pa.array(~late)), times[~late]
        if len(times):
            changed, of_rows = self._sessions.take_up(batch, self._keying.of(batch), times)
            self._changed(changed, of_rows, out)

    def _late_rows(self, batch: pa.RecordBatch, times: Numbers) -> npt.NDArray[np.bool_] | None:
        """Which rows would be sessions that are over; None if none."""
        if self._progress.differs:
            groups = key_groups_of_hashes(hash_columns(self._keying.of(batch)), self._total)
            over = self._milliseconds(times + self._gap) - 1 + self._lateness
            return over <= self._progress.watermarks_of(groups)
        if self._progress.watermark == MIN_WATERMARK:
            return None
        limit = self._limit(self._lateness) - self._gap
        return times <= limit if int(times.min(initial=MAX_WATERMARK)) <= limit else None

    def _limit(self, lateness: int = 0) -> int:
        """Sessions that end up to here, in ticks, have ended."""
        return (self._progress.watermark + 1 - lateness) * self._time.ticks

    def _changed(self, slots: Slots, of_rows: Slots, out: Collector) -> None:
        sessions, limit = self._sessions, self._limit()
        ended = sessions.end[slots] <= limit
        again = slots[ended & (sessions.status[slots] != PENDING)]
        if len(again):  # late, but allowed
            out.emit(self._rows(again))
            self._put_away(again)
        going_on = slots[~ended]
        sessions.status[going_on] = OPEN
        self._ends.file(sessions.end[going_on], going_on)
        if self._by_time is not None:
            self._by_time.note(_ALL, going_on, self._clock.wall_ms())
        if self._by_count is not None:
            due = self._by_count.due(_ALL, of_rows, sessions.size)
            due = due[sessions.status[due] == OPEN]
            if len(due):
                out.emit(self._rows(due))

    # ---- time ----
    def on_watermark(self, time: int, out: Collector) -> None:
        self._progress.advance(time)
        self._end_sessions()
        if len(self._pending):
            self._fire_portion(out)
        while time == MAX_WATERMARK and len(self._pending):
            self._fire_portion(out)  # nothing comes after the end of time: whatever waits for it has to go out now
        self._forget_sessions()

    def _end_sessions(self) -> None:
        """Those that have ended wait to be put out, and take no more records unless they may be late."""
        sessions, limit = self._sessions, self._limit()
        if self._ends.may_be_due(limit):
            slots = self._ends.take(limit)
            slots = slots[sessions.status[slots] == OPEN]
            ended = sessions.end[slots] <= limit
            self._ends.file(sessions.end[slots[~ended]], slots[~ended])
            slots = slots[ended]
            sessions.status[slots] = PENDING
            if not self._lateness:
                sessions.unlink(slots)
            self._pending = np.concatenate([self._pending, slots[np.argsort(sessions.end[slots], kind="stable")]])
        self._progress.fire(min(self._progress.watermark, MAX_WATERMARK - 1) + 1)

    def _fire_portion(self, out: Collector) -> None:
        slots, self._pending = self._pending[:PORTION], self._pending[PORTION:]
        slots = np.unique(slots[self._sessions.status[slots] == PENDING])  # others went on, or are part of others
        out.emit(self._rows(slots))
        self._put_away(slots)

    def _put_away(self, slots: Slots) -> None:
        """They are out: kept as long as they may change."""
        if not self._lateness:
            return self._free(slots)
        sessions = self._sessions
        sessions.status[slots] = FIRED
        self._overs.file(sessions.end[slots] + self._lateness * self._time.ticks, slots)
        return None

    def _forget_sessions(self) -> None:
        limit = self._limit()
        if self._overs.may_be_due(limit):
            sessions, late = self._sessions, self._lateness * self._time.ticks
            slots = self._overs.take(limit)
            slots = slots[sessions.status[slots] == FIRED]
            over = sessions.end[slots] + late <= limit
            self._overs.file(sessions.end[slots[~over]] + late, slots[~over])
            sessions.unlink(slots[over])
            self._free(slots[over])

    def _free(self, slots: Slots) -> None:
        self._sessions.free(slots)
        if self._by_count is not None:
            self._by_count.forget(_ALL, slots)

    def emitted_watermark(self) -> int | None:
        watermark = self._progress.watermark
        if len(self._pending):
            end = int(self._milliseconds(self._sessions.end[self._pending[0]]))
            watermark = min(watermark, end - 2)  # what is put out happened before its end
        return None if watermark == MIN_WATERMARK else watermark

    def is_idle(self, input_idle: bool) -> bool:
        return input_idle and len(self._pending) == 0

    def next_timer(self) -> int | None:
        if len(self._pending):
            return _DUE_NOW
        return None if self._by_time is None else self._by_time.at

    def on_timer(self, now_ms: int, out: Collector) -> None:
        if len(self._pending):
            self._fire_portion(out)
            self._forget_sessions()
        if self._by_time is not None and self._by_time.at is not None and self._by_time.at <= now_ms:
            for slots in self._by_time.take().values():
                out.emit(self._rows(slots[self._sessions.status[slots] == OPEN]))

    # ---- output and snapshots ----
    def _rows(self, slots: Slots) -> pa.RecordBatch:
        sessions = self._sessions
        bounds = [self._time.from_ticks(times[slots]) for times in (sessions.start, sessions.end)]
        keys = self._keying.shown(sessions.keys_of(slots))
        return pa.RecordBatch.from_arrays([*keys, *bounds, *sessions.results(slots)], schema=self._schema)

    def logged(self) -> Sequence[LoggedState]:
        return (self._sessions,)

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        pending = self._pending[self._sessions.status[self._pending] == PENDING]
        if not len(pending):
            return OperatorSnapshot((self._progress.capture(),))
        encode = self._sessions.captured(pending)
        part = CapturedPart(_PENDING_PART, PartKind.KEYED, encode, key_groups=self._own)
        return OperatorSnapshot((self._progress.capture(), part))
