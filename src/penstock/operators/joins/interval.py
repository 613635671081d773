"""The interval join: rows of the right side whose time is between two bounds from that of a row of the left side.

Theory of operation. A row is matched with what is there when it comes, and kept as long as a row that is not late can
still match it. When its time is *over*, it is put out if it has no match and such rows are wanted, and dropped. Whether
a row is alone is kept with it; that its time is over is seen by its time alone, so that no checkpoint has to say which
rows are gone.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.operators.base import Collector
from penstock.operators.joins.keys import complete
from penstock.operators.joins.output import Output, PairOutput
from penstock.operators.joins.rows import Mask, Numbers
from penstock.operators.joins.shape import How, Incoming, JoinSide, chosen, joined_schema
from penstock.operators.joins.timed import TIME, TimedJoinOperator
from penstock.operators.windows.calendar import Calendar
from penstock.operators.windows.times import EventTime

_ALONE: Final = "alone"
_BUCKETS: Final = 64
"""Into so many buckets the times at which rows are over are filed, over the length of the interval."""


class IntervalJoinOperator(TimedJoinOperator):
    """`lower` and `upper` in milliseconds, both included: left time + lower <= right time <= left time + upper."""

    def __init__(
        self,
        left: JoinSide,
        right: JoinSide,
        times: tuple[EventTime, EventTime],
        lower: int,
        upper: int,
        how: How,
        suffix: str = "_right",
    ) -> None:
        self._how = how
        self._watched = [how.shows_unmatched(0) or how is How.SEMI, how.shows_unmatched(1)]
        kept = [[_ALONE] if watched else [] for watched in self._watched]
        super().__init__("interval", (left, right), times, kept)
        self._lower, self._upper = lower * self.ticks, upper * self.ticks
        self._reach = (self._upper, -self._lower)
        """From a row's time on, until when rows that match it come."""
        self.hold = max(
            0, *(reach // self.ticks for reach, shown in zip(self._reach, _dated_by(how), strict=True) if shown)
        )
        self._output = PairOutput(Output(left, how, joined_schema(left, right, how, suffix)), self.state)
        bucket = max(self.ticks, (self._upper - self._lower) // _BUCKETS)
        self._overs = Calendar(bucket), Calendar(bucket)

    def is_needed(self, side: int, times: Numbers, watermarks: Numbers) -> Mask:
        needed: Mask = (times + self._reach[side]) // self.ticks > watermarks
        return needed

    def expect(self, side: int, numbers: Numbers, times: Numbers) -> None:
        self._overs[side].file(times + self._reach[side], numbers)

    # ---- rows ----
    def take_up(self, side: int, rows: Incoming, times: Numbers, watermarks: Numbers, out: Collector) -> None:
        slots = np.full(len(times), -1, np.int64)
        valid = complete(rows.keys)
        known = np.arange(len(times)) if valid is None else np.flatnonzero(valid)
        slots[known] = self.state.find(chosen(rows.keys, known))
        own, other = self.state.sides[side], self.state.sides[1 - side]
        lowest, highest = (self._lower, self._upper) if side == 0 else (-self._upper, -self._lower)
        places, others = other.between(slots, times + lowest, times + highest)
        if self._how.pairs:
            self._output.pairs(side, rows, places, others, out)
        if self._watched[1 - side]:
            self._others_matched(1 - side, others, out)
        alone = np.ones(len(times), np.bool_)
        alone[places] = False
        stays = (slots >= 0) & self.is_needed(side, times, watermarks)
        if self._watched[side]:
            told = alone & ~stays if self._how.shows_unmatched(side) else ~alone
            self._output.alone(side, rows.at(np.flatnonzero(told)), out)
        kept = np.flatnonzero(stays)
        numbers = {TIME: times[kept], _ALONE: alone[kept].astype(np.int64)}
        self.expect(side, own.add(slots[kept], chosen(rows.columns, kept), numbers), times[kept])

    def _others_matched(self, side: int, rows: Numbers, out: Collector) -> None:
        """Rows that were alone until now."""
        own = self.state.sides[side]
        rows = np.unique(rows)
        rows = rows[own.kept(_ALONE, rows) == 1]
        if self._how is How.SEMI:
            self._output.kept(side, rows, out)
        own.change(_ALONE, rows, 0)

    # ---- time ----
    def advance(self, watermark: int, out: Collector) -> None:
        for side, (overs, own) in enumerate(zip(self._overs, self.state.sides, strict=True)):
            rows = own.numbered(overs.take((watermark + 1) * self.ticks - 1))
            over = (own.kept(TIME, rows) + self._reach[side]) // self.ticks <= watermark
            self.expect(side, own.numbers(rows[~over]), own.kept(TIME, rows[~over]))
            rows = rows[over]
            if self._how.shows_unmatched(side):
                self._output.kept(side, rows[own.kept(_ALONE, rows) == 1], out)
            own.remove(rows)


def _dated_by(how: How) -> tuple[bool, bool]:
    """Whether the results' event time is that of the left side, and that of the right side."""
    return how is not How.RIGHT, how in (How.RIGHT, How.FULL)
