"""The window join: rows of both sides that have the same key and are in the same window.

Theory of operation. Rows are kept by time until event time passes the end of their windows; then the rows of a window
are matched, put out and, after their last window, dropped.

For tumbling and sliding windows, rows are filed by pane (see `windows.panes`). A window is put out in portions of whole
keys, between which records and barriers are taken: a checkpoint then says which keys are out (`windows.fired`). What is
over is seen by its time alone. (A restore from the middle finds the rows of the other keys by time, too. So a sliding
window takes up what came after its end but before the checkpoint, which it would not have without the restore: records
that are late for this window, but not for the next one.)

Sessions are not kept as such: when the time of a row may be over, the rows of its key are put in order, both sides
together, and cut where there is a gap. What was put out is removed; that is recorded, because a session may be longer
than the time of its first row says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.operators.base import Collector, OperatorContext
from penstock.operators.joins.keys import complete
from penstock.operators.joins.output import INSERT, PORTION, Output, portions
from penstock.operators.joins.rowlog import Keeps
from penstock.operators.joins.rows import NONE, Mask, Numbers
from penstock.operators.joins.shape import How, Incoming, JoinSide, joined_schema
from penstock.operators.joins.timed import TIME, TimedJoinOperator
from penstock.operators.windows.assigner import Assigner
from penstock.operators.windows.calendar import Calendar
from penstock.operators.windows.declare import SessionWindows, TimeWindows
from penstock.operators.windows.fired import FiredKeys
from penstock.operators.windows.intervals import runs_of
from penstock.operators.windows.timed import WINDOW_END, WINDOW_START
from penstock.operators.windows.times import EventTime, TimeColumn
from penstock.runtime.elements import MAX_WATERMARK
from penstock.state.parts import OperatorSnapshot

_DUE_NOW: Final = 0


def bounds_of(sides: Sequence[JoinSide], times: Sequence[EventTime]) -> list[pa.Field]:
    """The columns of a window's bounds: of the finer one of both times."""
    columns = [TimeColumn(time, side.schema) for time, side in zip(times, sides, strict=True)]
    kind = max(columns, key=lambda column: column.ticks).bound_type
    return [pa.field(WINDOW_START, kind), pa.field(WINDOW_END, kind)]


class Part(NamedTuple):
    """Some rows of one side, and of each the window that it is in. Windows are numbers, of one key each."""

    rows: Numbers
    windows: Numbers

    def at(self, places: Numbers | slice) -> Part:
        return Part(self.rows[places], self.windows[places])


