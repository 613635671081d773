"""The temporal join: each row of the left side with the version of the right side that was valid at its time.

A row of the right side is a version of its key, valid from its time until that of the next one; of two with the same
time, the one that came later counts. Rows of the left side wait until event time has reached theirs: then every version
that could be theirs has come. They are put out in the order of their times. Of the versions that event time has passed,
only the newest of each key is kept.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.operators.base import Collector
from penstock.operators.joins.keys import complete
from penstock.operators.joins.output import INSERT, Output, portions
from penstock.operators.joins.rows import Mask, Numbers
from penstock.operators.joins.shape import How, Incoming, JoinSide, joined_schema
from penstock.operators.joins.timed import TIME, TimedJoinOperator
from penstock.operators.windows.calendar import Calendar
from penstock.operators.windows.times import EventTime

_BUCKET: Final = 1_000
"""Milliseconds that are looked at together."""
_LATEST: Final = (1 << 63) - 1


class TemporalJoinOperator(TimedJoinOperator):
    def __init__(
        self, left: JoinSide, right: JoinSide, times: tuple[EventTime, EventTime], how: How, suffix: str = "_right"
    ) -> None:
        super().__init__("temporal", (left, right), times, ((), ()))
        self._how = how
        self._output = Output(left, how, joined_schema(left, right, how, suffix))
        self._due = Calendar(_BUCKET * self.ticks), Calendar(_BUCKET * self.ticks)

    def is_needed(self, side: int, times: Numbers, watermarks: Numbers) -> Mask:
        if side == 1:  # versions of before may still be the newest; if they are not, the next watermark drops them
            return np.ones(len(times), np.bool_)
        needed: Mask = times // self.ticks > watermarks
        return needed

    def expect(self, side: int, numbers: Numbers, times: Numbers) -> None:
        self._due[side].file(times, numbers)

    def take_up(self, side: int, rows: Incoming, times: Numbers, watermarks: Numbers, out: Collector) -> None:
        known = complete(rows.keys)
        if known is not None:
            if side == 0 and self._how is How.LEFT:
                without = rows.at(np.flatnonzero(~known))
                self._output.emit(out, INSERT, without.keys, without.columns, None)
            rows, times = rows.at(np.flatnonzero(known)), times[known]
        slots = self.state.find(rows.keys)
        self.expect(side, self.state.sides[side].add(slots, rows.columns, {TIME: times}), times)

    def advance(self, watermark: int, out: Collector) -> None:
        left, right = self.state.sides
        rows = self._due_rows(0, watermark)
        rows = rows[np.argsort(left.kept(TIME, rows), kind="stable")]
        for portion in portions(len(rows)):
            self._put_out(rows[portion], out)
        left.remove(rows)
        past = np.unique(right.owners(self._due_rows(1, watermark)))
        limit = min((watermark + 1) * self.ticks - 1, _LATEST)
        newest = right.newest(past, np.full(len(past), limit))
        places, versions = right.of(past)
        right.remove(versions[(right.kept(TIME, versions) <= limit) & (versions != newest[places])])

    def _due_rows(self, side: int, watermark: int) -> Numbers:
        """In the order in which they came."""
        own = self.state.sides[side]
        rows = own.numbered(self._due[side].take((watermark + 1) * self.ticks - 1))
        times = own.kept(TIME, rows)
        due = times // self.ticks <= watermark
        self.expect(side, own.numbers(rows[~due]), times[~due])
        return rows[due]

    def _put_out(self, rows: Numbers, out: Collector) -> None:
        left, right = self.state.sides
        slots = left.owners(rows)
        versions = right.newest(slots, left.kept(TIME, rows))
        if self._how is How.INNER:
            rows, slots, versions = rows[versions >= 0], slots[versions >= 0], versions[versions >= 0]
        self._output.emit(out, INSERT, self.state.keys.of(slots), left.take(rows), right.take(versions))
