"""Session windows against a plain reading of the records, one by one; and how spans of time are united."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operators.windows.harness import Step, WindowJob, steps

from penstock.operators.aggregation import declare as agg
from penstock.operators.windows import declare, sessions, sessionstate
from penstock.operators.windows.intervals import runs_of
from penstock.operators.windows.sessions import SessionWindowOperator
from penstock.operators.windows.times import EventTime

SCHEMA = pa.schema([("user", pa.int64()), ("ts", pa.int64()), ("x", pa.int64()), ("s", pa.string())])
AGGREGATES = {"n": agg.count(), "total": agg.sum("x"), "low": agg.min("s"), "words": agg.count_distinct("s")}
GAP = 7
Row = tuple[int, int | None, int | None, str | None]


def batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.record_batch([list(column) for column in zip(*rows, strict=True)], schema=SCHEMA)


def job(parallelism: int = 1, gap: int = GAP, **options: Any) -> WindowJob:
    def make() -> SessionWindowOperator:
        windows = declare.SessionWindows(gap)
        return SessionWindowOperator(windows, ("user",), AGGREGATES, SCHEMA, EventTime("ts"), **options)

    return WindowJob(make, ("user",), parallelism)


@dataclass
class Session:
    start: int
    end: int
    rows: list[Row]


@dataclass
class Oracle:
    lateness: int = 0
    open: dict[int, list[Session]] = field(default_factory=dict)
    closed: list[tuple[int, Session]] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)

    def feed(self, rows: list[Row], watermarks: list[int]) -> None:
        for row, watermark in zip(rows, watermarks, strict=True):
            user, time = row[0], row[1]
            if time is None or time + GAP - 1 + self.lateness <= watermark:
                self.late.append(row)
                continue
            self.close(user, watermark)
            one = Session(time, time + GAP, [row])
            apart = []
            for other in self.open.get(user, []):
                if other.start < one.end and one.start < other.end:
                    one = Session(min(one.start, other.start), max(one.end, other.end), other.rows + one.rows)
                else:
                    apart.append(other)
            self.open[user] = [*apart, one]

    def close(self, user: int, watermark: int) -> None:
        mine = self.open.get(user, [])
        self.closed += [(user, one) for one in mine if one.end - 1 + self.lateness <= watermark]
        self.open[user] = [one for one in mine if one.end - 1 + self.lateness > watermark]

    def results(self) -> list[dict[str, Any]]:
        every = self.closed + [(user, one) for user, mine in self.open.items() for one in mine]
        return [result(user, one) for user, one in every]


def result(user: int, session: Session) -> dict[str, Any]:
    numbers = [row[2] for row in session.rows if row[2] is not None]
    words = [row[3] for row in session.rows if row[3] is not None]
    return {
        "user": user,
        "window_start": session.start,
        "window_end": session.end,
        "n": len(session.rows),
        "total": sum(numbers) if numbers else None,
        "low": min(words, default=None),
        "words": len(set(words)),
    }


ROW = st.tuples(
    st.integers(0, 4),
    st.none() | st.integers(-20, 60),
    st.none() | st.integers(-9, 9),
    st.none() | st.sampled_from("abc"),
)
STEPS = steps(ROW, st.integers(-20, 60))


def order(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["user"], row["window_start"], row["window_end"], str(row)


@settings(max_examples=500)
@given(st.integers(1, 3), STEPS, st.sampled_from([0, 4096]))
def test_every_session_is_put_out_once_when_it_has_ended(parallelism: int, steps: list[Step], tidy_from: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "PORTION", 2)
        patch.setattr(sessionstate, "_TIDY_FROM", tidy_from)
        current, oracle = job(parallelism), Oracle()
        current.run(steps, batch, oracle)
        assert sorted(current.rows(), key=order) == sorted(oracle.results(), key=order)
        late = [tuple(row.values()) for row in current.side("late")]
        assert sorted(late, key=str) == sorted(oracle.late, key=str)


@settings(max_examples=500)
@given(st.integers(1, 3), st.integers(1, 30), STEPS)
def test_with_allowed_lateness_the_last_row_of_a_session_has_all_its_records(
    parallelism: int, lateness: int, steps: list[Step]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "PORTION", 2)
        current, oracle = job(parallelism, lateness=lateness), Oracle(lateness)
        current.run(steps, batch, oracle)
        last = {(row["user"], row["window_start"], row["window_end"]): row for row in current.rows()}
        for row in oracle.results():
            assert last[row["user"], row["window_start"], row["window_end"]] == row
        assert len(current.side("late")) == len(oracle.late)


def test_a_pause_of_exactly_the_gap_ends_a_session() -> None:
    current = job().feed(batch([(1, 0, 1, None), (1, 6, 1, None), (1, 13, 1, None)])).end()
    assert [(row["window_start"], row["window_end"], row["n"]) for row in current.rows()] == [(0, 13, 2), (13, 20, 1)]


def test_a_record_between_two_sessions_makes_them_one() -> None:
    current = job().feed(batch([(1, 0, 1, "a"), (1, 12, 2, "b")])).feed(batch([(1, 6, 4, "b")])).end()
    (row,) = current.rows()
    assert (row["window_start"], row["window_end"], row["total"], row["words"]) == (0, 19, 7, 2)


def test_early_results_show_sessions_that_go_on() -> None:
    current = job(early=declare.every("1s")).feed(batch([(1, 0, 1, None)])).tick(1000)
    current.feed(batch([(1, 3, 2, None)])).tick(2000).end()
    assert [(row["window_end"], row["total"]) for row in current.rows()] == [(7, 1), (10, 3), (10, 3)]
    counted = job(early=declare.every_count(2)).feed(batch([(1, 0, 1, None), (2, 0, 1, None), (1, 1, 1, None)]))
    assert [(row["user"], row["n"]) for row in counted.rows()] == [(1, 2)]


def test_event_time_stays_before_the_end_of_what_is_not_out_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PORTION", 1)
    current = job().feed(batch([(user, user, 1, None) for user in range(3)])).watermark(50)
    operator = current.subtasks[0].operator
    seen = []
    while operator.next_timer() is not None:
        seen.append(operator.emitted_watermark())
        current.step()
    assert (seen, operator.emitted_watermark()) == ([1 + GAP - 2, 2 + GAP - 2], 50)


def test_keys_without_a_session_are_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessionstate, "_TIDY_FROM", 100)
    current = job()
    for number in range(30):
        rows: list[Row] = [(user, number * 100, 1, "a") for user in range(number * 50, number * 50 + 50)]
        current.feed(batch([*rows, (-1, number * 5, 1, "b")])).watermark(number * 100 + 50)
        current.checkpoint(whole=number % 3 == 0)
    state: Any = current.subtasks[0].operator
    assert len(state._sessions._keys) < 400
    current.restart(2, whole=False)
    current.end()
    assert len(current.rows()) == 30 * 50 + len([row for row in current.rows() if row["user"] == -1])


MOMENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=30)


@given(MOMENTS, st.integers(1, 12))
def test_runs_of_moments_are_the_connected_ones(moments: list[tuple[int, int]], gap: int) -> None:
    owners, times = (np.array(column, np.int64) for column in zip(*moments, strict=True))
    spans, numbers = runs_of(owners, times, gap)
    for (owner, time), number in zip(moments, numbers.tolist(), strict=True):
        assert spans.owners[number] == owner
        assert spans.starts[number] <= time <= spans.lasts[number]
    for owner in range(4):
        mine = sorted(time for who, time in moments if who == owner)
        breaks = sum(later - earlier >= gap for earlier, later in pairwise(mine))
        assert int((spans.owners == owner).sum()) == (breaks + 1 if mine else 0)