class WindowOnItsWay:
    """A window that has ended: which rows are in it, and how many of them are out. It is cut between keys."""

    def __init__(self, end: int, left: tuple[Numbers, Numbers], right: tuple[Numbers, Numbers]) -> None:
        """Of each side the numbers of rows, and their keys."""
        self.end = end
        keys, places = np.unique(np.concatenate([left[1], right[1]]), return_inverse=True)
        counts = [np.bincount(own, minlength=len(keys)) for own in np.split(places, [len(left[1])])]
        self._numbers = [numbers[np.argsort(owners, kind="stable")] for numbers, owners in (left, right)]
        weights = np.cumsum(np.maximum(counts[0] * counts[1], counts[0] + counts[1]))
        lasts = np.flatnonzero(np.append(weights[1:] // PORTION != weights[:-1] // PORTION, [True])[: len(keys)])
        self._cuts = [np.append([0], np.cumsum(count)[lasts]) for count in counts]
        self._next = 0

    @property
    def done(self) -> bool:
        return self._next >= len(self._cuts[0]) - 1

    def next(self) -> list[Numbers]:
        """Of each side the numbers of the rows to put out next."""
        begin, self._next = self._next, self._next + 1
        return [
            numbers[cuts[begin] : cuts[begin + 1]] if begin + 1 < len(cuts) else NONE
            for numbers, cuts in zip(self._numbers, self._cuts, strict=True)
        ]

    def out(self) -> list[Numbers]:
        """Of each side the numbers of the rows that are out."""
        return [numbers[: cuts[self._next]] for numbers, cuts in zip(self._numbers, self._cuts, strict=True)]


class WindowJoinOperator(TimedJoinOperator):
    def __init__(
        self,
        left: JoinSide,
        right: JoinSide,
        times: tuple[EventTime, EventTime],
        windows: TimeWindows | SessionWindows,
        how: How,
        suffix: str = "_right",
    ) -> None:
        super().__init__(f"window {windows}", (left, right), times, ((), ()))
        self._how = how
        schema = joined_schema(left, right, how, suffix, before=bounds_of((left, right), times))
        self._output = Output(left, how, schema, before=2)

    def take_up(self, side: int, rows: Incoming, times: Numbers, watermarks: Numbers, out: Collector) -> None:
        known = None if self._how.shows_unmatched(side) else complete(rows.keys)
        if known is not None:
            rows, times = rows.at(np.flatnonzero(known)), times[known]
        slots = self.state.find(rows.keys)
        self.expect(side, self.state.sides[side].add(slots, rows.columns, {TIME: times}), times)

    def put_out(self, left: Part, right: Part, starts: Numbers, ends: Numbers, out: Collector) -> None:
        """Matches rows of the same windows, whose bounds are in ticks."""
        of_left, of_right = self._matched(left, right)
        for portion in portions(len(of_left)) if self._how.pairs else ():
            self._emit(left.at(of_left[portion]), right.at(of_right[portion]), starts, ends, out)
        for side, (part, matched) in enumerate(((left, of_left), (right, of_right))):
            alone = np.ones(len(part.rows), np.bool_)
            alone[matched] = False
            if self._how.shows_unmatched(side) or (self._how is How.SEMI and side == 0):
                shown = part.at(np.flatnonzero(alone == self._how.shows_unmatched(side)))
                for portion in portions(len(shown.rows)):
                    some = shown.at(portion)
                    self._emit(some if side == 0 else None, some if side == 1 else None, starts, ends, out)

    def _matched(self, left: Part, right: Part) -> tuple[Numbers, Numbers]:
        """Every pair: the places of both in their parts. Where no pairs are put out, one for each row of the left."""
        order = np.argsort(right.windows, kind="stable")
        ordered = right.windows[order]
        begins = np.searchsorted(ordered, left.windows, side="left")
        counts = np.searchsorted(ordered, left.windows, side="right") - begins
        if self._how is How.FULL:  # only then are there keys with nulls on both sides
            known = complete(self.state.keys.of(self.state.sides[0].owners(left.rows)))
            counts = counts if known is None else np.where(known, counts, 0)
        if not self._how.pairs:  # one match is as good as many
            counts = np.minimum(counts, 1)
        of_left = np.repeat(np.arange(len(counts)), counts)
        within = np.arange(len(of_left)) - np.repeat(np.cumsum(counts) - counts, counts)
        return of_left, order[np.repeat(begins, counts) + within]

    def _emit(self, left: Part | None, right: Part | None, starts: Numbers, ends: Numbers, out: Collector) -> None:
        columns: list[list[pa.Array] | None] = []
        windows = owners = NONE
        for store, part in zip(self.state.sides, (left, right), strict=True):
            columns.append(None if part is None else store.take(part.rows))
            if part is not None:
                windows, owners = part.windows, store.owners(part.rows)
        before = [self.finer.from_ticks(bound[windows]) for bound in (starts, ends)]
        self._output.emit(out, INSERT, self.state.keys.of(owners), columns[0], columns[1], before)


class TimeWindowJoinOperator(WindowJoinOperator):
    """Tumbling and sliding windows."""

    def __init__(
        self,
        left: JoinSide,
        right: JoinSide,
        times: tuple[EventTime, EventTime],
        windows: TimeWindows,
        how: How,
        suffix: str = "_right",
    ) -> None:
        super().__init__(left, right, times, windows, how, suffix)
        self._assigner = Assigner(windows, 0)
        self._panes: tuple[dict[int, list[Numbers]], ...] = ({}, {})
        """Of each side, by the start of a pane: the numbers of its rows."""
        self._pending: deque[WindowOnItsWay] = deque()
        """Windows that have ended and are not out yet, the first first."""
        self._fired_keys = FiredKeys(self.state.keys.columns)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._fired_keys.restore([part for part in context.restored if part.name == FiredKeys.PART], self._own)
        self._begin_windows(self.progress.fired, self.progress.watermark)

    def is_late(self, side: int, times: Numbers, watermarks: Numbers) -> Mask:
        late: Mask = times // self.ticks < self._assigner.first_live(watermarks)
        return late

    def is_needed(self, side: int, times: Numbers, watermarks: Numbers) -> Mask:
        needed: Mask = self._last_ends(times) - 1 > watermarks
        return needed

    def _last_ends(self, times: Numbers) -> Numbers:
        """Of the windows that these moments are in, the last one's end."""
        ends: Numbers = self._assigner.last_end(self._panes_of(times))
        return ends

    def keeps(self, side: int) -> Keeps:
        return lambda kept, groups: self._last_ends(kept[TIME]) > self.progress.fired_of(groups)

    def _panes_of(self, times: Numbers) -> Numbers:
        length, origin = self._assigner.pane, self._assigner.origin
        starts: Numbers = (times // self.ticks - origin) // length * length + origin
        return starts

    def expect(self, side: int, numbers: Numbers, times: Numbers) -> None:
        panes = self._panes_of(times)
        for start in np.unique(panes).tolist():
            self._panes[side].setdefault(start, []).append(numbers[panes == start])

    # ---- time ----
    def advance(self, watermark: int, out: Collector) -> None:
        self._begin_windows(self.progress.watermark + 1, watermark)
        self.progress.advance(watermark)
        self._put_out_portion(out)
        while self._pending and watermark == MAX_WATERMARK:
            self._put_out_portion(out)  # nothing comes after the end of time: whatever waits for it has to go out now

    def _begin_windows(self, begun: int, watermark: int) -> None:
        """Those that have ended by now and end after `begun`. What comes later is not in them."""
        starts = {*self._panes[0], *self._panes[1]}
        ends = {end for start in starts for end in self._assigner.ends(start) if begun < end <= watermark + 1}
        for end in sorted(ends):
            panes = [start for start in sorted(starts) if self._assigner.start(end) <= start < end]
            self._pending.append(self._begin(end, panes))

    def _begin(self, end: int, starts: Sequence[int]) -> WindowOnItsWay:
        keys = self.state.keys
        skipped = self._fired_keys.mask(end, keys)
        sides = []
        for store, panes in zip(self.state.sides, self._panes, strict=True):
            rows = store.numbered(np.concatenate([NONE, *(some for start in starts for some in panes.get(start, ()))]))
            if skipped is not None:
                rows = rows[~skipped[store.owners(rows)]]
            if self.progress.differs and len(rows):
                rows = rows[self.progress.fired_of(self.groups_of(store.owners(rows))) < end]
            sides.append((store.numbers(rows), store.owners(rows)))
        return WindowOnItsWay(end, *sides)

    def _put_out_portion(self, out: Collector) -> None:
        if self._pending:
            window = self._pending[0]
            parts = []
            for store, numbers in zip(self.state.sides, window.next(), strict=True):
                rows = store.numbered(numbers)
                parts.append(Part(rows, store.owners(rows)))
            times = self._assigner.start(window.end) * self.ticks, window.end * self.ticks
            starts, ends = (np.broadcast_to(np.int64(time), len(self.state.keys)) for time in times)
            self.put_out(parts[0], parts[1], starts, ends, out)
            if window.done:
                self._pending.popleft()
                self._fired_keys.forget(window.end)
        self._settle()

    def _settle(self) -> None:
        """Says which windows are out, and drops what is in no other."""
        watermark = min(self.progress.watermark, MAX_WATERMARK - 1)
        self.progress.fire(self._pending[0].end - 1 if self._pending else watermark + 1)
        for store, panes in zip(self.state.sides, self._panes, strict=True):
            for start in [start for start in panes if self._assigner.last_end(start) <= self.progress.fired]:
                store.remove(store.numbered(np.concatenate(panes.pop(start))))

    def emitted_watermark(self) -> int | None:
        watermark = super().emitted_watermark()
        if watermark is None or not self._pending:
            return watermark
        return min(watermark, self._pending[0].end - 2)  # what is put out happened before the window's end

    def is_idle(self, input_idle: bool) -> bool:
        return input_idle and not self._pending

    def next_timer(self) -> int | None:
        return _DUE_NOW if self._pending else None

    def on_timer(self, now_ms: int, out: Collector) -> None:
        self._put_out_portion(out)

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        fired = self._fired_keys.capture_keys(self._keys_out(), self._own, self._total)
        return OperatorSnapshot((*super().snapshot(barrier).parts, *fired))

    def _keys_out(self) -> tuple[int, list[pa.Array]] | None:
        """The end of the window that is on its way out, and its keys that are; None if there is none."""
        if not self._pending:
            return None
        window, keys = self._pending[0], self.state.keys
        pairs = zip(self.state.sides, window.out(), strict=True)
        slots = np.unique(np.concatenate([store.owners(store.numbered(numbers)) for store, numbers in pairs]))
        if not len(slots):
            return None
        before = self._fired_keys.mask(window.end, keys)
        return window.end, keys.of(slots if before is None else np.union1d(slots, np.flatnonzero(before)))


class SessionJoinOperator(WindowJoinOperator):
    """Of a key: rows of both sides with no pause of the gap between them."""

    def __init__(
        self,
        left: JoinSide,
        right: JoinSide,
        times: tuple[EventTime, EventTime],
        windows: SessionWindows,
        how: How,
        suffix: str = "_right",
    ) -> None:
        super().__init__(left, right, times, windows, how, suffix)
        self._gap = windows.gap * self.ticks
        self._ends = Calendar(self._gap // 4), Calendar(self._gap // 4)

    def is_late(self, side: int, times: Numbers, watermarks: Numbers) -> Mask:
        late: Mask = (times + self._gap - 1) // self.ticks <= watermarks
        return late

    def is_needed(self, side: int, times: Numbers, watermarks: Numbers) -> Mask:
        return np.ones(len(times), np.bool_)

    def expect(self, side: int, numbers: Numbers, times: Numbers) -> None:
        self._ends[side].file(times + self._gap, numbers)

    def advance(self, watermark: int, out: Collector) -> None:
        now = (watermark + 1) * self.ticks
        due = [own.owners(own.numbered(ends.take(now))) for own, ends in zip(self.state.sides, self._ends, strict=True)]
        slots = np.unique(np.concatenate(due))
        if not len(slots):
            return
        rows = [own.of(slots)[1] for own in self.state.sides]
        owners = np.concatenate([own.owners(some) for own, some in zip(self.state.sides, rows, strict=True)])
        times = np.concatenate([own.kept(TIME, some) for own, some in zip(self.state.sides, rows, strict=True)])
        spans, sessions = runs_of(self._apart(owners, len(rows[0])), times, self._gap)
        ended = spans.lasts + self._gap <= now
        parts = [Part(some, own) for some, own in zip(rows, np.split(sessions, [len(rows[0])]), strict=True)]
        out_now = [part.at(np.flatnonzero(ended[part.windows])) for part in parts]
        self.put_out(out_now[0], out_now[1], spans.starts, spans.lasts + self._gap, out)
        for own, ends, part, gone in zip(self.state.sides, self._ends, parts, out_now, strict=True):
            going_on = ~ended[part.windows]
            ends.file(spans.lasts[part.windows[going_on]] + self._gap, own.numbers(part.rows[going_on]))
            own.remove_recorded(gone.rows)

    def _apart(self, owners: Numbers, left: int) -> Numbers:
        """The keys of so many rows of the left side and of all others, where those with nulls are not the same for
        both: such rows share no session."""
        known = complete(self.state.keys.of(owners)) if self._how is How.FULL else None
        if known is None:
            return owners
        return np.where(known | (np.arange(len(owners)) < left), owners, owners + len(self.state.keys))
