from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.connectors.support import ManualClock, context, poll_all, snapshot_of

from penstock.connectors.generator import Generator
from penstock.operators.base import SourceOperator


def numbers(count: int | None, **options: object) -> Generator:
    return Generator(count, {"n": lambda i: i}, **options)  # type: ignore[arg-type]


def opened(source: Generator, subtask: int = 0, parallelism: int = 1, **options: object) -> SourceOperator:
    operator = source.operator()
    operator.open(context(subtask, parallelism, **options))  # type: ignore[arg-type]
    return operator


def values(batches: list[pa.RecordBatch]) -> list[int]:
    return [value for batch in batches for value in batch.column("n").to_pylist()]


def test_a_single_subtask_emits_every_index_once_and_in_order() -> None:
    assert values(poll_all(opened(numbers(1000)), max_rows=37)) == list(range(1000))


def test_the_columns_are_computed_from_the_indices() -> None:
    source = Generator(3, {"double": lambda i: i * 2, "name": lambda i: pa.array([f"n{x}" for x in i])})
    assert source.schema == pa.schema({"double": pa.int64(), "name": pa.string()})
    [batch] = poll_all(opened(source))
    assert batch.to_pylist() == [{"double": 2 * i, "name": f"n{i}"} for i in range(3)]


def test_one_function_may_make_the_whole_batch() -> None:
    source = Generator(2, lambda i: pa.record_batch({"n": i, "half": i / 2}))
    [batch] = poll_all(opened(source))
    assert batch.to_pydict() == {"n": [0, 1], "half": [0.0, 0.5]}


def test_an_empty_generator_is_done_at_once_and_has_a_schema() -> None:
    source = numbers(0)
    assert source.bounded and source.schema.names == ["n"]
    assert opened(source).poll(10).done


def test_a_subtask_beyond_the_splits_is_done_when_bounded_and_idle_when_not() -> None:
    assert opened(numbers(10, splits=2), subtask=2, parallelism=3).poll(10).done
    polled = opened(numbers(None, splits=2), subtask=2, parallelism=3).poll(10)
    assert polled.idle and not polled.done and polled.batch is None


@given(
    count=st.integers(0, 300),
    splits=st.integers(1, 20),
    before=st.integers(1, 5),
    after=st.integers(1, 5),
    polls=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 40)), max_size=20),
)
def test_a_restore_at_any_parallelism_goes_on_exactly_where_the_snapshot_was(
    count: int, splits: int, before: int, after: int, polls: list[tuple[int, int]]
) -> None:
    source = numbers(count, splits=splits)
    first = [opened(source, i, before) for i in range(before)]
    seen = [
        value
        for subtask, rows in polls
        if (batch := first[subtask % before].poll(rows).batch) is not None
        for value in batch.column("n").to_pylist()
    ]
    parts = [part for i, operator in enumerate(first) for part in snapshot_of(operator, i)]
    for i in range(after):
        rest = values(poll_all(opened(source, i, after, restored=parts), max_rows=11))
        for split in range(splits):
            in_split = [value for value in rest if value % splits == split]
            assert in_split == sorted(in_split)
        seen += rest
    assert sorted(seen) == list(range(count))


def test_splits_that_nobody_wrote_belonged_to_a_finished_subtask_and_are_not_read_again() -> None:
    source = numbers(100, splits=4)
    running = opened(source, 0, 2)
    running.poll(10)
    parts = snapshot_of(running, 0)
    assert {value % 2 for value in values(poll_all(opened(source, 0, 1, restored=parts)))} == {0}


def test_a_part_captured_earlier_does_not_move_with_later_polls() -> None:
    operator = opened(numbers(100))
    operator.poll(10)
    captured = operator.snapshot(None)  # type: ignore[arg-type]
    before = b"".join(captured.parts[0].encode())
    operator.poll(10)
    assert b"".join(captured.parts[0].encode()) == before


def test_a_changed_number_of_splits_is_refused_with_the_number_to_use() -> None:
    parts = snapshot_of(opened(numbers(10, splits=4)), 0)
    with pytest.raises(ValueError, match="Set splits=4"):
        opened(numbers(10, splits=8), restored=parts)


def test_a_rate_limits_the_rows_by_the_clock_without_blocking() -> None:
    clock = ManualClock()
    operator = opened(numbers(None, rate=100.0), clock=clock)
    first = operator.poll(1000)
    assert first.batch is None and 0.01 <= first.idle_for < 0.02
    emitted = 0
    for _ in range(100):
        clock.seconds += 0.1
        batch = operator.poll(1000).batch
        emitted += batch.num_rows if batch is not None else 0
    assert emitted == pytest.approx(1000, abs=2)


