"""The running join against DuckDB: every kind, with changelogs, nulls, repeated rows and all sorts of columns, at
several parallelisms, with checkpoints of layers and restores at any moment."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operators.joins.harness import JoinJob, answered, result

from penstock.operators.joins import retracting, rows
from penstock.operators.joins.running import RunningJoinOperator
from penstock.operators.joins.shape import How, JoinSide
from penstock.operators.joins.state import JoinState
from penstock.state.tables import StateMismatch

OP = pa.field("op", pa.string())
LEFT = pa.schema([("x", pa.int64()), ("k", pa.int64()), ("word", pa.string())])
RIGHT = pa.schema([("id", pa.int64()), ("x", pa.decimal128(5, 2)), ("items", pa.list_(pa.int64()))])

QUERIES = {
    how: f"select l.x, coalesce(l.k, r.id) k, word, r.x x_right, items from l {how} join r on l.k = r.id"
    for how in ("inner", "left", "right", "full")
} | {how: f"select l.x, l.k, word from l {how} join r on l.k = r.id" for how in ("semi", "anti")}

KEYS = st.none() | st.integers(0, 4)
LEFT_ROWS = st.tuples(st.none() | st.integers(0, 1), KEYS, st.none() | st.sampled_from(["", "a", "bc"]))
RIGHT_ROWS = st.tuples(
    KEYS, st.none() | st.sampled_from([Decimal("1.00"), Decimal("-2.50")]), st.none() | st.lists(st.integers(0, 1))
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("left"), st.lists(LEFT_ROWS, min_size=1, max_size=6)),
        st.tuples(st.just("right"), st.lists(RIGHT_ROWS, min_size=1, max_size=6)),
        st.tuples(st.just("checkpoint"), st.booleans()),
        st.tuples(st.just("restart"), st.tuples(st.integers(1, 3), st.booleans())),
    ),
    max_size=14,
)


def sides(marked: tuple[bool, bool] = (False, False)) -> tuple[JoinSide, JoinSide]:
    left, right = (
        schema.insert(1, OP) if with_op else schema for schema, with_op in zip((LEFT, RIGHT), marked, strict=True)
    )
    return JoinSide(left, ("k",), marked[0]), JoinSide(right, ("id",), marked[1])


def job_of(
    how: str, marked: tuple[bool, bool] = (False, False), ttl: Any = (None, None), parallelism: int = 1
) -> JoinJob:
    both = sides(marked)
    return JoinJob(lambda: RunningJoinOperator(*both, How(how), "_right", ttl), ("k",), parallelism, sides=both)


def batch(schema: pa.Schema, records: list[Any], operations: list[str] | None = None) -> pa.RecordBatch:
    columns = [pa.array(values, field.type) for values, field in zip(zip(*records, strict=True), schema, strict=True)]
    if operations is None:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    columns.insert(1, pa.array(operations, pa.string()))
    return pa.RecordBatch.from_arrays(columns, schema=schema.insert(1, OP))


def answer(how: str, left: list[Any], right: list[Any]) -> Counter[Any]:
    l = pa.Table.from_pylist([dict(zip(LEFT.names, row, strict=True)) for row in left], LEFT)  # noqa: E741, F841
    r = pa.Table.from_pylist([dict(zip(RIGHT.names, row, strict=True)) for row in right], RIGHT)  # noqa: F841
    return answered(duckdb.sql(QUERIES[how]).arrow().read_all())


def run(job: JoinJob, steps: list[Any]) -> tuple[list[Any], list[Any]]:
    """What has come on both sides."""
    come: dict[str, list[Any]] = {"left": [], "right": []}
    for kind, what in steps:
        if kind == "checkpoint":
            job.checkpoint(whole=what)
        elif kind == "restart":
            job.restart(what[0], whole=what[1])
        else:
            job.feed_side(("left", "right").index(kind), batch(LEFT if kind == "left" else RIGHT, what))
            come[kind] += what
    return come["left"], come["right"]


@pytest.mark.parametrize("how", QUERIES)
@given(steps=STEPS, parallelism=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_the_result_is_the_join_of_all_that_has_come(how: str, steps: list[Any], parallelism: int) -> None:
    job = job_of(how, parallelism=parallelism)
    left, right = run(job, steps)
    assert result(job) == answer(how, left, right)


class Changes:
    """Makes a changelog of rows that come and rows that are taken back."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self.there: tuple[list[Any], list[Any]] = ([], [])

    def of(self, side: int, records: list[Any]) -> tuple[list[Any], list[str]]:
        rows, operations = [], []
        for record in records:
            there = self.there[side]
            if there and self._data.draw(st.booleans()):
                rows.append(there.pop(self._data.draw(st.integers(0, len(there) - 1))))
                operations.append(self._data.draw(st.sampled_from(["delete", "update_before"])))
            rows.append(record)
            operations.append(self._data.draw(st.sampled_from(["insert", "update_after"])))
            there.append(record)
        return rows, operations


