"""How a task begins, keeps time and ends: watermarks, timers, end of input, failures."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from tests.unit.runtime.task.harness import Numbers, Pass, Seen, rows
from tests.unit.runtime.task.lone import IN, OUT, Lone, barrier

from penstock.core.barrier import Barrier, Mode, Purpose
from penstock.core.causes import Cause
from penstock.core.ids import CheckpointId, Uid
from penstock.operators.base import Collector, Operator, OperatorContext, OperatorError, Polled, SourceOperator
from penstock.runtime.elements import MAX_WATERMARK, EndOfChannel, EndOfData, Idle, Watermark
from penstock.runtime.ports import Cancel, StopSources
from penstock.runtime.task import RestoredSubtask
from penstock.state.parts import OperatorSnapshot

A, B = IN


def end_of_input(lone: Lone) -> Lone:
    return lone.arrives(A, EndOfData()).arrives(B, EndOfData())


def end_of_channels(lone: Lone) -> Lone:
    return lone.arrives(A, EndOfChannel()).arrives(B, EndOfChannel())


# ---- event time ----
def test_a_watermark_reaches_every_operator_and_then_the_outputs() -> None:
    lone = Lone(Seen, Pass, Seen)
    lone.arrives(A, Watermark(5)).arrives(B, Watermark(7))
    lone.run()
    assert [lone.job.operator("middle", place=p).watermarks for p in (0, 2)] == [[5], [5]]  # type: ignore[attr-defined]
    assert lone.sent() == [Watermark(5)]


class OwnTime(Operator):
    """Its watermark is the largest n so far, minus one."""

    passes_watermarks = False

    def __init__(self) -> None:
        self.time: int | None = None

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        out.emit(batch)
        self.time = max(self.time or 0, *batch["n"].to_pylist()) - 1

    def emitted_watermark(self) -> int | None:
        return self.time


def test_an_operator_with_its_own_time_replaces_its_inputs_watermarks() -> None:
    lone = Lone(Seen, OwnTime, Seen)
    lone.arrives(A, Watermark(500), rows(0, [3, 8])).arrives(B, Watermark(500))
    lone.run()
    first, last = (lone.job.operator("middle", place=p) for p in (0, 2))
    assert first.watermarks == [500]  # type: ignore[attr-defined]
    assert last.watermarks == [7]  # type: ignore[attr-defined]
    assert lone.sent() == [[(0, 3), (0, 8)], Watermark(7)]


def test_the_last_watermark_passes_an_operator_with_its_own_time_once() -> None:
    lone = Lone(Seen, OwnTime, Seen)
    lone.arrives(A, Watermark(MAX_WATERMARK), EndOfData()).arrives(B, Watermark(MAX_WATERMARK), EndOfData())
    lone.run()
    assert [lone.job.operator("middle", place=p).watermarks for p in (0, 2)] == [[MAX_WATERMARK]] * 2  # type: ignore[attr-defined]
    assert lone.sent() == [Watermark(MAX_WATERMARK), EndOfData()]


def test_a_task_is_idle_while_all_its_channels_are() -> None:
    lone = Lone(Pass)
    lone.arrives(A, Idle()).arrives(B, Idle())
    lone.run()
    assert lone.sent() == [Idle(active=False)]
    lone.arrives(A, Idle(active=True), Watermark(3))
    lone.run()
    assert lone.sent() == [Idle(active=True), Watermark(3)]


# ---- processing time ----
class Alarm(Pass):
    def __init__(self) -> None:
        self.due: int | None = None

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        self.due = 101_000

    def next_timer(self) -> int | None:
        return self.due

    def on_timer(self, now_ms: int, out: Collector) -> None:
        self.due = None
        out.emit(rows(7, [now_ms]))


def test_a_timer_fires_when_its_time_has_come() -> None:
    lone = Lone(Alarm)
    lone.arrives(A, rows(0, [1]))
    assert lone.run().step() == pytest.approx(101.0)
    assert lone.sent() == []
    lone.step(1.0)
    assert lone.sent() == [[(7, 101_000)]]


def test_a_blocked_task_fires_no_timers() -> None:
    lone = Lone(Alarm, grant=0)
    lone.arrives(A, rows(0, [1]))
    lone.run()
    lone.task._outputs.emit(rows(0, [0]))
    assert lone.step(1.0) is None
    lone.grant(OUT[0], 10).grant(OUT[1], 10)
    lone.run()
    assert lone.sent() == [[(0, 0)], [(7, 101_000)]]


# ---- sources ----
def test_a_source_is_polled_again_after_the_time_it_asked_for() -> None:
    class Slow(SourceOperator):
        def poll(self, max_rows: int) -> Polled:
            return Polled(idle_for=2.0)

    lone = Lone(Slow, source=True)
    assert lone.step() == pytest.approx(lone.clock.now() + 2.0)


def test_an_idle_source_says_so_once_and_says_when_it_is_back() -> None:
    answers = [Polled(idle=True), Polled(idle=True), Polled(rows(0, [1]), watermark=4), Polled(idle_for=9.0)]

    class Scripted(SourceOperator):
        def poll(self, max_rows: int) -> Polled:
            return answers.pop(0)

    lone = Lone(Scripted, source=True)
    for _ in range(4):
        lone.step(0.01)
    assert lone.sent(lone.out[0]) == [Idle(active=False), Idle(active=True), [(0, 1)], Watermark(4)]


def test_a_source_that_is_told_to_stop_behaves_as_if_its_input_had_ended() -> None:
    lone = Lone(lambda: Numbers(1000, batch=3, watermarks=False), Seen, source=True)
    lone.step()
    lone.put(StopSources())
    lone.run()
    assert lone.task.rows_in == 3
    assert lone.sent(lone.out[0])[-2:] == [Watermark(MAX_WATERMARK), EndOfData()]
    assert lone.reports.events == ["drained"]


def test_a_blocked_source_is_not_polled() -> None:
    lone = Lone(lambda: Numbers(100, batch=3), source=True, grant=0)
    lone.run()
    assert lone.task.rows_in == 3
    assert lone.step(10.0) is None


# ---- end of input ----
def test_a_task_finishes_its_operators_when_all_input_has_ended() -> None:
    class Last(Seen):
        def finish(self, out: Collector) -> None:
            super().finish(out)
            out.emit(rows(5, [5]))

    lone = Lone(Last, Seen)
    lone.arrives(A, EndOfData())
    lone.run()
    assert lone.reports.events == []
    lone.arrives(B, rows(1, [1]), EndOfData())
    lone.run()
    assert lone.sent() == [[(1, 1)], Watermark(MAX_WATERMARK), [(5, 5)], EndOfData()]
    assert lone.reports.events == ["drained"]
    assert lone.job.operator("middle", place=1).state == [[1, 1], [5, 5]]  # type: ignore[attr-defined]


def test_a_drained_task_ends_when_a_checkpoint_has_covered_it_and_its_inputs_have_ended() -> None:
    lone = end_of_input(Lone(Seen))
    lone.run()
    lone.arrives(A, barrier(1)).arrives(B, barrier(1))
    lone.run()
    assert lone.reports.acks[CheckpointId(1)].drained
    lone.complete(1)
    lone.run()
    assert not lone.task.ended
    lone.sent()
    end_of_channels(lone).run()
    assert lone.sent() == [EndOfChannel()]
    assert lone.reports.events == ["drained", "finished"]
    assert lone.operator.calls[-1] == "close"  # type: ignore[attr-defined]


def test_a_checkpoint_from_before_the_end_does_not_end_the_task() -> None:
    lone = Lone(Seen)
    lone.arrives(A, barrier(1)).arrives(B, barrier(1))
    lone.run()
    end_of_input(lone).complete(1).run()
    end_of_channels(lone).run()
    assert not lone.task.ended
    lone.trigger(2).run()
    lone.complete(2).run()
    assert lone.reports.events == ["drained", "finished"]


def test_a_task_that_still_has_rows_to_send_takes_part_in_checkpoints_and_does_not_end() -> None:
    class Last(Seen):
        def finish(self, out: Collector) -> None:
            out.emit(rows(5, [5]))

    lone = end_of_input(Lone(Last, grant=0))
    lone.run()
    for id in (1, 2):
        lone.arrives(A, barrier(id)).arrives(B, barrier(id))
        lone.run()
        lone.complete(id).run()
    end_of_channels(lone).run()
    assert lone.acknowledged == [1, 2]
    assert lone.reports.events == ["drained"]
    lone.grant(OUT[0], 10).grant(OUT[1], 10)
    lone.run()
    assert lone.sent()[-4:] == [EndOfData(), barrier(1), barrier(2), EndOfChannel()]
    assert lone.reports.events == ["drained", "finished"]


def test_without_checkpoints_a_task_ends_with_its_input_and_hands_over_its_output() -> None:
    class Prepared(Seen):
        def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
            assert barrier.purpose is Purpose.FINAL
            return OperatorSnapshot(committables=[b"all of it"])

    lone = Lone(Prepared, checkpointing=False)
    end_of_channels(end_of_input(lone)).run()
    assert lone.reports.events == ["drained", "finished"]
    assert lone.reports.committables == {Uid("middle"): [b"all of it"]}
    assert lone.sent()[-2:] == [EndOfData(), EndOfChannel()]


def test_a_task_restored_as_drained_does_not_finish_twice() -> None:
    lone = end_of_input(Lone(Seen))
    lone.run()
    lone.arrives(A, barrier(1)).arrives(B, barrier(1))
    lone.run()
    again = Lone(Seen, restored=lone.restored(1))
    end_of_input(again).run()
    assert again.operator.calls == []  # type: ignore[attr-defined]
    assert again.reports.events == ["drained"]
    assert again.sent()[-1] == EndOfData()
    again.trigger(2)
    end_of_channels(again).run()
    again.complete(2).run()
    assert again.reports.events == ["drained", "finished"]


def test_a_source_restored_as_drained_is_not_polled() -> None:
    lone = Lone(lambda: Numbers(3), source=True)
    lone.run()
    lone.trigger(1)
    lone.run()
    again = Lone(lambda: Numbers(99), source=True, restored=lone.restored(1))
    again.run()
    assert again.task.rows_in == 0
    assert again.reports.events == ["drained"]


def test_a_task_restored_as_finished_only_ends_its_channels() -> None:
    def never() -> Operator:
        raise AssertionError("a finished task makes no operators")

    lone = Lone(never, restored=RestoredSubtask(CheckpointId(1), finished=True))
    assert lone.step() is None
    assert lone.sent() == [EndOfData(), EndOfChannel()]
    assert lone.reports.events == ["finished"]
    assert lone.task.ended


def test_a_trigger_for_a_finished_task_is_declined() -> None:
    lone = Lone(Pass, restored=RestoredSubtask(CheckpointId(1), finished=True))
    lone.step()
    lone.trigger(2).step()
    assert lone.declined == [(2, Cause.SUBTASK_FINISHED)]


# ---- failures ----
class Failing(Pass):
    def __init__(self, where: str) -> None:
        self.where = where
        self.closed = 0

    def _maybe(self, where: str) -> None:
        if self.where == where:
            raise ValueError(f"broken in {where}")

    def open(self, context: OperatorContext) -> None:
        self._maybe("open")

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        self._maybe("process")
        out.emit(batch)

    def on_watermark(self, time: int, out: Collector) -> None:
        self._maybe("on_watermark")

    def finish(self, out: Collector) -> None:
        self._maybe("finish")

    def on_complete(self, checkpoint: CheckpointId) -> None:
        self._maybe("on_complete")

    def close(self) -> None:
        self.closed += 1
        self._maybe("close")


@pytest.mark.parametrize("where", ["open", "process", "on_watermark", "finish", "on_complete"])
def test_whatever_an_operator_raises_names_operator_and_subtask_and_ends_the_task(where: str) -> None:
    lone = Lone(Pass, lambda: Failing(where))
    lone.arrives(A, rows(0, [1]), Watermark(1), barrier(1)).arrives(B, Watermark(1), barrier(1))
    lone.run()
    lone.complete(1)
    lone.run()
    end_of_input(lone).run()
    error = lone.reports.error
    assert isinstance(error, OperatorError)
    assert (error.uid, error.name, error.subtask) == ("middle-1", "operator middle-1", 0)
    assert f"broken in {where}" in str(error) and "'middle-1'" in str(error)
    assert "ValueError" in error.traceback and "_maybe" in error.traceback
    assert lone.reports.events[-1] == "failed"
    assert lone.task.ended
    assert lone.job.operator("middle", place=1).closed == 1  # type: ignore[attr-defined]


def test_an_error_shows_the_first_row_of_the_batch_with_long_values_cut() -> None:
    class Wide(Operator):
        def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
            out.emit(pa.record_batch({"n": [1, 2], "text": ["x" * 5000, "y"]}))

    lone = Lone(Wide, lambda: Failing("process"))
    lone.arrives(A, rows(0, [1]))
    lone.run()
    assert isinstance(lone.reports.error, OperatorError)
    sample = lone.reports.error.sample_row
    assert sample is not None
    assert sample["n"] == 1
    assert str(sample["text"]).startswith("xxx") and len(str(sample["text"])) < 300


def test_an_operator_that_cannot_be_made_is_reported() -> None:
    def broken() -> Operator:
        raise ImportError("no such module")

    lone = Lone(Seen, broken)
    assert lone.task.ended
    assert lone.reports.events == ["failed"]
    assert "no such module" in str(lone.reports.error)
    assert lone.step() is None


def test_closing_goes_on_when_one_operator_raises() -> None:
    lone = Lone(lambda: Failing("close"), Seen)
    lone.run()
    lone.put(Cancel())
    lone.step()
    assert lone.job.operator("middle", place=1).calls == ["close"]  # type: ignore[attr-defined]


def test_a_cancelled_task_closes_its_operators_and_reports_nothing_else() -> None:
    lone = Lone(Seen)
    lone.run()
    lone.put(Cancel()).arrives(A, rows(0, [1]))
    assert lone.step() is None
    assert lone.reports.events == ["cancelled"]
    assert lone.operator.calls == ["close"]  # type: ignore[attr-defined]
    assert lone.operator.state == []  # type: ignore[attr-defined]


def test_a_note_wakes_whoever_drives_the_task() -> None:
    woken: list[bool] = []
    lone = Lone(Pass)
    notify: Callable[[], None] = lambda: woken.append(True)  # noqa: E731
    lone.task._notify = notify
    lone.arrives(A, rows(0, [1]))
    assert woken == [True]


@pytest.mark.parametrize("mode", [Mode.ALIGNED, Mode.UNALIGNED])
def test_a_restored_source_goes_on_where_its_snapshot_was_taken(mode: Mode) -> None:
    lone = Lone(lambda: Numbers(9, batch=3), source=True)
    lone.step()
    lone.trigger(1, mode)
    lone.run()
    again = Lone(lambda: Numbers(9, batch=3), source=True, restored=lone.restored(1))
    again.run()
    assert again.task.rows_in == 6