def test_all_subtasks_are_due_at_the_same_moments() -> None:
    clock = ManualClock()
    operators = [opened(numbers(None, rate=100_000.0), index, 2, clock=clock) for index in range(2)]
    due = set()
    for operator in operators:
        clock.seconds += 0.0001
        due.add(round(clock.seconds + operator.poll(1000).idle_for, 9))
    assert len(due) == 1


def test_the_rate_is_shared_by_all_subtasks() -> None:
    clock = ManualClock()
    operators = [opened(numbers(None, rate=128.0), i, 4, clock=clock) for i in range(4)]
    assert all(operator.poll(1000).batch is None for operator in operators)
    clock.seconds = 1.0
    assert [operator.poll(1000).batch.num_rows for operator in operators] == [32] * 4  # type: ignore[union-attr]


def test_a_source_that_was_held_up_catches_up_one_second_at_most() -> None:
    clock = ManualClock()
    operator = opened(numbers(None, rate=50.0), clock=clock)
    operator.poll(1)
    clock.seconds = 1000.0
    batch = operator.poll(10_000).batch
    assert batch is not None and batch.num_rows == 50
    assert operator.poll(10_000).batch is None


def test_subtasks_that_are_opened_one_after_another_and_start_together_are_equally_far() -> None:
    clock = ManualClock()
    operators = []
    for index in range(2):
        operators.append(opened(numbers(None, rate=16_384.0), index, 2, clock=clock))
        clock.seconds += 0.25
    for operator in operators:
        operator.poll(1000)
    clock.seconds += 0.125
    assert [operator.poll(2000).batch.num_rows for operator in operators] == [1024] * 2  # type: ignore[union-attr]


@pytest.mark.parametrize("wait", [0.25, 3.25])
def test_subtasks_that_poll_for_the_first_time_one_after_another_are_equally_far(wait: float) -> None:
    clock = ManualClock(1_000.0)
    deployed = clock.wall_ms()
    operators = [
        opened(numbers(None, rate=16_384.0), index, 2, clock=clock, deployed_ms=deployed) for index in range(2)
    ]
    clock.seconds += wait
    first = operators[0].poll(100_000).batch
    assert first is not None and first.num_rows == 2048  # of a quarter of a second: whole ones are not made up for
    clock.seconds += 0.25
    rest = [operator.poll(100_000).batch for operator in operators]
    assert [0 if batch is None else batch.num_rows for batch in rest] == [2048, 4096]


def test_a_source_at_a_high_rate_pauses_after_a_batch_unless_it_is_behind() -> None:
    clock = ManualClock()
    operator = opened(numbers(None, rate=102_400.0), clock=clock)
    assert operator.poll(10_000).idle_for > 0
    clock.seconds += 0.125
    behind = operator.poll(6_400)
    assert behind.batch is not None and behind.batch.num_rows == 6_400 and behind.idle_for == 0
    in_time = operator.poll(6_400)
    assert in_time.batch is not None and in_time.batch.num_rows == 6_400 and in_time.idle_for > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: numbers(-1), "count must be 0 or more"),
        (lambda: numbers(1, rate=0), "rate must be above 0"),
        (lambda: numbers(1, splits=0), "splits must be from 1"),
        (lambda: Generator(1, {}), "at least one column"),
        (lambda: Generator(1, {"x": lambda i: 5}), "'x' must be an array with a value per index"),
        (lambda: Generator(1, {"x": lambda i: pa.nulls(len(i))}), "type of column 'x' cannot be told"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_a_function_that_returns_something_else_is_named() -> None:
    with pytest.raises(TypeError, match=r"must return a pyarrow\.RecordBatch or a mapping"):
        Generator(1, lambda i: [1])


def test_a_column_that_changes_its_type_or_length_is_refused() -> None:
    changing = Generator(10, {"x": lambda i: i if i[0] == 0 and len(i) == 1 else i.astype(np.float64)})
    with pytest.raises(ValueError, match="'x' was int64 for index 0, now it is double"):
        opened(changing).poll(5)
    short = Generator(10, {"x": lambda i: i[:1]})
    with pytest.raises(ValueError, match="'x' has 1 values for 5 indices"):
        opened(short).poll(5)