@pytest.mark.parametrize("how", QUERIES)
@given(data=st.data(), steps=STEPS, marked=st.sampled_from([(True, True), (True, False), (False, True)]))
@settings(max_examples=40, deadline=None)
def test_rows_of_a_changelog_are_taken_back_with_all_that_followed_from_them(
    how: str, data: st.DataObject, steps: list[Any], marked: tuple[bool, bool]
) -> None:
    job, changes = job_of(how, marked), Changes(data)
    for kind, what in steps:
        if kind not in ("left", "right"):
            run(job, [(kind, what)])
            continue
        side = ("left", "right").index(kind)
        schema = (LEFT, RIGHT)[side]
        if marked[side]:
            job.feed_side(side, batch(schema, *changes.of(side, what)))
        else:
            job.feed_side(side, batch(schema, what))
            changes.there[side].extend(what)
    assert result(job) == answer(how, *changes.there)


@given(data=st.data(), steps=STEPS)
@settings(max_examples=30, deadline=None)
def test_rows_are_told_apart_even_if_their_hashes_are_equal(data: st.DataObject, steps: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retracting, "hash_columns", lambda columns: np.zeros(len(columns[0]), np.uint64))
        job, changes = job_of("full", (True, True)), Changes(data)
        for kind, what in steps:
            if kind in ("left", "right"):
                side = ("left", "right").index(kind)
                job.feed_side(side, batch((LEFT, RIGHT)[side], *changes.of(side, what)))
        assert result(job) == answer("full", *changes.there)


def test_a_row_that_a_batch_adds_and_takes_back_leaves_no_trace() -> None:
    job = job_of("left", (True, False))
    row = (1, 1, "a")
    job.feed_side(0, batch(LEFT, [row, row, row], ["insert", "delete", "insert"]))
    assert [r["op"] for r in job.rows()] == ["insert"]
    job.feed_side(0, batch(LEFT, [row, row], ["delete", "insert"]))
    assert [r["op"] for r in job.rows()] == ["insert", "delete", "insert"]


def test_an_inner_join_of_streams_that_take_nothing_back_is_no_changelog() -> None:
    job = job_of("inner")
    job.feed_side(0, batch(LEFT, [(1, 1, "a")])).feed_side(1, batch(RIGHT, [(1, None, [2])]))
    assert job.rows() == [{"x": 1, "k": 1, "word": "a", "x_right": None, "items": [2]}]


def test_what_is_taken_back_but_was_never_there_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    job = job_of("inner", (True, False))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            job.feed_side(0, batch(LEFT, [(1, 1, "a")], ["delete"]))
    assert ["take back 1 row(s) of its left side" in record.message for record in caplog.records] == [True]


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="'op' is 'upsert'; it must be one of insert, update_after"):
        job_of("inner", (True, False)).feed_side(0, batch(LEFT, [(1, 1, "a")], ["upsert"]))


