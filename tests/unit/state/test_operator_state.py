"""State of an operator's instance: lists that split, unions, broadcast state and raw bytes, at any parallelism."""

from __future__ import annotations

from typing import Any, BinaryIO

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from tests.unit.state.harness import Job

import penstock as ps
from penstock.graph.errors import PipelineError
from penstock.operators.keyed import KeyedContext, KeyedFunction
from penstock.operators.process import ProcessOperator
from penstock.operators.stream_function import StreamContext, StreamFunction, StreamProcessOperator
from penstock.state.parts import RestoredPart
from penstock.state.tables import StateMismatch

INPUT = pa.schema([("user", pa.int64())])
OUTPUT = pa.schema([("subtask", pa.int64()), ("user", pa.int64())])


class Keeper(StreamFunction):
    mine = ps.operator_list(int)
    shared = ps.operator_union(int)
    rules = ps.operator_broadcast(str, list[int])
    blob = ps.raw()

    def __init__(self) -> None:
        self.bytes: list[bytes] = []

    @blob.write
    def save(self, stream: BinaryIO) -> None:
        stream.write(b"|".join(self.bytes))

    @blob.read
    def load(self, stream: BinaryIO) -> None:
        self.bytes += [item for item in stream.read().split(b"|") if item]

    def process(self, row: Any, ctx: StreamContext) -> None:
        self.mine.append(row.user)
        self.shared.append(row.user)
        self.rules.value.setdefault("seen", []).append(row.user)
        self.bytes.append(str(row.user).encode())
        ctx.emit(subtask=ctx.subtask, user=row.user)

    def finish(self, ctx: StreamContext) -> None:
        for user in self.mine:
            ctx.emit(subtask=-1, user=user)


def keeper(parallelism: int, **more: Any) -> Job:
    return Job(lambda: StreamProcessOperator(Keeper, OUTPUT, INPUT), ("user",), parallelism, **more)


def functions(job: Job) -> list[Any]:
    return [operator._function for operator in job.subtasks if isinstance(operator, StreamProcessOperator)]


def rows(*users: int) -> pa.RecordBatch:
    return pa.record_batch([list(users)], schema=INPUT)


def without_raw(parts: list[RestoredPart]) -> list[RestoredPart]:
    return [part for part in parts if part.name != "blob"]


def test_at_the_same_parallelism_every_subtask_has_its_own_list_again() -> None:
    job = keeper(3).feed(rows(*range(20)))
    again = keeper(3, restored=without_raw(job.snapshot()))
    assert [function.mine.value for function in functions(again)] == [f.mine.value for f in functions(job)]


@pytest.mark.parametrize("after", [1, 2, 5])
def test_at_another_parallelism_the_items_of_a_list_are_split_evenly(after: int) -> None:
    job = keeper(3).feed(rows(*range(20)))
    again = keeper(after, restored=without_raw(job.snapshot()))
    sizes = [len(function.mine) for function in functions(again)]
    assert sorted(item for function in functions(again) for item in function.mine) == list(range(20))
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("after", [1, 3, 4])
def test_a_union_gives_everybody_everything_in_the_order_of_the_writers(after: int) -> None:
    job = keeper(3).feed(rows(*range(20)))
    every = [item for function in functions(job) for item in function.shared]
    again = keeper(after, restored=without_raw(job.snapshot()))
    assert [function.shared.value for function in functions(again)] == [every] * after


def test_broadcast_state_is_one_copy_for_everybody() -> None:
    job = keeper(1).feed(rows(1, 2))
    again = keeper(3, restored=without_raw(job.snapshot()))
    assert [function.rules.value for function in functions(again)] == [{"seen": [1, 2]}] * 3


def test_raw_state_is_read_stream_by_stream() -> None:
    job = keeper(1).feed(rows(1, 2, 3))
    parts = job.snapshot()
    (function,) = functions(keeper(1, restored=parts))
    assert function.bytes == [b"1", b"2", b"3"]
    blob = next(part for part in parts if part.name == "blob")
    twice = [blob, RestoredPart("blob", blob.kind, 1, lambda: memoryview(b"9"))]
    (function,) = functions(keeper(1, restored=twice))
    assert function.bytes == [b"1", b"2", b"3", b"9"]


