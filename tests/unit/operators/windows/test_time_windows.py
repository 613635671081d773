"""Tumbling and sliding windows against Polars: out-of-order and late records, at several parallelisms, with restores at
any moment, also in the middle of a firing and from subtasks that were not equally far."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operators.windows.harness import Step, WindowJob, steps

from penstock.operators.aggregation import declare as agg
from penstock.operators.windows import declare, timed
from penstock.operators.windows.declare import TimeWindows
from penstock.operators.windows.timed import TimeWindowOperator
from penstock.operators.windows.times import EventTime
from penstock.state import captures
from penstock.state.parts import PartKind
from penstock.state.tables import StateMismatch

SCHEMA = pa.schema([("user", pa.int64()), ("ts", pa.timestamp("us")), ("x", pa.int64()), ("s", pa.string())])
AGGREGATES = {
    "n": agg.count(),
    "total": agg.sum("x"),
    "high": agg.max("x"),
    "mean": agg.mean("x"),
    "low_word": agg.min("s"),
    "words": agg.count_distinct("s"),
}
WINDOWS = [
    TimeWindows(10, 10),
    TimeWindows(10, 10, offset=3),
    TimeWindows(10, 5),
    TimeWindows(9, 6, offset=1),
    TimeWindows(12, 2),
    TimeWindows(7, 7),
]
Row = tuple[int | None, int | None, int | None, str | None]


def row_strategy() -> st.SearchStrategy[Row]:
    return st.tuples(
        st.none() | st.integers(0, 6),
        st.none() | st.integers(-30, 60),
        st.none() | st.integers(-9, 9),
        st.none() | st.sampled_from("abc"),
    )


def batch(rows: list[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    user, ts, x, s = (
        pa.array(column, kind)
        for column, kind in zip(columns, (pa.int64(), pa.int64(), pa.int64(), pa.string()), strict=True)
    )
    return pa.RecordBatch.from_arrays(
        [
            user,
            pa.array([None if t is None else t * 1000 for t in ts.to_pylist()], pa.int64()).cast(pa.timestamp("us")),
            x,
            s,
        ],
        schema=SCHEMA,
    )


class Oracle:
    """Which records are in which windows, by the definition alone."""

    def __init__(self, windows: TimeWindows, lateness: int = 0) -> None:
        self._windows, self._lateness = windows, lateness
        self.members: list[tuple[int, Row]] = []
        """End of a window, and a record in it."""
        self.late: list[Row] = []

    def feed(self, rows: list[Row], watermarks: list[int]) -> None:
        for row, watermark in zip(rows, watermarks, strict=True):
            open_ends = [end for end in self._ends(row[1]) if end - 1 + self._lateness > watermark]
            self.members += [(end, row) for end in open_ends]
            if not open_ends:
                self.late.append(row)

    def _ends(self, time: int | None) -> list[int]:
        if time is None:
            return []
        size, every, offset = self._windows.size, self._windows.every, self._windows.offset
        starts = [start for start in range(time - size - every, time + 1) if (start - offset) % every == 0]
        return [start + size for start in starts if start <= time < start + size]

    def results(self) -> dict[tuple[Any, int], dict[str, Any]]:
        if not self.members:
            return {}
        columns = list(zip(*((end, *row) for end, row in self.members), strict=True))
        frame = pl.DataFrame(
            {"end": columns[0], "user": columns[1], "x": columns[3], "s": columns[4]},
            schema={"end": pl.Int64, "user": pl.Int64, "x": pl.Int64, "s": pl.String},
        )
        answer = frame.group_by("user", "end").agg(
            n=pl.len().cast(pl.Int64),
            total=pl.when(pl.col("x").count() > 0).then(pl.col("x").sum()),
            high=pl.col("x").max(),
            mean=pl.col("x").mean(),
            low_word=pl.col("s").min(),
            words=pl.col("s").drop_nulls().n_unique().cast(pl.Int64),
        )
        return {(row.pop("user"), row.pop("end")): row for row in answer.to_dicts()}


def found(rows: list[dict[str, Any]], windows: TimeWindows) -> list[tuple[tuple[Any, int], dict[str, Any]]]:
    """Rows as the oracle has them: by key and end of window."""
    result = []
    for row in rows:
        start, end = (
            int(row.pop(name).replace(tzinfo=None).timestamp() * 1000) for name in ("window_start", "window_end")
        )
        assert end - start == windows.size
        result.append(((row.pop("user"), end), row))
    return result


def approximately(row: dict[str, Any]) -> dict[str, Any]:
    return {name: pytest.approx(value) if isinstance(value, float) else value for name, value in row.items()}


def job(windows: TimeWindows, parallelism: int = 1, **options: Any) -> WindowJob:
    def make() -> TimeWindowOperator:
        return TimeWindowOperator(windows, ("user",), AGGREGATES, SCHEMA, EventTime("ts"), **options)

    return WindowJob(make, ("user",), parallelism)


PORTIONS = st.sampled_from([(2, 512), (3, 1), (1000, 1)])
"""Part of a window a step, parts of several, all that have ended; and what a pane counts as."""


def _put_out_by(patch: pytest.MonkeyPatch, portion: tuple[int, int]) -> None:
    patch.setattr(timed, "PORTION", portion[0])
    patch.setattr(timed, "ROWS_OF_A_PANE", portion[1])


STEPS = steps(row_strategy(), st.integers(-30, 60))


@settings(max_examples=400)
@given(st.sampled_from(WINDOWS), st.integers(1, 3), PORTIONS, STEPS)
def test_every_window_is_put_out_once_with_what_polars_says(
    windows: TimeWindows, parallelism: int, portion: tuple[int, int], steps: list[Step]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        _put_out_by(patch, portion)
        current, oracle = job(windows, parallelism), Oracle(windows)
        current.run(steps, batch, oracle)
        rows = found(current.rows(), windows)
        wanted = oracle.results()
        assert sorted(key for key, _ in rows if key[0] is not None) == sorted(
            key for key in wanted if key[0] is not None
        )
        assert {key: approximately(row) for key, row in wanted.items()} == dict(rows)
        assert len(rows) == len(wanted)
        late = [(row["user"], row["x"], row["s"]) for row in current.side("late")]
        assert sorted(late, key=str) == sorted([(row[0], row[2], row[3]) for row in oracle.late], key=str)


@settings(max_examples=400)
@given(st.sampled_from(WINDOWS), st.integers(1, 30), st.integers(1, 3), PORTIONS, STEPS)
def test_with_allowed_lateness_the_last_row_of_a_window_is_what_polars_says(
    windows: TimeWindows, lateness: int, parallelism: int, portion: tuple[int, int], steps: list[Step]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        _put_out_by(patch, portion)
        current, oracle = job(windows, parallelism, lateness=lateness), Oracle(windows, lateness)
        current.run(steps, batch, oracle)
        last = dict(found(current.rows(), windows))
        assert last == {key: approximately(row) for key, row in oracle.results().items()}
        assert len(current.side("late")) == len(oracle.late)


# ---- one thing at a time ----
TUMBLING = TimeWindows(10, 10)


def simple(windows: TimeWindows = TUMBLING, key: tuple[str, ...] = ("user",), **options: Any) -> WindowJob:
    def make() -> TimeWindowOperator:
        return TimeWindowOperator(windows, key, {"n": agg.count()}, SCHEMA, EventTime("ts"), **options)

    return WindowJob(make, key)


def events(*times: int, user: int = 1) -> pa.RecordBatch:
    return batch([(user, time, 1, None) for time in times])


def counts(current: WindowJob) -> list[tuple[int, int]]:
    return [(end, row["n"]) for (_, end), row in found(current.rows(), TUMBLING)]


def test_a_window_waits_for_its_last_millisecond() -> None:
    current = simple().feed(events(0, 9, 10)).watermark(8)
    assert counts(current) == []
    assert counts(current.watermark(9)) == [(10, 2)]


def test_event_time_stays_before_the_end_of_a_window_that_is_not_out_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "PORTION", 2)
    current = simple().feed(*(events(5, 15, user=user) for user in range(5))).watermark(30)
    operator = current.subtasks[0].operator
    seen = []
    while operator.next_timer() is not None:
        assert not operator.is_idle(True)
        seen.append((len(current.rows()), operator.emitted_watermark()))
        current.step()
    assert seen == [(2, 8), (4, 8), (5, 18), (7, 18), (9, 18)]
    assert (len(current.rows()), operator.emitted_watermark(), operator.is_idle(True)) == (10, 30, True)


def test_windows_that_ended_together_go_out_together_in_their_order() -> None:
    current = simple().feed(events(25, 5, 15), events(16, user=2)).watermark(30)
    (put_out,) = current.subtasks[0].out.batches
    assert put_out.column("user").to_pylist() == [1, 1, 2, 1]
    assert [end for end, _ in counts(current)] == [10, 20, 20, 30]
    assert current.subtasks[0].operator.next_timer() is None


def test_a_step_puts_out_no_more_windows_than_make_a_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "PORTION", 3)
    monkeypatch.setattr(timed, "ROWS_OF_A_PANE", 1)
    current = simple().feed(events(*range(0, 60, 10))).watermark(100)
    seen = [len(current.rows())]
    while current.subtasks[0].operator.next_timer() is not None:
        current.step()
        seen.append(len(current.rows()))
    assert seen == [2, 4, 6]
    assert current.subtasks[0].operator.emitted_watermark() == 100


@pytest.mark.parametrize("lateness", [0, 1])
def test_a_record_that_is_late_for_one_window_is_not_in_it_though_it_waits_to_go_out(
    monkeypatch: pytest.MonkeyPatch, lateness: int
) -> None:
    monkeypatch.setattr(timed, "PORTION", 1)
    sliding = TimeWindows(12, 2)
    current = simple(sliding, lateness=lateness).feed(events(-1)).watermark(2)
    assert current.subtasks[0].operator.next_timer() is not None  # the window up to 2 has ended, and is not out
    current.feed(events(0)).end()
    last = {end: row["n"] for (_, end), row in found(current.rows(), sliding)}
    assert last == {0: 1, 2: 1, 4: 2, 6: 2, 8: 2, 10: 2, 12: 1}


def test_a_window_before_those_that_are_known_is_put_out_first() -> None:
    current = simple().feed(events(55), events(25), events(5)).watermark(9)
    assert counts(current) == [(10, 1)]
    assert [end for end, _ in counts(current.watermark(29))] == [10, 30]
    assert [end for end, _ in counts(current.watermark(60))] == [10, 30, 60]


def test_a_late_record_within_the_allowed_lateness_has_its_row_put_out_again() -> None:
    current = simple(lateness=5).feed(events(1)).watermark(9).feed(events(2, 3)).watermark(13).feed(events(4))
    assert counts(current) == [(10, 1), (10, 3), (10, 4)]
    current.watermark(14).feed(events(5))
    assert len(current.side("late")) == 1
    assert len(current.rows()) == 3


def test_early_results_come_for_keys_that_had_records_while_their_window_is_open() -> None:
    current = simple(early=declare.every("1s")).feed(events(1), events(1, user=2)).tick(1000)
    assert counts(current) == [(10, 1), (10, 1)]
    current.feed(events(2)).tick(1999)
    assert len(current.rows()) == 2
    assert counts(current.tick(2000)) == [(10, 1), (10, 1), (10, 2)]
    assert counts(current.watermark(9).tick(5000)) == [(10, 1), (10, 1), (10, 2), (10, 2), (10, 1)]


def test_early_results_of_sliding_windows_are_of_every_open_window() -> None:
    windows = TimeWindows(10, 5)
    current = simple(windows, early=declare.every("1s")).feed(events(6)).tick(1000).watermark(9)
    assert counts(current) == [(10, 1), (15, 1), (10, 1)]


def test_early_results_by_count_come_when_a_key_has_so_many_more() -> None:
    current = simple(early=declare.every_count(2)).feed(events(1), events(2, 3), events(4), events(4, user=2))
    assert counts(current) == [(10, 3)]
    assert counts(current.feed(events(5))) == [(10, 3), (10, 5)]


def test_windows_over_a_whole_stream_have_no_key() -> None:
    current = simple(key=()).feed(events(1, 2), events(3, user=2), events(11)).end()
    assert [row["n"] for row in current.rows()] == [3, 1]
    assert list(current.rows()[0]) == ["window_start", "window_end", "n"]


def test_a_record_without_a_time_is_late() -> None:
    current = simple().feed(batch([(1, None, 1, None), (1, 5, 2, None)])).end()
    assert [row["x"] for row in current.side("late")] == [1]
    assert counts(current) == [(10, 1)]


@pytest.mark.parametrize(
    ("column", "bounds"),
    [
        (pa.array([12_500], pa.int64()), (10_000, 20_000)),
        (pa.array([12_500], pa.uint32()), (10_000, 20_000)),
        (pa.array([-1], pa.int32()), (-10_000, 0)),
        (pa.array([12], pa.timestamp("s", "Asia/Tokyo")), (10_000, 20_000)),
        (pa.array([9_999_999_999, 10_000_000_000], pa.timestamp("ns")), (0, 10_000)),
        (pa.array([1], pa.date32()), (86_400_000, 86_410_000)),
        (pa.array([86_400_000], pa.date64()), (86_400_000, 86_410_000)),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_every_type_of_time_falls_into_its_window(column: pa.Array, bounds: tuple[int, int]) -> None:
    schema = pa.schema([("user", pa.int64()), ("ts", column.type)])
    windows = TimeWindows(10_000, 10_000)
    current = WindowJob(
        lambda: TimeWindowOperator(windows, ("user",), {"n": agg.count()}, schema, EventTime("ts")), ("user",)
    )
    current.feed(pa.RecordBatch.from_arrays([pa.array([1] * len(column)), column], schema=schema)).end()
    out = current.subtasks[0].out.batches[0]
    kind = out.schema.field("window_start").type
    assert out.schema.field("window_end").type == kind
    milliseconds = [out.column(name)[0].cast(pa.int64()).as_py() for name in ("window_start", "window_end")]
    scale = {"us": 1_000, "ns": 1_000_000}.get(getattr(kind, "unit", ""), 1)
    assert [time // scale for time in milliseconds] == list(bounds)


KEYS = [
    (pa.string(), ["", "a", None, "grüße"]),
    (pa.binary(), [b"", b"\x00", None]),
    (pa.float64(), [0.5, -0.0, None]),
    (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("-2.00"), None]),
    (pa.date32(), [dt.date(2024, 2, 29), None]),
    (pa.bool_(), [True, False, None]),
    (pa.timestamp("ns"), [dt.datetime(2024, 1, 1), None]),
]


@pytest.mark.parametrize(("kind", "values"), KEYS, ids=[str(kind) for kind, _ in KEYS])
def test_keys_of_every_type_are_grouped_stored_and_put_out(kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("k", kind), ("l", pa.int64()), ("ts", pa.int64())])
    current = WindowJob(
        lambda: TimeWindowOperator(TimeWindows(10, 5), ("k", "l"), {"n": agg.count()}, schema, EventTime("ts")),
        ("k", "l"),
        2,
    )
    keys = [(value, number) for value in values for number in (1, None)]
    columns = [[key[0] for key in keys] * 3, [key[1] for key in keys] * 3, [4] * len(keys) * 2 + [7] * len(keys)]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    current.feed(pa.record_batch(arrays, schema=schema))
    current.restart(3)
    current.end()
    rows = current.rows()
    assert len(rows) == 3 * len(keys)
    by_window = {(row["k"], row["l"], row["window_end"]): row["n"] for row in rows}
    assert by_window == {(*key, end): n for key in keys for end, n in ((5, 2), (10, 3), (15, 1))}


SOME_ROWS = st.lists(row_strategy(), min_size=1, max_size=8)


@settings(max_examples=50)
@given(st.sampled_from(WINDOWS), SOME_ROWS, SOME_ROWS, st.booleans())
def test_what_happens_after_a_capture_never_leaks_into_it(
    windows: TimeWindows, before: list[Row], after: list[Row], large: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if large:
            patch.setattr(captures, "COPIED", 0)  # everything is frozen, nothing copied
        current = job(windows, lateness=100).feed(batch(before)).watermark(5)
        at_once = [bytes(part.read()) for part in current.subtasks[0].checkpoint(whole=True)]
        write = current.subtasks[0].capture(whole=True)
        current.feed(batch(after)).watermark(50).settle()
        assert [bytes(part.read()) for part in write()] == at_once


def test_state_of_other_windows_is_refused_naming_both() -> None:
    stored = simple().feed(events(1)).checkpoint()
    with pytest.raises(StateMismatch, match=r"tumbling\(10ms\) of n=count\(\): int64, but declared are sliding\(10ms"):
        simple(TimeWindows(10, 5)).start(1, stored)


def test_event_time_of_an_unknown_version_is_refused() -> None:
    stored = simple().feed(events(1)).checkpoint()
    changed = [
        replace(part, read=lambda: memoryview(b"\x09" + bytes(8))) if part.kind is PartKind.UNION else part
        for part in stored
    ]
    with pytest.raises(StateMismatch, match="is stored in format 9, but this Penstock reads format 1"):
        simple().start(1, changed)
