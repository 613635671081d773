"""Barriers through one task: what is recorded, what goes out when, and what is told to whom."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.unit.runtime.task.harness import SCHEMA, Numbers, Pass, Seen, in_flight, pairs, rows
from tests.unit.runtime.task.lone import IN, OUT, Lone, barrier

from penstock.core.barrier import Barrier, Mode
from penstock.core.causes import Cause
from penstock.core.handles import PartKind
from penstock.core.ids import CheckpointId
from penstock.operators.base import Collector, Operator
from penstock.runtime import channel_state
from penstock.runtime.elements import Element, EndOfChannel, EndOfData, Watermark
from penstock.runtime.ports import CHANNELS, STATE
from penstock.runtime.task import RestoredSubtask
from penstock.state.parts import OperatorSnapshot

A, B = IN
ONE = CheckpointId(1)


def recorded(restored: RestoredSubtask, kind: PartKind) -> dict[object, list[object]]:
    def readable(element: Element) -> object:
        return pairs(element) if isinstance(element, pa.RecordBatch) else element

    return {
        part.channel: [readable(element) for element in channel_state.restore(part, SCHEMA)]
        for part in restored.channels
        if part.kind is kind
    }


# ---- aligned ----
def test_the_barrier_goes_out_between_what_was_before_and_what_comes_after_it() -> None:
    lone = Lone(Seen)
    lone.arrives(A, rows(0, [1]), barrier(1), rows(0, [2])).arrives(B, barrier(1), rows(1, [3]))
    lone.run()
    before, middle, *after = lone.sent()
    assert (before, middle) == ([(0, 1)], barrier(1))
    assert sorted(row for batch in after for row in batch) == [(0, 2), (1, 3)]  # type: ignore[attr-defined]


def test_a_held_channel_is_not_processed_until_the_last_barrier() -> None:
    lone = Lone(Seen)
    lone.arrives(A, barrier(1), rows(0, [2])).arrives(B, rows(1, [1]))
    lone.run()
    assert lone.operator.state == [[1, 1]]  # type: ignore[attr-defined]
    lone.arrives(B, barrier(1))
    lone.run()
    assert lone.operator.state == [[1, 1], [0, 2]]  # type: ignore[attr-defined]
    assert lone.acknowledged == [1]


def test_the_barrier_is_forwarded_before_the_state_is_captured() -> None:
    class Order(Pass):
        def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
            order.append([type(e) for e in lone.network.channels[OUT[0]]])
            return OperatorSnapshot()

    order: list[object] = []
    lone = Lone(Order)
    lone.arrives(A, barrier(1)).arrives(B, barrier(1))
    lone.run()
    assert order == [[Barrier]]


def test_a_blocked_task_still_takes_an_aligned_snapshot() -> None:
    lone = Lone(Seen, grant=0)
    lone.arrives(A, rows(0, [1]), barrier(1)).arrives(B, barrier(1))
    lone.run()
    assert lone.acknowledged == [1]
    assert lone.sent() == []
    lone.grant(OUT[0], 5)
    lone.run()
    assert lone.sent() == [[(0, 1)], barrier(1)]


def test_a_snapshot_is_acknowledged_only_when_it_is_written() -> None:
    lone = Lone(Seen)
    lone.arrives(A, barrier(1)).arrives(B, barrier(1))
    lone.step()
    assert lone.acknowledged == []
    lone.writer.finish_one()
    lone.step()
    assert lone.acknowledged == [1]


def test_a_task_without_state_has_nothing_to_write_and_acknowledges_at_once() -> None:
    lone = Lone(Pass)
    lone.arrives(A, barrier(1)).arrives(B, barrier(1))
    lone.step()
    assert lone.acknowledged == [1]


def test_the_figures_say_how_long_alignment_took() -> None:
    lone = Lone(Seen)
    lone.arrives(A, barrier(1))
    lone.step()
    lone.arrives(B, barrier(1))
    lone.step(0.25)
    lone.run()
    figures = lone.reports.acks[ONE].figures
    assert figures.alignment_ms == pytest.approx(250.0)
    assert figures.state_bytes > 0
    assert not figures.unaligned


# ---- unaligned ----
def test_an_unaligned_barrier_passes_input_and_output_queues_and_all_of_it_is_recorded() -> None:
    lone = Lone(Seen, grant=0)
    lone.grant(OUT[0], 1)
    lone.arrives(A, rows(0, [1, 2]))
    lone.step()
    lone.arrives(A, rows(0, [3]), Watermark(3)).arrives(B, rows(1, [4]))
    lone.arrives(B, barrier(1, Mode.UNALIGNED))
    lone.step()
    assert lone.sent(OUT[0]) == [[(0, 1)], barrier(1, Mode.UNALIGNED)]
    assert lone.sent(OUT[1]) == [barrier(1, Mode.UNALIGNED)]
    lone.arrives(A, rows(0, [5]), barrier(1, Mode.UNALIGNED), rows(0, [6]))
    lone.run()
    restored = lone.restored(1)
    assert recorded(restored, PartKind.INPUT_CHANNEL) == {
        A: [[(0, 3)], Watermark(3), [(0, 5)]],
        B: [[(1, 4)]],
    }
    assert recorded(restored, PartKind.OUTPUT_CHANNEL) == {OUT[0]: [[(0, 2)]], OUT[1]: [[(0, 1), (0, 2)]]}
    assert lone.reports.acks[ONE].figures.in_flight_rows == 6
    assert lone.reports.acks[ONE].figures.unaligned


def test_the_rest_of_a_sliced_batch_is_in_flight() -> None:
    lone = Lone(Seen)
    lone.arrives(A, rows(0, range(300))).arrives(B, barrier(1, Mode.UNALIGNED))
    lone.arrives(A, barrier(1, Mode.UNALIGNED))
    lone.run()
    early = recorded(lone.restored(1), PartKind.INPUT_CHANNEL)
    assert early == {A: [[(0, n) for n in range(300)]]}
    lone = Lone(Seen)
    lone.arrives(A, rows(0, range(300)))
    lone.step()
    lone.arrives(A, barrier(1, Mode.UNALIGNED)).arrives(B, barrier(1, Mode.UNALIGNED))
    lone.run()
    late = recorded(lone.restored(1), PartKind.INPUT_CHANNEL)
    assert late == {A: [[(0, n) for n in range(256, 300)]]}


def test_an_unaligned_snapshot_waits_for_the_barriers_of_all_channels() -> None:
    lone = Lone(Seen)
    lone.arrives(A, barrier(1, Mode.UNALIGNED))
    lone.run()
    assert lone.acknowledged == []
    lone.arrives(B, rows(1, [1]), barrier(1, Mode.UNALIGNED))
    lone.run()
    assert lone.acknowledged == [1]


def test_nothing_in_flight_means_nothing_written_for_channels() -> None:
    lone = Lone(Pass)
    lone.arrives(A, barrier(1, Mode.UNALIGNED)).arrives(B, barrier(1, Mode.UNALIGNED))
    lone.step()
    assert lone.acknowledged == [1]
    assert lone.reports.acks[ONE].handles == []


def test_the_end_of_a_channel_ends_its_recording_and_is_not_recorded() -> None:
    lone = Lone(Seen)
    lone.arrives(A, barrier(1, Mode.UNALIGNED))
    lone.step()
    lone.arrives(B, rows(1, [1]), EndOfData(), EndOfChannel())
    lone.run()
    assert recorded(lone.restored(1), PartKind.INPUT_CHANNEL) == {B: [[(1, 1)], EndOfData()]}


# ---- adaptive ----
def test_an_adaptive_barrier_that_waits_in_an_output_queue_overtakes_when_its_patience_ends() -> None:
    lone = Lone(Seen, grant=0)
    lone.grant(OUT[1], 100)
    adaptive = barrier(1, Mode.ADAPTIVE, 100.0)
    lone.arrives(A, rows(0, [1]), adaptive).arrives(B, adaptive)
    lone.run()
    assert lone.acknowledged == [], "the barrier may still overtake"
    assert lone.sent(OUT[0]) == []
    assert lone.step() == pytest.approx(lone.clock.now() + 0.1)
    lone.step(0.1)
    lone.run()
    assert lone.sent(OUT[0]) == [barrier(1, Mode.UNALIGNED)]
    assert recorded(lone.restored(1), PartKind.OUTPUT_CHANNEL) == {OUT[0]: [[(0, 1)]]}
    assert lone.reports.acks[ONE].figures.unaligned
    lone.grant(OUT[0], 100)
    lone.run()
    assert lone.sent(OUT[0]) == [[(0, 1)]]


def test_an_adaptive_barrier_that_leaves_in_time_carries_on_the_patience_that_is_left() -> None:
    lone = Lone(Seen, grant=0)
    lone.grant(OUT[1], 100)
    adaptive = barrier(1, Mode.ADAPTIVE, 100.0)
    lone.arrives(A, rows(0, [1]), adaptive).arrives(B, adaptive)
    lone.run()
    lone.grant(OUT[0], 100)
    lone.step(0.04)
    row, forwarded = lone.sent(OUT[0])
    assert row == [(0, 1)]
    assert isinstance(forwarded, Barrier) and forwarded.mode is Mode.ADAPTIVE
    assert forwarded.patience_ms == pytest.approx(60.0)
    lone.run()
    assert lone.acknowledged == [1]
    assert not lone.reports.acks[ONE].figures.unaligned


def test_an_adaptive_alignment_that_takes_too_long_overtakes_its_input() -> None:
    lone = Lone(Seen)
    adaptive = barrier(1, Mode.ADAPTIVE, 100.0)
    lone.arrives(A, adaptive, rows(0, [1]))
    lone.run()
    lone.step(0.1)
    lone.arrives(B, rows(1, [2]), adaptive)
    lone.run()
    assert recorded(lone.restored(1), PartKind.INPUT_CHANNEL) == {B: [[(1, 2)]]}
    assert sorted(lone.operator.state) == [[0, 1], [1, 2]]  # type: ignore[attr-defined]


def test_an_aborted_adaptive_barrier_is_taken_out_of_the_queues() -> None:
    lone = Lone(Seen, grant=0)
    adaptive = barrier(1, Mode.ADAPTIVE, 100.0)
    lone.arrives(A, rows(0, [1]), adaptive).arrives(B, adaptive)
    lone.run()
    lone.abort(1).grant(OUT[0], 10)
    lone.run()
    assert lone.sent(OUT[0]) == [[(0, 1)]]
    lone.step(1.0)
    assert lone.sent(OUT[1]) == []


# ---- at least once ----
def test_at_least_once_processes_rows_behind_a_barrier_but_not_the_end_of_their_data() -> None:
    lone = Lone(Seen)
    early = barrier(1, Mode.AT_LEAST_ONCE)
    lone.arrives(A, early, rows(0, [1]), EndOfData()).arrives(B, EndOfData())
    lone.run()
    assert lone.operator.state == [[0, 1]]  # type: ignore[attr-defined]
    assert lone.reports.events == []
    lone.arrives(B, early)
    lone.run()
    assert lone.reports.acks[ONE].drained is False
    assert lone.reports.events == ["drained"]


def test_at_least_once_does_not_store_event_time() -> None:
    lone = Lone(Seen)
    lone.arrives(A, Watermark(5), barrier(1, Mode.AT_LEAST_ONCE), Watermark(9))
    lone.arrives(B, Watermark(9), barrier(1, Mode.AT_LEAST_ONCE))
    lone.run()
    restored = Lone(Seen, restored=lone.restored(1))
    restored.run()
    assert restored.operator.watermarks == []  # type: ignore[attr-defined]


# ---- stop the world ----
@pytest.mark.parametrize("end", ["complete", "abort"])
def test_a_stopped_source_goes_on_when_the_checkpoint_has_ended(end: str) -> None:
    lone = Lone(lambda: Numbers(9, batch=3), source=True)
    lone.trigger(1, Mode.STOP_THE_WORLD)
    lone.run()
    assert lone.task.rows_in == 0
    assert lone.acknowledged == [1]
    getattr(lone, end)(1)
    lone.run()
    assert lone.task.rows_in == 9


# ---- notices and refusals ----
def test_operators_are_told_of_the_end_of_their_checkpoints() -> None:
    lone = Lone(Seen)
    for id in (1, 2):
        lone.arrives(A, barrier(id)).arrives(B, barrier(id))
        lone.run()
    lone.complete(1).abort(2).complete(3)
    lone.run()
    assert lone.operator.calls == ["complete 1", "abort 2"]  # type: ignore[attr-defined]
    assert lone.writer.dropped == [(2, CHANNELS), (2, STATE)]


def test_an_aborted_snapshot_is_never_acknowledged() -> None:
    lone = Lone(Seen)
    lone.arrives(A, barrier(1)).arrives(B, barrier(1))
    lone.step()
    lone.abort(1)
    lone.writer.finish_one()
    lone.run()
    assert lone.acknowledged == []
    assert lone.operator.calls == ["abort 1"]  # type: ignore[attr-defined]


def test_an_abort_stops_the_recording() -> None:
    lone = Lone(Seen)
    lone.arrives(A, barrier(1, Mode.UNALIGNED))
    lone.step()
    lone.abort(1).arrives(B, rows(1, [1]), barrier(1, Mode.UNALIGNED))
    lone.run()
    assert lone.acknowledged == []
    assert all(c.recording is None for c in lone.task._inputs.channels.values())


def test_a_snapshot_that_raises_is_declined_and_the_task_goes_on() -> None:
    class Stubborn(Seen):
        def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
            raise RuntimeError("not now")

    lone = Lone(Stubborn)
    lone.arrives(A, barrier(1), rows(0, [1])).arrives(B, barrier(1))
    lone.run()
    assert lone.declined == [(1, Cause.DECLINED)]
    assert "not now" in lone.reports.declines[0][2] and "Traceback" in lone.reports.declines[0][2]
    assert not lone.task.ended
    assert lone.sent() == [barrier(1), [(0, 1)]]
    lone.abort(1)
    lone.run()
    assert lone.operator.calls == ["abort 1"]  # type: ignore[attr-defined]


def test_an_overtaking_snapshot_that_raises_records_nothing() -> None:
    class Stubborn(Seen):
        def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
            raise RuntimeError("not now")

    lone = Lone(Stubborn)
    lone.arrives(A, barrier(1, Mode.UNALIGNED))
    lone.arrives(B, rows(1, [1]), barrier(1, Mode.UNALIGNED))
    lone.run()
    assert lone.declined == [(1, Cause.DECLINED)]
    assert all(c.recording is None for c in lone.task._inputs.channels.values())


def test_a_failed_write_is_declined() -> None:
    lone = Lone(Seen)
    lone.writer.fail = "No space left on device"
    lone.arrives(A, barrier(1)).arrives(B, barrier(1))
    lone.run()
    assert lone.reports.declines == [(1, Cause.WRITE_FAILED, "No space left on device")]
    assert lone.acknowledged == []


def test_a_superseded_checkpoint_is_declined() -> None:
    lone = Lone(Seen)
    lone.arrives(A, barrier(1)).arrives(B, barrier(2))
    lone.run()
    assert lone.declined == [(1, Cause.SUPERSEDED)]
    lone.arrives(A, barrier(2))
    lone.run()
    assert lone.acknowledged == [2]


# ---- restore ----
def test_recovered_input_is_processed_before_anything_new_and_recovered_output_is_sent_before() -> None:
    lone = Lone(Seen, grant=0)
    lone.arrives(A, rows(0, [1]))
    lone.run()
    lone.arrives(A, rows(0, [2]), barrier(1, Mode.UNALIGNED)).arrives(B, barrier(1, Mode.UNALIGNED))
    lone.run()
    again = Lone(Seen, restored=lone.restored(1))
    again.arrives(A, rows(0, [3]))
    again.run()
    assert [row for batch in again.sent() for row in batch] == [(0, 1), (0, 2), (0, 3)]  # type: ignore[attr-defined]
    assert again.operator.state == [[0, 1], [0, 2], [0, 3]]  # type: ignore[attr-defined]


def test_recovered_rows_use_up_the_channels_share_until_they_are_processed() -> None:
    lone = Lone(Seen)
    lone.arrives(A, rows(0, range(40)), barrier(1, Mode.UNALIGNED)).arrives(B, barrier(1, Mode.UNALIGNED))
    lone.run()
    again = Lone(Seen, restored=lone.restored(1), settings=in_flight(100), grant=0)
    again.task._outputs.preload(OUT[0], [rows(9, [9])])
    again.step()
    assert again.granted(A) == []
    assert again.granted(B) == [50]
    again.grant(OUT[0], 100).grant(OUT[1], 100)
    again.run()
    assert again.granted(A) == [50]


def test_more_recovered_rows_than_the_share_do_not_lock_up() -> None:
    lone = Lone(Seen)
    lone.arrives(A, rows(0, range(500)), barrier(1, Mode.UNALIGNED)).arrives(B, barrier(1, Mode.UNALIGNED))
    lone.run()
    again = Lone(Seen, restored=lone.restored(1), settings=in_flight(8))
    again.run()
    assert len(again.operator.state) == 500  # type: ignore[attr-defined]
    assert again.granted(A)[-1] == 4


def test_a_checkpoint_while_recovered_rows_are_replayed_stores_them_again() -> None:
    lone = Lone(Seen, grant=0)
    lone.arrives(A, rows(0, [1]))
    lone.run()
    lone.arrives(A, rows(0, [2]), barrier(1, Mode.UNALIGNED)).arrives(B, barrier(1, Mode.UNALIGNED))
    lone.run()
    again = Lone(Seen, restored=lone.restored(1), grant=0)
    again.arrives(A, rows(0, [3]), barrier(2, Mode.UNALIGNED)).arrives(B, barrier(2, Mode.UNALIGNED))
    again.run()
    twice = again.restored(2)
    assert recorded(twice, PartKind.INPUT_CHANNEL) == {A: [[(0, 2)], [(0, 3)]]}
    assert recorded(twice, PartKind.OUTPUT_CHANNEL) == {OUT[0]: [[(0, 1)]], OUT[1]: [[(0, 1)]]}


def test_event_time_does_not_go_back_after_a_restore() -> None:
    lone = Lone(Seen)
    lone.arrives(A, Watermark(10), barrier(1)).arrives(B, Watermark(7), barrier(1))
    lone.run()
    again = Lone(Seen, restored=lone.restored(1))
    again.run()
    assert again.operator.watermarks == [7]  # type: ignore[attr-defined]
    again.arrives(A, Watermark(3)).arrives(B, Watermark(9))
    again.run()
    assert again.operator.watermarks == [7, 9]  # type: ignore[attr-defined]


def test_operators_do_not_see_what_the_task_itself_remembers() -> None:
    class Parts(Operator):
        def open(self, context: object) -> None:
            self.parts = [part.name for part in context.restored]  # type: ignore[attr-defined]

        def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
            raise AssertionError

    lone = Lone(Seen)
    lone.arrives(A, Watermark(10), barrier(1)).arrives(B, Watermark(7), barrier(1))
    lone.run()
    again = Lone(Parts, restored=lone.restored(1))
    assert again.operator.parts == ["state"]  # type: ignore[attr-defined]
