"""The running join: whatever matches of all that has come so far, on both sides.

Theory of operation. A batch of one side is matched with all rows of the other side, then kept. A side may be a
changelog: then rows are taken back, too, and with them the pairs that they were part of. Rows without a match are put
out with nulls (or, of a semi or anti join, rows of the left side are put out or not), and that changes as rows of the
other side come and go: of every row it is kept whether it is *alone*, that is, what was last put out of it.

The result is then a changelog itself, of `insert` and `delete`; it is not where nothing is ever taken back.

With a time to live, rows are forgotten so long after they came, by the clock. What was put out of them stays: nothing
is taken back because of time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.operators.joins.keys import complete
from penstock.operators.joins.output import DELETE, INSERT, Output, PairOutput
from penstock.operators.joins.retracting import find_rows, hashes_of, is_adding, net
from penstock.operators.joins.rows import Mask, Numbers
from penstock.operators.joins.shape import How, Incoming, JoinSide, chosen, joined_schema
from penstock.operators.joins.state import PARTS, JoinState
from penstock.operators.reduce import OPERATION
from penstock.state.parts import LoggedState

_ALONE: Final = "alone"
_EXPIRES: Final = "expires"
_HASH: Final = "hash"
_LOOKS: Final = 8
"""How often in a lifetime rows that are over are looked for when nothing comes."""

logger = logging.getLogger(__name__)


def gives_changelog(left: JoinSide, right: JoinSide, how: How) -> bool:
    """Whether anything that was put out may be taken back."""
    return left.changelog or right.changelog or how.shows_unmatched(0) or how.shows_unmatched(1)


def running_schema(left: JoinSide, right: JoinSide, how: How, suffix: str) -> pa.Schema:
    return joined_schema(left, right, how, suffix, changelog=gives_changelog(left, right, how))


class RunningJoinOperator(Operator):
    def __init__(
        self,
        left: JoinSide,
        right: JoinSide,
        how: How,
        suffix: str = "_right",
        ttl: tuple[int | None, int | None] = (None, None),
    ) -> None:
        self._sides, self._how, self._ttl = (left, right), how, ttl
        self._watched = [how.shows_unmatched(0) or how is How.SEMI, how.shows_unmatched(1)]
        """Of which side's rows it is kept whether they are alone."""
        schema = running_schema(left, right, how, suffix)
        self._state = JoinState("running", self._sides, [self._kept(side) for side in (0, 1)])
        self._output = PairOutput(Output(left, how, schema, changelog=gives_changelog(left, right, how)), self._state)
        self._complained = False

    def _kept(self, side: int) -> list[str]:
        names = [_ALONE] if self._watched[side] else []
        names += [_EXPIRES] if self._ttl[side] is not None else []
        return names + ([_HASH] if self._sides[side].changelog else [])

    def open(self, context: OperatorContext) -> None:
        self._clock = context.clock
        self._last_expiry = [0, 0]
        now = context.clock.wall_ms()
        self._state.open(
            context,
            [
                lambda kept, groups: kept[_EXPIRES] > now if _EXPIRES in kept else np.ones(len(groups), np.bool_)
                for _ in self._sides
            ],
            by=_EXPIRES,
        )
        for place, side in enumerate(self._state.sides):
            if self._ttl[place] is not None and len(side):
                self._last_expiry[place] = int(side.kept(_EXPIRES, side.rows()).max())

    # ---- rows ----
    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        self._expire(self._clock.wall_ms())
        side = self._sides[input]
        rows = side.rows_of(batch)
        adding = is_adding(batch.column(OPERATION)) if side.changelog else np.ones(batch.num_rows, np.bool_)
        known = complete(rows.keys)
        if known is not None:
            without = np.flatnonzero(~known)
            self._put_out_without_key(input, rows.at(without), adding[without], out)
            rows, adding = rows.at(np.flatnonzero(known)), adding[known]
        if len(adding):
            self._take_up(input, rows, adding, out)

    def _put_out_without_key(self, input: int, rows: Incoming, adding: Mask, out: Collector) -> None:
        """A null is equal to nothing: these rows have no match, and never will."""
        if self._how.shows_unmatched(input):
            taking, fresh = net(np.zeros(len(adding), np.int64), [*rows.keys, *rows.columns], adding)
            self._output.alone(input, rows.at(taking), out, DELETE)
            self._output.alone(input, rows.at(fresh), out)

    def _take_up(self, input: int, rows: Incoming, adding: Mask, out: Collector) -> None:
        own, other = self._state.sides[input], self._state.sides[1 - input]
        slots = self._state.find(rows.keys)
        touched = np.unique(slots)
        before = own.counts(touched) > 0
        if self._sides[input].changelog:
            taking, fresh = net(slots, rows.columns, adding)
            self._take_back(input, slots[taking], chosen(rows.columns, taking), out)
            slots, rows = slots[fresh], rows.at(fresh)
        own.add(slots, rows.columns, self._numbers(input, slots, rows.columns))
        after = own.counts(touched) > 0
        if self._watched[1 - input]:
            self._others_matched(input, touched[after], out)
        if self._how.pairs:
            self._output.pairs(input, rows, *other.of(slots), out)
        if self._watched[input]:
            alone = other.counts(slots) == 0
            self._output.alone(input, rows.at(np.flatnonzero(alone == self._how.shows_unmatched(input))), out)
        if self._watched[1 - input]:
            self._others_alone(input, touched[before & ~after], out)

    def _numbers(self, input: int, slots: Numbers, columns: list[pa.Array]) -> dict[str, Numbers | int]:
        """What is kept of new rows."""
        alone = self._state.sides[1 - input].counts(slots) == 0
        numbers: dict[str, Numbers | int] = {_ALONE: alone.astype(np.int64)}
        if (ttl := self._ttl[input]) is not None:
            # The clock may be set back: what came later is not over earlier.
            self._last_expiry[input] = max(self._last_expiry[input], self._clock.wall_ms() + ttl)
            numbers[_EXPIRES] = self._last_expiry[input]
        if self._sides[input].changelog:
            numbers[_HASH] = hashes_of(columns, len(slots))
        return numbers

    def _take_back(self, input: int, slots: Numbers, columns: list[pa.Array], out: Collector) -> None:
        own, other = self._state.sides[input], self._state.sides[1 - input]
        rows = find_rows(own, slots, columns)
        self._complain(int((rows < 0).sum()), input)
        rows = rows[rows >= 0]
        if self._how.pairs:
            self._output.pairs(
                input, self._state.incoming(input, rows), *other.of(own.owners(rows)), out=out, kind=DELETE
            )
        if self._watched[input]:
            shown = rows[(own.kept(_ALONE, rows) == 1) == self._how.shows_unmatched(input)]
            self._output.kept(input, shown, out, DELETE)
        own.remove_recorded(rows)

    def _complain(self, missing: int, input: int) -> None:
        if missing and self._ttl[input] is None and not self._complained:
            self._complained = True
            logger.warning(
                "a join was told to take back %d row(s) of its %s side that it does not have; said once",
                missing,
                PARTS[input],
            )

    # ---- rows of the other side ----
    def _others_matched(self, input: int, slots: Numbers, out: Collector) -> None:
        """Those that were alone until now."""
        self._others(input, slots, 1, DELETE if self._how.shows_unmatched(1 - input) else INSERT, out)

    def _others_alone(self, input: int, slots: Numbers, out: Collector) -> None:
        """Those whose last match was taken back."""
        self._others(input, slots, 0, INSERT if self._how.shows_unmatched(1 - input) else DELETE, out)

    def _others(self, input: int, slots: Numbers, alone: int, kind: str, out: Collector) -> None:
        other = self._state.sides[1 - input]
        _, rows = other.of(slots)
        rows = rows[other.kept(_ALONE, rows) == alone]
        self._output.kept(1 - input, rows, out, kind)
        other.change(_ALONE, rows, 1 - alone)

    # ---- time to live ----
    def _expire(self, now: int) -> None:
        for side, ttl in zip(self._state.sides, self._ttl, strict=True):
            if ttl is not None:
                side.remove(side.rows_up_to(_EXPIRES, now))

    def next_timer(self) -> int | None:
        times = [
            int(side.kept(_EXPIRES, np.array([row]))[0]) + ttl // _LOOKS + 1
            for side, ttl in zip(self._state.sides, self._ttl, strict=True)
            if ttl is not None and (row := side.first_row()) is not None
        ]
        return min(times, default=None)

    def on_timer(self, now_ms: int, out: Collector) -> None:
        self._expire(now_ms)

    # ---- snapshots ----
    def logged(self) -> Sequence[LoggedState]:
        return tuple(self._state.sides)
