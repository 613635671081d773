"""Joins by event time against DuckDB and Polars: out-of-order and late records, nulls, at several parallelisms, with
checkpoints of layers, and restores at any moment, also from subtasks that were not equally far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operators.joins.harness import JoinJob, answered, result

from penstock.operators.base import Operator
from penstock.operators.joins import windowed
from penstock.operators.joins.interval import IntervalJoinOperator
from penstock.operators.joins.shape import How, JoinSide
from penstock.operators.joins.temporal import TemporalJoinOperator
from penstock.operators.joins.windowed import SessionJoinOperator, TimeWindowJoinOperator
from penstock.operators.windows.declare import SessionWindows, TimeWindows
from penstock.operators.windows.times import EventTime
from penstock.runtime.elements import MAX_WATERMARK, MIN_WATERMARK

LEFT = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("x", pa.string())])
RIGHT = pa.schema([("id", pa.int64()), ("r", pa.timestamp("us")), ("x", pa.int64())])
SIDES = (JoinSide(LEFT, ("k",)), JoinSide(RIGHT, ("id",)))
TIMES = (EventTime("t"), EventTime("r"))
HOWS = ["inner", "left", "right", "full", "semi", "anti"]

KEYS = st.none() | st.integers(0, 4)
MOMENTS = st.none() | st.integers(-20, 60)
ROWS = (
    st.tuples(KEYS, MOMENTS, st.none() | st.sampled_from("ab")),
    st.tuples(KEYS, MOMENTS, st.none() | st.integers(0, 2)),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("left"), st.lists(ROWS[0], min_size=1, max_size=8)),
        st.tuples(st.just("right"), st.lists(ROWS[1], min_size=1, max_size=8)),
        st.tuples(st.just("watermark"), st.integers(-20, 60)),
        st.tuples(st.just("watermark of one"), st.tuples(st.integers(-20, 60), st.integers(0, 2))),
        st.tuples(st.just("step"), st.none()),
        st.tuples(st.just("checkpoint"), st.booleans()),
        st.tuples(st.just("restart"), st.tuples(st.integers(1, 3), st.booleans())),
    ),
    max_size=14,
)


def batch(side: int, records: list[Any]) -> pa.RecordBatch:
    """Times of the right side are 0.3 ms later than they say: in its own, finer unit."""
    keys, times, values = zip(*records, strict=True)
    if side == 1:
        times = tuple(None if time is None else time * 1_000 + 300 for time in times)
    arrays = [pa.array(keys, pa.int64()), pa.array(times, pa.int64()).cast((LEFT, RIGHT)[side].field(1).type)]
    schema = (LEFT, RIGHT)[side]
    return pa.RecordBatch.from_arrays([*arrays, pa.array(values, schema.field(2).type)], schema=schema)


class Run:
    """A job, and what came in time on both sides: rows, each with the event time of its key."""

    def __init__(
        self, make: Callable[[], Operator], is_late: Callable[[int, int, int], bool], parallelism: int
    ) -> None:
        self.job = JoinJob(make, ("k",), parallelism, sides=SIDES)
        self._is_late = is_late
        self.come: tuple[list[Any], list[Any]] = ([], [])
        self.late: tuple[list[Any], list[Any]] = ([], [])

    def through(self, steps: list[Any]) -> Run:
        for kind, what in steps:
            if kind == "watermark":
                self.job.watermark(what)
            elif kind == "watermark of one":
                self.job.watermark(what[0], only=what[1])
            elif kind == "step":
                self.job.step()
            elif kind == "checkpoint":
                self.job.checkpoint(whole=what)
            elif kind == "restart":
                self.job.restart(what[0], whole=what[1])
            else:
                self._feed(("left", "right").index(kind), what)
        self.job.end()
        return self

    def _feed(self, side: int, records: list[Any]) -> None:
        rows = batch(side, records)
        for record, time in zip(records, self.job.times_of(side, rows), strict=True):
            late = record[1] is None or self._is_late(side, record[1], time)
            (self.late if late else self.come)[side].append((*record, time))
        self.job.feed_side(side, rows)

    def check_late(self) -> None:
        for side, name in enumerate(("late", "late_right")):
            found = Counter(row["x"] for row in self.job.side(name))
            assert found == Counter(record[2] for record in self.late[side]), name


def table(rows: Iterator[Any] | list[Any], schema: pa.Schema) -> pa.Table:
    records = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return pa.Table.from_pylist(records, schema)


def answer(how: str, left: pa.Table, right: pa.Table, on: str, extra: str = "") -> Counter[Any]:
    """`extra` are columns before the others, of either side."""
    l, r = left, right  # noqa: E741, F841
    columns = f"{extra} coalesce(l.k, r.id) k, l.t, l.x" + (", r.r, r.x x_right" if how not in ("semi", "anti") else "")
    columns = columns if how not in ("semi", "anti") else columns.replace("coalesce(l.k, r.id)", "l.k")
    return answered(duckdb.sql(f"select {columns} from l {how} join r on {on}").arrow().read_all())


def plain(run: Run) -> tuple[pa.Table, pa.Table]:
    """Both sides as they came in time."""
    left, right = ([row[:3] for row in rows] for rows in run.come)
    return table(left, LEFT), pa.Table.from_batches([batch(1, right)]) if right else RIGHT.empty_table()


def is_past(side: int, time: int, watermark: int) -> bool:
    return time <= watermark


# ---- interval ----
@pytest.mark.parametrize("how", HOWS)
@given(bounds=st.sampled_from([(-10, 10), (0, 15), (-20, -5), (3, 3)]), steps=STEPS, parallelism=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_an_interval_join_has_all_pairs_whose_times_are_near(
    how: str, bounds: tuple[int, int], steps: list[Any], parallelism: int
) -> None:
    lower, upper = bounds
    make = lambda: IntervalJoinOperator(*SIDES, TIMES, lower, upper, How(how))  # noqa: E731
    run = Run(make, is_past, parallelism).through(steps)
    run.check_late()
    near = f"epoch_us(r.r) - l.t * 1000 between {lower * 1000} and {upper * 1000}"
    assert result(run.job) == answer(how, *plain(run), f"l.k = r.id and {near}")
    assert all(not len(side) for subtask in run.job.subtasks for side in subtask.operator.state.sides)  # type: ignore[attr-defined]


@given(steps=STEPS)
@settings(max_examples=40, deadline=None)
def test_no_result_of_an_interval_join_is_older_than_the_watermark_that_was_passed_on(steps: list[Any]) -> None:
    job = JoinJob(lambda: IntervalJoinOperator(*SIDES, TIMES, -5, 12, How.LEFT), ("k",), sides=SIDES)
    (subtask,) = job.subtasks
    for kind, what in steps:
        passed = subtask.operator.emitted_watermark()
        before = len(subtask.out.batches)
        if kind in ("left", "right"):
            side = ("left", "right").index(kind)
            job.feed_side(side, batch(side, what))
        elif kind == "watermark":
            job.watermark(what)
        times = [row["t"] for out in subtask.out.batches[before:] for row in out.to_pylist()]
        assert passed is None or all(time > passed for time in times)


def test_rows_without_a_match_come_out_as_soon_as_none_can_come() -> None:
    job = JoinJob(lambda: IntervalJoinOperator(*SIDES, TIMES, -10, 10, How.LEFT), ("k",), sides=SIDES)
    job.feed_side(0, batch(0, [(1, 20, "a"), (None, 20, "b")]))
    assert [row["x"] for row in job.rows()] == ["b"]
    assert [row["x"] for row in job.watermark(29).rows()] == ["b"]
    assert [row["x"] for row in job.watermark(30).rows()] == ["b", "a"]


# ---- temporal ----
@pytest.mark.parametrize("how", ["inner", "left"])
@given(steps=STEPS, parallelism=st.integers(1, 3))
@settings(max_examples=80, deadline=None)
def test_a_temporal_join_has_the_newest_version_of_each_time(how: str, steps: list[Any], parallelism: int) -> None:
    run = Run(lambda: TemporalJoinOperator(*SIDES, TIMES, How(how)), is_past, parallelism).through(steps)
    run.check_late()
    left, right = (pl.DataFrame(side) for side in plain(run))
    versions = right.drop_nulls("id").with_columns(at=pl.col("r")).sort("r", maintain_order=True)
    orders = left.with_columns(at=(pl.col("t") * 1_000).cast(pl.Datetime("us"))).sort("at", maintain_order=True)
    joined = orders.join_asof(versions, on="at", by_left="k", by_right="id", check_sortedness=False).drop("at")
    wanted = joined if how == "left" else joined.drop_nulls("r")
    assert result(run.job) == answered(wanted.select("k", "t", "x", "r", "x_right").to_arrow())


def test_versions_that_nobody_can_ask_for_any_more_are_dropped() -> None:
    job = JoinJob(lambda: TemporalJoinOperator(*SIDES, TIMES, How.INNER), ("k",), sides=SIDES)
    job.feed_side(1, batch(1, [(1, time, time) for time in range(10)] + [(2, 5, 0)]))
    versions = job.subtasks[0].operator.state.sides[1]  # type: ignore[attr-defined]
    assert [
        len(versions),
        (job.watermark(7), len(versions))[1],
        (job.watermark(MAX_WATERMARK - 1), len(versions))[1],
    ] == [
        11,
        4,
        2,
    ]


def test_results_come_in_the_order_of_their_times() -> None:
    job = JoinJob(lambda: TemporalJoinOperator(*SIDES, TIMES, How.LEFT), ("k",), sides=SIDES)
    job.feed_side(0, batch(0, [(1, 9, "c"), (2, 3, "a"), (1, 5, "b")])).feed_side(1, batch(1, [(1, 4, 7)])).end()
    assert [(row["x"], row["x_right"]) for row in job.rows()] == [("a", None), ("b", 7), ("c", 7)]


# ---- windows ----
WINDOWS = [TimeWindows(10, 10), TimeWindows(10, 10, offset=3), TimeWindows(10, 5), TimeWindows(9, 6, offset=1)]


def ends_of(windows: TimeWindows, time: int) -> list[int]:
    """Of all windows that a moment is in."""
    last = (time - windows.offset) // windows.every * windows.every + windows.offset
    return [start + windows.size for start in range(last, time - windows.size, -windows.every)]


@pytest.mark.parametrize("how", HOWS)
@given(windows=st.sampled_from(WINDOWS), steps=STEPS, parallelism=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_a_window_join_has_the_pairs_of_every_window(
    how: str, windows: TimeWindows, steps: list[Any], parallelism: int
) -> None:
    def is_late(side: int, time: int, watermark: int) -> bool:
        return max(ends_of(windows, time), default=MIN_WATERMARK) - 1 <= watermark

    make = lambda: TimeWindowJoinOperator(*SIDES, TIMES, windows, How(how))  # noqa: E731
    run = Run(make, is_late, parallelism).through(steps)
    run.check_late()
    exploded = [
        [(end, row) for row in rows for end in ends_of(windows, row[1]) if end - 1 > row[3]] for rows in run.come
    ]
    check_windows(run, how, exploded, lambda end: (end - windows.size, end))


@pytest.mark.parametrize("how", ["full", "left", "semi"])
@given(portion=st.integers(1, 4), steps=STEPS, parallelism=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_every_pair_is_put_out_once_though_a_restart_comes_in_the_middle_of_a_window(
    how: str, portion: int, steps: list[Any], parallelism: int
) -> None:
    windows = TimeWindows(20, 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windowed, "PORTION", portion)
        make = lambda: TimeWindowJoinOperator(*SIDES, TIMES, windows, How(how))  # noqa: E731
        run = Run(make, lambda side, time, watermark: time // 20 * 20 + 19 <= watermark, parallelism).through(steps)
    run.check_late()
    exploded = [[(end, row) for row in rows for end in ends_of(windows, row[1])] for rows in run.come]
    check_windows(run, how, exploded, lambda end: (end - 20, end))


def test_a_window_is_put_out_in_portions_and_event_time_waits_for_the_last() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windowed, "PORTION", 2)
        job = JoinJob(
            lambda: TimeWindowJoinOperator(*SIDES, TIMES, TimeWindows(10, 10), How.INNER), ("k",), sides=SIDES
        )
        job.feed_side(0, batch(0, [(key, 1, "a") for key in range(6)]))
        job.feed_side(1, batch(1, [(key, 2, key) for key in range(6)])).watermark(25)
    (subtask,) = job.subtasks
    counts, times = [len(job.rows())], [subtask.operator.emitted_watermark()]
    while subtask.operator.next_timer() is not None:
        job.step()
        counts.append(len(job.rows()))
        times.append(subtask.operator.emitted_watermark())
    assert 0 < counts[0] < counts[-1] == 6 and sorted(set(counts)) == counts
    assert times == [8] * (len(times) - 1) + [25]
    assert not any(len(side) for side in subtask.operator.state.sides)  # type: ignore[attr-defined]


def bounds_in(how: str) -> str:
    if how in ("semi", "anti"):
        return "l.s window_start, l.e window_end,"
    return "coalesce(l.s, r.s) window_start, coalesce(l.e, r.e) window_end,"


def check_windows(run: Run, how: str, rows: list[list[Any]], bounds: Callable[[Any], tuple[int, int]]) -> None:
    """`rows`: of each side, windows and rows in them."""
    sides = []
    for side, own in enumerate(rows):
        records = [record[:3] for _, record in own]
        plain_rows = pa.Table.from_batches([batch(side, records)] if records else [], (LEFT, RIGHT)[side])
        for name, place in (("e", 1), ("s", 0)):
            times = pa.array([bounds(window)[place] * 1_000 for window, _ in own], pa.int64()).cast(pa.timestamp("us"))
            plain_rows = plain_rows.add_column(0, name, times)
        sides.append(plain_rows)
    assert result(run.job) == answer(how, sides[0], sides[1], "l.k = r.id and l.s = r.s and l.e = r.e", bounds_in(how))


@pytest.mark.parametrize("how", HOWS)
@given(steps=STEPS, parallelism=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_a_session_join_has_the_pairs_of_every_session_of_both_sides(
    how: str, steps: list[Any], parallelism: int
) -> None:
    gap = 6
    run = SessionRun(lambda: SessionJoinOperator(*SIDES, TIMES, SessionWindows(gap), How(how)), gap, parallelism)
    run.through(steps)
    run.check_late()
    sides = [run.table(side) for side in (0, 1)]
    assert result(run.job) == answer(how, *sides, "l.k = r.id and l.number = r.number", bounds_in(how))


class SessionRun(Run):
    """Knows which rows are a session: cut out of what waits when the event time of a key passes its end."""

    def __init__(self, make: Callable[[], Operator], gap: int, parallelism: int) -> None:
        super().__init__(
            make, lambda side, time, watermark: _us(side, time) + gap * 1_000 <= (watermark + 1) * 1_000, parallelism
        )
        self._gap = gap * 1_000
        self._waiting: dict[Any, list[tuple[int, int, Any]]] = {}
        """By key: time in microseconds, side, row."""
        self._groups: dict[Any, int] = {}
        self._sessions: list[tuple[int, int, list[tuple[int, int, Any]]]] = []

    def through(self, steps: list[Any]) -> Run:
        for kind, what in steps:
            came = [len(rows) for rows in self.come]
            end, self.job.end = self.job.end, lambda: self.job  # type: ignore[method-assign]
            super().through([(kind, what)])
            self.job.end = end  # type: ignore[method-assign]
            for side, rows in enumerate(self.come):
                for row in rows[came[side] :]:
                    key = (row[0], row[0] is None and side)  # rows without a key share no session
                    self._waiting.setdefault(key, []).append((_us(side, row[1]), side, row))
                    self._groups[key] = self.job.groups(batch(0, [(row[0], 0, None)]))[0]
            self._cut()
        self.job.end()
        self._cut()
        return self

    def _cut(self) -> None:
        for key, rows in self._waiting.items():
            watermark = self.job.times.get(self._groups[key], MIN_WATERMARK)
            rows.sort(key=lambda row: row[0])
            sessions: list[list[Any]] = []
            for row in rows:
                if sessions and row[0] - sessions[-1][-1][0] < self._gap:
                    sessions[-1].append(row)
                else:
                    sessions.append([row])
            self._waiting[key] = []
            for session in sessions:
                end = session[-1][0] + self._gap
                if end <= (watermark + 1) * 1_000:
                    self._sessions.append((session[0][0], end, session))
                else:
                    self._waiting[key] += session

    def table(self, side: int) -> pa.Table:
        chosen = [
            (number, start, end, row[2][:3])
            for number, (start, end, rows) in enumerate(self._sessions)
            for row in rows
            if row[1] == side
        ]
        records = [row for *_, row in chosen]
        rows = pa.Table.from_batches([batch(side, records)] if records else [], (LEFT, RIGHT)[side])
        for place, name in ((2, "e"), (1, "s")):
            times = pa.array([row[place] for row in chosen], pa.int64()).cast(pa.timestamp("us"))
            rows = rows.add_column(0, name, times)
        return rows.append_column("number", pa.array([row[0] for row in chosen], pa.int64()))


def _us(side: int, time: int) -> int:
    return time * 1_000 + 300 * side