def test_what_happens_after_a_capture_does_not_leak_into_it() -> None:
    job = keeper(1).feed(rows(1))
    captured = job.capture()
    job.feed(rows(2))
    (function,) = functions(keeper(1, restored=captured[0].encode()))
    assert (function.mine.value, function.rules["seen"], function.bytes) == ([1], [1], [b"1"])


def test_what_is_left_is_put_out_when_the_input_ends() -> None:
    job = keeper(1).feed(rows(1, 2))
    job.taken()
    job.subtasks[0].finish(job.out[0])
    assert job.taken() == [{"subtask": -1, "user": 1}, {"subtask": -1, "user": 2}]


def test_operator_state_evolves_and_refuses_like_keyed_state() -> None:
    class Wider(Keeper):
        mine = ps.operator_list(float)

    class Narrower(Keeper):
        mine = ps.operator_list(bool)

    parts = keeper(1).feed(rows(1)).snapshot()
    job = Job(lambda: StreamProcessOperator(Wider, OUTPUT, INPUT), ("user",), restored=parts)
    assert functions(job)[0].mine.value == [1.0]
    with pytest.raises(StateMismatch, match=r"was stored as operator_list state of int, but is declared as .* of bool"):
        Job(lambda: StreamProcessOperator(Narrower, OUTPUT, INPUT), ("user",), restored=parts)


def test_a_keyed_function_may_have_operator_state_too() -> None:
    class Both(KeyedFunction):
        count = ps.value(int, default=0)
        users = ps.operator_union(int)

        def process(self, row: Any, ctx: KeyedContext) -> None:
            self.count.value += 1
            self.users.append(row.user)
            ctx.emit(subtask=len(self.users), user=self.count.value)

    def both(parallelism: int, **more: Any) -> Job:
        return Job(lambda: ProcessOperator(Both, ("user",), OUTPUT, INPUT), ("user",), parallelism, **more)

    first = both(2).feed(rows(1, 2, 1))
    second = both(1, restored=first.snapshot()).feed(rows(1))
    assert second.taken() == [{"subtask": 4, "user": 3}]


def test_state_that_is_not_declared_any_more_is_refused() -> None:
    class Forgetful(StreamFunction):
        shared = ps.operator_union(int)

    with pytest.raises(StateMismatch, match="holds a state 'mine' that is not declared any more"):
        parts = [part for part in keeper(1).snapshot() if part.name in ("mine", "shared")]
        Job(lambda: StreamProcessOperator(Forgetful, OUTPUT, INPUT), ("user",), restored=parts)


def test_raw_state_without_its_methods_is_refused() -> None:
    class Half(StreamFunction):
        blob = ps.raw()

    with pytest.raises(TypeError, match=r"needs a method that writes it, decorated with @blob\.write"):
        Job(lambda: StreamProcessOperator(Half, OUTPUT, INPUT), ("user",))


def test_functions_with_operator_state_ship_to_workers() -> None:
    factory = cloudpickle.loads(cloudpickle.dumps(lambda: StreamProcessOperator(Keeper, OUTPUT, INPUT)))
    job = Job(factory, ("user",)).feed(rows(4))
    assert len(job.snapshot()) == 4


def test_a_pipeline_takes_stream_functions_and_says_where_keyed_ones_belong() -> None:
    p = ps.Pipeline("job")
    numbers = p.source(ps.sources.Generator(10, {"user": lambda i: i}), uid="in")
    assert numbers.process(Keeper, returns={"subtask": int, "user": int}, uid="keep").columns == ["subtask", "user"]
    with pytest.raises(PipelineError, match="keeps state per key, and this stream has no key"):
        numbers.process(KeyedFunction, returns={"user": int})  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match=r"takes a ps\.StreamFunction"):
        numbers.process(print, returns={"user": int})  # type: ignore[arg-type]
