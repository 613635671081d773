from __future__ import annotations

import traceback
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.connectors.support import barrier, context

from penstock.connectors.base import SinkWriter
from penstock.connectors.collect import Collect
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.operators.base import Emitted
from penstock.operators.sink import SinkOperator

OUT = Emitted()


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": [number]})


def opened(sink: Collect, attempt: int = 1) -> SinkOperator:
    operator = SinkOperator(sink.writer())
    operator.open(context(1, 2, attempt=attempt, uid="out"))
    return operator


def test_a_committable_is_named_until_a_checkpoint_is_known_to_be_complete() -> None:
    operator = opened(Collect())
    operator.process(batch(1), 0, OUT)
    first = operator.snapshot(barrier(1)).committables
    assert len(first) == 1
    operator.on_abort(CheckpointId(1))
    operator.process(batch(2), 0, OUT)
    second = operator.snapshot(barrier(2)).committables
    assert second[:1] == first and len(second) == 2
    third = operator.snapshot(barrier(3)).committables
    assert third == second
    operator.on_complete(CheckpointId(2))
    assert operator.snapshot(barrier(4)).committables == ()


def test_a_late_completion_of_an_earlier_checkpoint_keeps_what_came_after_it() -> None:
    operator = opened(Collect())
    operator.process(batch(1), 0, OUT)
    operator.snapshot(barrier(1))
    operator.process(batch(2), 0, OUT)
    both = operator.snapshot(barrier(2)).committables
    operator.on_complete(CheckpointId(1))
    assert operator.snapshot(barrier(3)).committables == both[1:]


@given(st.lists(st.sampled_from(["write", "snapshot", "complete", "abort", "crash"]), max_size=40))
def test_whatever_completes_or_aborts_the_committed_rows_are_those_before_the_newest_complete_barrier(
    actions: list[str],
) -> None:
    sink = Collect()
    sink.check(batch(0).schema)
    committer = sink.committer(Uid("out"), "job")
    committer.recover(None, (), Generation(1), Attempt(1))
    attempt, operator = 1, opened(sink)
    next_number = next_checkpoint = covered = 0
    restored: tuple[CheckpointId | None, Sequence[bytes]] = (None, ())
    under_way: dict[CheckpointId, tuple[int, Sequence[bytes]]] = {}
    for action in actions:
        if action == "write":
            operator.process(batch(next_number), 0, OUT)
            next_number += 1
        elif action == "snapshot":
            next_checkpoint += 1
            committables = operator.snapshot(barrier(next_checkpoint)).committables
            under_way[CheckpointId(next_checkpoint)] = next_number, committables
        elif action == "complete" and under_way:
            checkpoint = max(under_way)
            covered, committables = under_way[checkpoint]
            under_way.clear()
            operator.on_complete(checkpoint)
            committer.commit(checkpoint, committables)
            restored = checkpoint, committables
        elif action == "abort" and under_way:
            checkpoint = min(under_way)
            del under_way[checkpoint]
            operator.on_abort(checkpoint)
        elif action == "crash":
            operator.close()
            attempt, next_number = attempt + 1, covered
            under_way.clear()
            committer.recover(*restored, Generation(1), Attempt(attempt))
            operator = opened(sink, attempt)
        assert sink.result()["n"].to_pylist() == list(range(covered))


class _Broken(SinkWriter):
    def write(self, batch: pa.RecordBatch) -> None:
        raise OSError("no space left")

    def prepare(self, checkpoint: CheckpointId) -> Sequence[bytes]:
        raise OSError("no space left")


def test_an_error_of_the_writer_says_what_was_done_and_where() -> None:
    operator = SinkOperator(_Broken())
    operator.open(context(1, 2, uid="out"))
    with pytest.raises(OSError, match="no space") as raised:
        operator.process(batch(1), 0, OUT)
    assert "while writing, in sink 'out', subtask 1 of 2" in "".join(traceback.format_exception(raised.value))
    with pytest.raises(OSError, match="no space") as raised:
        operator.snapshot(barrier(5))
    assert "while preparing checkpoint 5" in "".join(traceback.format_exception(raised.value))