def test_after_the_warm_up_large_batches_need_no_further_variant_of_a_kernel() -> None:
    program = """
import numpy as np, pyarrow as pa
from tests.unit.operators.joins import test_running_join as tests
from tests.unit.state.harness import ManualClock
from penstock.kernels import joining
from penstock.operators.warmup import warm_up_joins

warm_up_joins(ManualClock())

def variants():
    kernels = {name: getattr(joining, name) for name in dir(joining)}
    return {name: len(kernel.signatures) for name, kernel in kernels.items() if hasattr(kernel, "signatures")}

before = variants()
assert set(before.values()) == {1}, before
job = tests.job_of("full", (True, True))
rows = [(n, n % 100, "a") for n in range(1000)]
for operations in (["insert"] * 1000, ["delete"] * 1000):
    job.feed_side(0, tests.batch(tests.LEFT, rows, operations))
    job.feed_side(1, tests.batch(tests.RIGHT, [(n, None, None) for n in range(1000)], operations))
assert variants() == before, (before, variants())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=110)


# ---- time to live ----
def test_rows_are_forgotten_after_their_time_to_live() -> None:
    job = job_of("inner", ttl=(100, None))
    job.feed_side(0, batch(LEFT, [(1, 1, "a")]))
    job.clock.ms = 50
    job.feed_side(0, batch(LEFT, [(2, 1, "b")]))
    job.clock.ms = 100
    job.feed_side(1, batch(RIGHT, [(1, None, None)]))
    assert [row["word"] for row in job.rows()] == ["b"]
    job.restart(2)
    job.clock.ms = 150
    job.feed_side(1, batch(RIGHT, [(1, None, None)]))
    assert [row["word"] for row in job.rows()] == ["b"]
    job.feed_side(0, batch(LEFT, [(3, 1, "c")]))
    assert [row["word"] for row in job.rows()] == ["b", "c", "c"]


def test_rows_are_forgotten_when_nothing_comes_and_are_not_in_later_checkpoints() -> None:
    job = job_of("inner", ttl=(100, 100))
    job.feed_side(0, batch(LEFT, [(1, 1, "a")]))
    assert any(part.name == "left" for part in job.checkpoint())
    job.tick(1_000)
    assert not any(part.name == "left" for part in job.checkpoint())
    assert job.subtasks[0].operator.next_timer() is None


def test_nothing_is_taken_back_because_of_time() -> None:
    job = job_of("left", ttl=(None, 100))
    job.feed_side(0, batch(LEFT, [(1, 1, "a")])).feed_side(1, batch(RIGHT, [(1, None, [1])]))
    job.clock.ms = 500
    job.feed_side(1, batch(RIGHT, [(1, None, [2])]))
    assert [(row["op"], row["items"]) for row in job.rows()] == [
        ("insert", None),
        ("delete", None),
        ("insert", [1]),
        ("insert", [2]),
    ]


@given(steps=st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(0, 3), st.integers(0, 60)), max_size=30))
@settings(max_examples=40, deadline=None)
def test_rows_meet_exactly_those_that_came_less_than_a_lifetime_before(steps: list[tuple[int, int, int]]) -> None:
    job, come, wanted = job_of("inner", ttl=(100, 40)), list[tuple[int, int, int]](), 0
    for side, key, wait in steps:
        job.clock.ms += wait
        record = (0, key, "a") if side == 0 else (key, None, None)
        job.feed_side(side, batch((LEFT, RIGHT)[side], [record]))
        wanted += sum(
            other != side and key == same and job.clock.ms - at < (100, 40)[other] for other, same, at in come
        )
        come.append((side, key, job.clock.ms))
        if wait % 7 == 0:
            job.restart(1 + wait % 3, whole=wait % 2 == 0)
    assert len(job.rows()) == wanted


# ---- state ----
def test_places_and_keys_of_what_is_gone_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_SPARE_PLACES", 8)
    monkeypatch.setattr("penstock.operators.joins.state._TIDY_FROM", 16)
    job = job_of("left", (True, True))
    for turn in range(60):
        record, other = (turn, turn, "a"), (turn, None, [turn])
        job.feed_side(0, batch(LEFT, [record], ["insert"])).feed_side(1, batch(RIGHT, [other], ["insert"]))
        if turn % 3:
            job.feed_side(1, batch(RIGHT, [other], ["delete"])).feed_side(0, batch(LEFT, [record], ["delete"]))
        if turn % 20 == 7:
            job.restart(1, whole=False)
        elif turn % 5 == 0:
            job.checkpoint(whole=False)
    state: JoinState = job.subtasks[0].operator._state  # type: ignore[attr-defined]
    assert len(state.sides[0]) == 20
    assert state.sides[0]._used < 60 and len(state.keys) < 60
    kept = [turn for turn in range(60) if turn % 3 == 0]
    assert result(job) == answer("left", [(t, t, "a") for t in kept], [(t, None, [t]) for t in kept])


def test_a_layer_of_changes_is_as_small_as_what_has_changed() -> None:
    job = job_of("inner", (True, False))
    many = [(n, n % 7, "word") for n in range(2_000)]
    job.feed_side(0, batch(LEFT, many, ["insert"] * len(many)))
    base = sum(len(part.read()) for part in job.checkpoint() if part.name == "left")
    job.feed_side(0, batch(LEFT, [many[5], (1, 1, "new")], ["delete", "insert"]))
    parts = [part for part in job.checkpoint(whole=False) if part.name == "left"]
    assert [part.layer for part in parts] == [0, 1]
    assert len(parts[1].read()) < base / 10
    job.restart(3)
    job.feed_side(1, batch(RIGHT, [(key, None, None) for key in range(7)]))
    assert Counter((row["x"], row["word"]) for row in job.rows()) == Counter(
        [(x, word) for x, _, word in many if x != 5] + [(1, "new")]
    )


def test_what_happens_to_rows_that_no_checkpoint_has_seen_is_not_remembered() -> None:
    job = job_of("left", (True, True))
    state: JoinState = job.subtasks[0].operator._state  # type: ignore[attr-defined]
    for turn in range(20):
        row, other = (turn, 1, "a"), (1, None, [turn])
        job.feed_side(0, batch(LEFT, [row], ["insert"])).feed_side(1, batch(RIGHT, [other], ["insert"]))
        job.feed_side(1, batch(RIGHT, [other], ["delete"])).feed_side(0, batch(LEFT, [row], ["delete"]))
        if turn == 10:
            job.checkpoint()
    assert not any(side._changed or side._removed for side in state.sides)


def test_state_of_another_join_is_refused() -> None:
    job = job_of("inner")
    parts = job.feed_side(0, batch(LEFT, [(1, 1, "a")])).checkpoint()
    with pytest.raises(StateMismatch, match=r"stored are the rows .* of a running join, of which nothing else is kept"):
        job_of("left").start(1, parts)


def test_a_side_may_consist_of_its_key_alone() -> None:
    only = JoinSide(pa.schema([("id", pa.int64())]), ("id",))
    job = JoinJob(lambda: RunningJoinOperator(only, only, How.INNER), ("id",), 2, sides=(only, only))
    keys = pa.record_batch({"id": pa.array([1, 1, None, 2])})
    job.feed_side(0, keys)
    job.restart(1)
    assert Counter(row["id"] for row in job.feed_side(1, keys).rows()) == {1: 4, 2: 1}


def test_keys_of_several_columns_match_in_all_of_them() -> None:
    left = JoinSide(pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.float64())]), ("a", "b"))
    right = JoinSide(pa.schema([("b2", pa.string()), ("a2", pa.int64())]), ("a2", "b2"))
    job = JoinJob(lambda: RunningJoinOperator(left, right, How.FULL), ("a", "b"), 3, sides=(left, right))
    job.feed_side(0, pa.record_batch({"a": [1, 1, None], "b": ["x", "y", "x"], "v": [0.5, float("nan"), None]}))
    job.feed_side(1, pa.record_batch({"b2": ["x", None], "a2": [1, 1]}))
    left_rows = {(row["a"], row["b"]): row["op"] for row in job.rows()}
    assert left_rows == {(1, "x"): "insert", (1, "y"): "insert", (None, "x"): "insert", (1, None): "insert"}
