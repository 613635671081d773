"""Reducing and aggregating state: what is added for a key is folded, and stays so over snapshots."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from tests.unit.state.harness import Job

from penstock.operators.keyed import KeyedContext, KeyedFunction
from penstock.operators.process import ProcessOperator
from penstock.state import declare as ps

pytestmark = pytest.mark.usefixtures("every_backend")

INPUT = pa.schema([("user", pa.string()), ("amount", pa.int64())])
OUTPUT = pa.schema([("user", pa.string()), ("best", pa.int64()), ("mean", pa.float64()), ("distinct", pa.int64())])


def add_to_mean(accumulator: tuple[int, int], amount: int) -> tuple[int, int]:
    return accumulator[0] + 1, accumulator[1] + amount


def mean(accumulator: tuple[int, int]) -> float | None:
    n, total = accumulator
    return total / n if n else None


def add_to_set(accumulator: set[int], amount: int) -> set[int]:
    accumulator.add(amount)
    return accumulator


class Folded(KeyedFunction):
    best = ps.reducing(int, max)
    mean = ps.aggregating(tuple[int, int], create=lambda: (0, 0), add=add_to_mean, result=mean)
    seen = ps.aggregating(set[int], create=set, add=add_to_set, result=len)

    def process(self, row: Any, ctx: KeyedContext) -> None:
        if row.amount < 0:
            self.best.clear()
            self.mean.clear()
            self.seen.clear()
        else:
            self.best.add(row.amount)
            self.mean.add(row.amount)
            self.seen.add(row.amount)
        ctx.emit(user=row.user, best=self.best.get(), mean=self.mean.get(), distinct=self.seen.get())


def batch(*records: tuple[str, int]) -> pa.RecordBatch:
    return pa.record_batch([[user for user, _ in records], [amount for _, amount in records]], schema=INPUT)


def folded(parallelism: int = 1, **more: Any) -> Job:
    return Job(lambda: ProcessOperator(Folded, ("user",), OUTPUT, INPUT), ("user",), parallelism, **more)


def answers(job: Job) -> list[tuple[str, int | None, float | None, int]]:
    return [(row["user"], row["best"], row["mean"], row["distinct"]) for row in job.taken()]


def test_what_is_added_for_a_key_is_folded() -> None:
    job = folded().feed(batch(("a", 4), ("b", 1), ("a", 2)), batch(("a", 4)))
    assert answers(job) == [("a", 4, 4.0, 1), ("a", 4, 3.0, 2), ("b", 1, 1.0, 1), ("a", 4, 10 / 3, 2)]


def test_folded_state_is_restored_at_any_parallelism() -> None:
    first = folded(2).feed(batch(("a", 4), ("b", 1), ("a", 2)))
    again = folded(3, restored=first.snapshot()).feed(batch(("a", 9), ("b", 1)))
    assert sorted(answers(again)) == [("a", 9, 5.0, 3), ("b", 1, 1.0, 1)]


def test_an_accumulator_that_changes_in_place_does_not_leak_into_a_snapshot_that_was_taken_before() -> None:
    job = folded().feed(batch(("a", 4)))
    captured = job.capture()
    job.feed(batch(("a", 5)))
    resumed = folded(restored=[part for one in captured for part in one.encode()]).feed(batch(("a", 4)))
    assert answers(resumed) == [("a", 4, 4.0, 1)]


def test_a_cleared_key_has_nothing_folded_and_takes_no_room() -> None:
    job = folded().feed(batch(("a", 4)), batch(("a", -1)))
    assert answers(job)[-1] == ("a", None, None, 0)
    (operator,) = job.subtasks
    assert isinstance(operator, ProcessOperator)
    assert [dict(state.map.items()) for state in operator.states] == [{}, {}, {}]


def test_folding_functions_ship_to_workers() -> None:
    factory = cloudpickle.loads(cloudpickle.dumps(lambda: ProcessOperator(Folded, ("user",), OUTPUT, INPUT)))
    assert answers(Job(factory, ("user",)).feed(batch(("a", 3)))) == [("a", 3, 3.0, 1)]


def test_what_is_no_function_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeError, match="function=3 must be a function of two values"):
        ps.reducing(int, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="create=0 must be a function of no arguments"):
        ps.aggregating(int, create=0, add=add_to_mean)  # type: ignore[arg-type]
