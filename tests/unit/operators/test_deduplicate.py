"""Repetitions against a plain reading of the records, one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operators.windows.harness import Step, WindowJob, steps

from penstock.operators.deduplicate import DeduplicateOperator, DeduplicateWithinOperator
from penstock.operators.windows.times import EventTime

SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.timestamp("ms")), ("x", pa.int64())])
WITHIN = 10
Row = tuple[str | None, int, int]


def batch(rows: list[Row]) -> pa.RecordBatch:
    ids, times, values = zip(*rows, strict=True)
    columns = [pa.array(ids, pa.string()), pa.array(times, pa.int64()).cast(pa.timestamp("ms")), pa.array(values)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def job(parallelism: int = 1, time: EventTime | None = EventTime("ts")) -> WindowJob:  # noqa: B008
    return WindowJob(lambda: DeduplicateWithinOperator(("id",), SCHEMA, WITHIN, time), ("id",), parallelism)


class Oracle:
    def __init__(self) -> None:
        self.seen: dict[Any, list[int]] = {}
        self.out: list[int] = []
        self.late: list[int] = []

    def feed(self, rows: list[Row], watermarks: list[int]) -> None:
        for (key, time, value), watermark in zip(rows, watermarks, strict=True):
            if time + WITHIN - 1 <= watermark:
                self.late.append(value)
            elif all(abs(time - other) >= WITHIN for other in self.seen.get(key, [])):
                self.seen.setdefault(key, []).append(time)
                self.out.append(value)


ROW = st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(-20, 80), st.integers(0, 1 << 60))


@settings(max_examples=300)
@given(st.integers(1, 3), steps(ROW, st.integers(-20, 80)))
def test_a_record_is_let_through_unless_one_like_it_was_shortly_before_or_after(
    parallelism: int, steps: list[Step]
) -> None:
    current, oracle = job(parallelism), Oracle()
    current.run(steps, batch, oracle)
    assert sorted(row["x"] for row in current.rows()) == sorted(oracle.out)
    assert sorted(row["x"] for row in current.side("late")) == sorted(oracle.late)


@given(st.lists(st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=5), max_size=6), st.integers(1, 3))
def test_without_a_time_a_key_is_let_through_once(batches: list[list[str | None]], parallelism: int) -> None:
    current = WindowJob(lambda: DeduplicateOperator(("id",), SCHEMA), ("id",), 1)
    for place, ids in enumerate(batches):
        current.feed(batch([(key, place, place) for key in ids]))
        current.restart(parallelism, whole=place % 2 == 0)
    wanted = {key: place for place, ids in reversed(list(enumerate(batches))) for key in ids}
    assert {row["id"]: row["x"] for row in current.rows()} == wanted
    assert len(current.rows()) == len(wanted)


def test_without_event_time_the_clock_decides() -> None:
    current = job(time=None)
    for now in (100, 105, 109, 110, 119, 125):
        current.clock.ms = now
        current.feed(batch([("a", 0, now), ("a", 0, now + 1000)]))
    assert [row["x"] for row in current.rows()] == [100, 110, 125]
    current.clock.ms = 1000
    current.feed(batch([("b", 0, 1)]))
    operator: Any = current.subtasks[0].operator
    assert len(operator._panes) == 1
