"""The window join: rows of both sides that have the same key and are in the same window.

Theory of operation. Rows are kept by time until event time passes the end of their windows; then the rows of a window
are matched, put out and, after their last window, dropped. All of that happens between two batches: a checkpoint never
falls into the middle of a window's output.

For tumbling and sliding windows, rows are filed by pane (see `windows.panes`). What is over is seen by its time alone.
Sessions are not kept as such: when the time of a row may be over, the rows of its key are put in order, both sides
together, and cut where there is a gap. What was put out is removed; that is recorded, because a session may be longer
than the time of its first row says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.operators.base import Collector
from penstock.operators.joins.keys import complete
from penstock.operators.joins.rows import NONE, Mask, Numbers
from penstock.operators.joins.shape import INSERT, How, JoinSide, Output, chosen, joined_schema, portions
from penstock.operators.joins.timed import TIME, TimedJoinOperator
from penstock.operators.windows.assigner import Assigner
from penstock.operators.windows.calendar import Calendar
from penstock.operators.windows.declare import SessionWindows, TimeWindows
from penstock.operators.windows.intervals import runs_of
from penstock.operators.windows.timed import WINDOW_END, WINDOW_START
from penstock.operators.windows.times import EventTime, TimeColumn


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

    def take_up(
        self,
        side: int,
        keys: list[pa.Array],
        columns: list[pa.Array],
        times: Numbers,
        watermarks: Numbers,
        out: Collector,
    ) -> None:
        valid = None if self._how.shows_unmatched(side) else complete(keys)
        if valid is not None:
            rows = np.flatnonzero(valid)
            keys, columns, times = chosen(keys, rows), chosen(columns, rows), times[rows]
        slots = self.state.find(keys)
        self.expect(side, self.state.sides[side].add(slots, columns, {TIME: times}), times)

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
        """Every pair: the places of both in their parts."""
        order = np.argsort(right.windows, kind="stable")
        ordered = right.windows[order]
        begins = np.searchsorted(ordered, left.windows, side="left")
        counts = np.searchsorted(ordered, left.windows, side="right") - begins
        if self._how is How.FULL:  # only then are there keys with nulls on both sides
            known = complete(self.state.keys.of(self.state.sides[0].owners(left.rows)))
            counts = counts if known is None else np.where(known, counts, 0)
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

    def is_late(self, side: int, times: Numbers, watermarks: Numbers) -> Mask:
        late: Mask = times // self.ticks < self._assigner.first_live(watermarks)
        return late

    def is_needed(self, side: int, times: Numbers, watermarks: Numbers) -> Mask:
        needed: Mask = self._assigner.last_end(self._panes_of(times)) - 1 > watermarks
        return needed

    def _panes_of(self, times: Numbers) -> Numbers:
        length, origin = self._assigner.pane, self._assigner.origin
        starts: Numbers = (times // self.ticks - origin) // length * length + origin
        return starts

    def expect(self, side: int, numbers: Numbers, times: Numbers) -> None:
        panes = self._panes_of(times)
        for start in np.unique(panes).tolist():
            self._panes[side].setdefault(start, []).append(numbers[panes == start])

    def advance(self, watermark: int, out: Collector) -> None:
        fired, starts = self.progress.watermark + 1, {*self._panes[0], *self._panes[1]}
        ends = {end for start in starts for end in self._assigner.ends(start) if fired < end <= watermark + 1}
        for end in sorted(ends):
            self._fire(end, starts, out)
        for side, panes in enumerate(self._panes):
            for start in [
                start for start in panes if self._assigner.is_over(self._assigner.last_end(start), watermark)
            ]:
                self.state.sides[side].remove(self._rows_of(side, panes.pop(start)))

    def _rows_of(self, side: int, numbers: Sequence[Numbers]) -> Numbers:
        return self.state.sides[side].numbered(np.concatenate([NONE, *numbers]))

    def _fire(self, end: int, starts: set[int], out: Collector) -> None:
        within = [start for start in sorted(starts) if self._assigner.start(end) <= start < end]
        parts = []
        for side, panes in enumerate(self._panes):
            rows = self._rows_of(side, [numbers for start in within for numbers in panes.get(start, ())])
            owners = self.state.sides[side].owners(rows)
            if self.progress.differs and len(rows):
                rows, owners = (array[~self.fired_before(owners, end)] for array in (rows, owners))
            parts.append(Part(rows, owners))
        times = (self._assigner.start(end) * self.ticks, end * self.ticks)
        starts_of, ends_of = (np.broadcast_to(np.int64(time), len(self.state.keys)) for time in times)
        self.put_out(parts[0], parts[1], starts_of, ends_of, out)


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
