"""Tumbling and sliding windows against Polars: out-of-order and late records, at several parallelisms, with restores at
any moment, also in the middle of a firing and from subtasks that were not equally far."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operators.windows.harness import WindowJob

from penstock.operators.aggregation import declare as agg
from penstock.operators.windows import timed
from penstock.operators.windows.declare import TimeWindows
from penstock.operators.windows.timed import TimeWindowOperator
from penstock.operators.windows.times import EventTime
from penstock.runtime.elements import MIN_WATERMARK

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


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.lists(row_strategy(), min_size=1, max_size=8)),
        st.tuples(st.just("watermark"), st.integers(-30, 60)),
        st.tuples(st.just("watermark of one"), st.tuples(st.integers(-30, 60), st.integers(0, 2))),
        st.tuples(st.just("step"), st.none()),
        st.tuples(st.just("restart"), st.tuples(st.integers(1, 3), st.booleans())),
        st.tuples(st.just("checkpoint"), st.booleans()),
    ),
    max_size=14,
)


def run(current: WindowJob, oracle: Oracle, steps: list[tuple[str, Any]]) -> None:
    for kind, what in steps:
        if kind == "rows":
            records = batch(what)
            oracle.feed(what, [current.times.get(group, MIN_WATERMARK) for group in current.groups(records)])
            current.feed(records)
        elif kind == "watermark":
            current.watermark(what)
        elif kind == "watermark of one":
            current.watermark(what[0], only=what[1])
        elif kind == "step":
            current.step()
        elif kind == "checkpoint":
            current.checkpoint(whole=what)
        else:
            current.restart(what[0], whole=what[1])
    current.end()


@settings(max_examples=400)
@given(st.sampled_from(WINDOWS), st.integers(1, 3), STEPS)
def test_every_window_is_put_out_once_with_what_polars_says(
    windows: TimeWindows, parallelism: int, steps: list[tuple[str, Any]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timed, "PORTION", 2)
        current, oracle = job(windows, parallelism), Oracle(windows)
        run(current, oracle, steps)
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
@given(st.sampled_from(WINDOWS), st.integers(1, 30), st.integers(1, 3), STEPS)
def test_with_allowed_lateness_the_last_row_of_a_window_is_what_polars_says(
    windows: TimeWindows, lateness: int, parallelism: int, steps: list[tuple[str, Any]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timed, "PORTION", 2)
        current, oracle = job(windows, parallelism, lateness=lateness), Oracle(windows, lateness)
        run(current, oracle, steps)
        last = dict(found(current.rows(), windows))
        assert last == {key: approximately(row) for key, row in oracle.results().items()}
        assert len(current.side("late")) == len(oracle.late)
