"""Count windows and global windows against a plain reading of the records, key by key."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operators.windows.harness import WindowJob

from penstock.operators.aggregation import declare as agg
from penstock.operators.windows import declare
from penstock.operators.windows.counted import CountWindowOperator
from penstock.state.tables import StateMismatch

SCHEMA = pa.schema([("user", pa.string()), ("x", pa.int64())])
AGGREGATES = {"total": agg.sum("x"), "all": agg.collect("x"), "last": agg.last("x"), "n": agg.count()}
Row = tuple[str, int | None]


def batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.record_batch([list(column) for column in zip(*rows, strict=True)], schema=SCHEMA)


def job(windows: Any, parallelism: int = 1, key: tuple[str, ...] = ("user",)) -> WindowJob:
    return WindowJob(lambda: CountWindowOperator(windows, key, AGGREGATES, SCHEMA), key, parallelism)


def result(user: str, values: list[int | None]) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    total, last = (sum(known), known[-1]) if known else (None, None)
    return {"user": user, "total": total, "all": known, "last": last, "n": len(values)}


def expected(rows: list[Row], every: int, *, purge: bool) -> list[dict[str, Any]]:
    seen: dict[str, list[int | None]] = {}
    out = []
    for user, value in rows:
        values = seen.setdefault(user, [])
        values.append(value)
        if len(values) % every == 0:
            out.append(result(user, values))
            if purge:
                values.clear()
    return out


ROWS = st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(-9, 9)), min_size=1, max_size=30)


@settings(max_examples=200)
@given(st.lists(ROWS, max_size=5), st.integers(1, 7), st.booleans(), st.integers(1, 3), st.data())
def test_windows_are_full_after_so_many_records_however_the_stream_is_cut(
    batches: list[list[Row]], every: int, purge: bool, parallelism: int, data: st.DataObject
) -> None:
    windows = declare.count_window(every) if purge else declare.global_window(trigger=declare.every_count(every))
    current = job(windows, parallelism)
    for rows in batches:
        current.feed(batch(rows))
        if data.draw(st.booleans()):
            current.restart(data.draw(st.integers(1, 3)), whole=data.draw(st.booleans()))
    wanted = expected([row for rows in batches for row in rows], every, purge=purge)
    found = current.rows()
    for user in "abcd":
        assert [row for row in found if row["user"] == user] == [row for row in wanted if row["user"] == user]


def test_a_batch_may_have_many_keys() -> None:
    rows: list[Row] = [(f"user {number}", turn) for turn in range(5) for number in range(3000)]
    current = job(declare.count_window(2)).feed(batch(rows))
    assert current.rows() == expected(rows, 2, purge=True)


def test_results_of_a_batch_come_in_the_order_in_which_windows_became_full() -> None:
    current = job(declare.count_window(2)).feed(batch([("a", 1), ("b", 2), ("b", 3), ("a", 4), ("b", 5), ("b", 6)]))
    assert [(row["user"], row["total"]) for row in current.rows()] == [("b", 5), ("a", 5), ("b", 11)]


def test_a_count_window_over_the_whole_stream_needs_no_key() -> None:
    current = job(declare.count_window(3), key=()).feed(batch([(user, 1) for user in "abcdefg"]))
    assert [row["n"] for row in current.rows()] == [3, 3]
    assert "user" not in current.rows()[0]


@pytest.mark.parametrize("purge", [True, False])
def test_processing_time_puts_out_the_keys_that_had_records(purge: bool) -> None:
    current = job(declare.global_window(trigger=declare.every("1s"), purge=purge))
    current.feed(batch([("a", 1), ("b", 2)])).tick(999)
    assert current.rows() == []
    current.tick(1000).feed(batch([("a", 5)])).tick(5000)
    wanted = [("a", 1), ("b", 2), ("a", 5 if purge else 6)]
    assert [(row["user"], row["total"]) for row in current.rows()] == wanted


def test_what_waits_for_its_trigger_survives_a_restore() -> None:
    current = job(declare.global_window(trigger=declare.every("1s"), purge=True))
    current.feed(batch([("a", 1), ("b", 2)])).restart(2)
    current.tick(1000)
    assert sorted((row["user"], row["total"]) for row in current.rows()) == [("a", 1), ("b", 2)]


def test_state_of_other_windows_is_refused_naming_both() -> None:
    stored = job(declare.count_window(2)).feed(batch([("a", 1)])).checkpoint()
    with pytest.raises(StateMismatch, match=r"are count_window\(2\) of total=sum\(x\).*declared are count_window\(3\)"):
        job(declare.count_window(3)).start(1, stored)
