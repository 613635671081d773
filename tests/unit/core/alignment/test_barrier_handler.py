from __future__ import annotations

import pytest

from penstock.core.alignment import (
    Aborted,
    Announced,
    BarrierHandler,
    Completed,
    Ended,
    Ending,
    Event,
    Hold,
    Instruction,
    PatienceOver,
    PauseSource,
    Reached,
    Recorded,
    RecordingComplete,
    Release,
    ResumeSource,
    Snapshot,
    Superseded,
    Triggered,
)
from penstock.core.barrier import Barrier, Mode
from penstock.core.ids import ChannelId, CheckpointId, EdgeId

A, B, C = (ChannelId(EdgeId(0), source, 0) for source in range(3))
INPUTLESS: tuple[ChannelId, ...] = ()


def barrier(id: int, mode: Mode, patience_ms: float = 0.0) -> Barrier:
    return Barrier(CheckpointId(id), mode, patience_ms=patience_ms)


class Subtask:
    """A handler with a clock; every event is validated after."""

    def __init__(self, *channels: ChannelId, mode: Mode = Mode.ALIGNED) -> None:
        self.handler = BarrierHandler(channels)
        self.mode = mode
        self.now = 10.0

    def tell(self, event: Event) -> list[Instruction]:
        answer = self.handler.handle(event, self.now)
        self.handler.validate()
        return answer

    def announced(
        self, channel: ChannelId, id: int, mode: Mode | None = None, patience_ms: float = 100.0
    ) -> list[Instruction]:
        mode = mode or self.mode
        return self.tell(Announced(channel, barrier(id, mode, patience_ms if mode is Mode.ADAPTIVE else 0.0)))

    def reached(self, channel: ChannelId, id: int) -> list[Instruction]:
        return self.tell(Reached(channel, barrier(id, self.mode)))

    def passes(self, channel: ChannelId, id: int) -> list[Instruction]:
        """Announced and at once reached: the queue was empty."""
        return self.announced(channel, id) + self.reached(channel, id)

    def triggered(self, id: int, patience_ms: float = 100.0) -> list[Instruction]:
        return self.tell(Triggered(barrier(id, self.mode, patience_ms if self.mode is Mode.ADAPTIVE else 0.0)))

    def aborted(self, id: int) -> list[Instruction]:
        return self.tell(Aborted(CheckpointId(id)))

    def completed(self, id: int) -> list[Instruction]:
        return self.tell(Completed(CheckpointId(id)))

    def ends(self, channel: ChannelId) -> list[Instruction]:
        return self.tell(Ending(channel)) + self.tell(Ended(channel))


def snapshots(answer: list[Instruction]) -> list[tuple[int, bool]]:
    return [(i.barrier.checkpoint, i.overtaking) for i in answer if isinstance(i, Snapshot)]


def snapshot_of(answer: list[Instruction]) -> Snapshot:
    (snapshot,) = [i for i in answer if isinstance(i, Snapshot)]
    return snapshot


# ---- aligned ----
def test_an_aligned_channel_is_held_from_its_barrier_to_the_last_one() -> None:
    task = Subtask(A, B, C)
    assert task.passes(A, 1) == [Hold(A)]
    assert task.passes(C, 1) == [Hold(C)]
    answer = task.passes(B, 1)
    assert snapshots(answer) == [(1, False)]
    assert answer[-1] == Release((A, C, B))


def test_the_snapshot_comes_before_the_release() -> None:
    task = Subtask(A, B)
    task.passes(A, 1)
    kinds = [type(i) for i in task.passes(B, 1)]
    assert kinds == [Snapshot, Release]


def test_an_announced_aligned_barrier_does_nothing_until_it_is_reached() -> None:
    task = Subtask(A, B)
    assert task.announced(A, 1) == []
    assert task.announced(B, 1) == []
    assert task.handler.wake_at is None


def test_one_input_needs_no_alignment() -> None:
    task = Subtask(A)
    assert snapshots(task.passes(A, 1)) == [(1, False)]


def test_a_channel_that_ended_counts_as_having_delivered_every_barrier() -> None:
    task = Subtask(A, B)
    task.ends(B)
    assert snapshots(task.passes(A, 1)) == [(1, False)]
    assert snapshots(task.passes(A, 2)) == [(2, False)]


def test_a_channel_that_ends_during_alignment_completes_it() -> None:
    task = Subtask(A, B)
    task.passes(A, 1)
    assert task.tell(Ending(B)) == []
    assert snapshots(task.tell(Ended(B))) == [(1, False)]


def test_a_newer_barrier_supersedes_an_older_pending_one_and_holds_are_taken_anew() -> None:
    task = Subtask(A, B)
    task.passes(A, 1)
    assert task.passes(B, 2) == [Release((A,)), Superseded(CheckpointId(1)), Hold(B)]
    answer = task.passes(A, 2)
    assert snapshots(answer) == [(2, False)]


def test_a_newer_barrier_that_is_only_announced_waits_behind_the_older_one() -> None:
    task = Subtask(A, B)
    task.passes(A, 1)
    assert task.announced(A, 2) == []
    assert snapshots(task.passes(B, 1)) == [(1, False)]
    assert task.reached(A, 2) == [Hold(A)]
    assert snapshots(task.passes(B, 2)) == [(2, False)]


def test_a_late_barrier_of_a_superseded_checkpoint_is_ignored() -> None:
    task = Subtask(A, B)
    task.passes(A, 1)
    task.passes(B, 2)
    assert task.passes(B, 1) == []
    assert snapshots(task.passes(A, 2)) == [(2, False)]
    assert task.passes(B, 1) == []


def test_a_late_barrier_that_nobody_has_heard_of_is_declined_once() -> None:
    task = Subtask(A, B)
    task.passes(A, 2)
    task.passes(B, 2)
    assert task.passes(A, 1) == [Superseded(CheckpointId(1))]
    assert task.passes(B, 1) == []


def test_a_barrier_older_than_the_one_that_channels_are_held_for_is_declined_and_holds_nothing() -> None:
    task = Subtask(A, B)
    task.passes(A, 2)
    assert task.passes(B, 1) == [Superseded(CheckpointId(1))]
    assert snapshots(task.passes(B, 2)) == [(2, False)]


def test_an_abort_notice_releases_what_was_held() -> None:
    task = Subtask(A, B)
    task.passes(A, 1)
    assert task.aborted(1) == [Release((A,))]


def test_a_late_barrier_of_an_aborted_checkpoint_never_disturbs_a_newer_one() -> None:
    task = Subtask(A, B)
    task.passes(A, 1)
    task.aborted(1)
    assert task.passes(A, 2) == [Hold(A)]
    assert task.passes(B, 1) == []
    assert snapshots(task.passes(B, 2)) == [(2, False)]


def test_an_abort_notice_that_comes_before_any_barrier_is_remembered() -> None:
    task = Subtask(A, B)
    assert task.aborted(1) == []
    assert task.passes(A, 1) == []
    assert task.passes(B, 1) == []
    assert task.passes(A, 2) == [Hold(A)]


def test_an_abort_of_one_checkpoint_leaves_an_older_one_that_is_open() -> None:
    task = Subtask(A, B)
    task.passes(A, 1)
    assert task.aborted(2) == []
    assert snapshots(task.passes(B, 1)) == [(1, False)]


# ---- the coordinator's trigger ----
@pytest.mark.parametrize("mode", list(Mode))
def test_a_source_takes_its_snapshot_when_triggered(mode: Mode) -> None:
    source = Subtask(mode=mode)
    assert snapshots(source.triggered(1)) == [(1, mode is Mode.UNALIGNED)]


@pytest.mark.parametrize("mode", list(Mode))
def test_a_second_trigger_of_the_same_checkpoint_is_ignored(mode: Mode) -> None:
    source = Subtask(mode=mode)
    source.triggered(1)
    assert source.triggered(1) == []


@pytest.mark.parametrize("mode", list(Mode))
def test_a_trigger_of_an_aborted_checkpoint_is_ignored(mode: Mode) -> None:
    source = Subtask(mode=mode)
    source.aborted(1)
    assert source.triggered(1) == []


@pytest.mark.parametrize("mode", [Mode.ALIGNED, Mode.AT_LEAST_ONCE, Mode.STOP_THE_WORLD, Mode.ADAPTIVE])
def test_a_trigger_that_overtakes_the_ends_of_channels_waits_for_them(mode: Mode) -> None:
    task = Subtask(A, B, mode=mode)
    task.ends(A)
    assert task.triggered(1) == []
    assert snapshots(task.ends(B)) == [(1, False)]


def test_when_all_inputs_have_ended_the_trigger_comes_from_the_coordinator() -> None:
    task = Subtask(A, B)
    task.ends(A)
    task.ends(B)
    assert snapshots(task.triggered(1)) == [(1, False)]


def test_an_unaligned_trigger_records_what_comes_until_the_channels_end() -> None:
    task = Subtask(A, B, mode=Mode.UNALIGNED)
    task.tell(Ending(A))
    snapshot = snapshot_of(task.triggered(1))
    assert snapshot.recording == (B,)
    assert task.tell(Ending(B)) == [Recorded(CheckpointId(1), B), RecordingComplete(CheckpointId(1))]


# ---- at least once ----
def test_at_least_once_holds_nobody_and_waits_for_all_barriers() -> None:
    task = Subtask(A, B, mode=Mode.AT_LEAST_ONCE)
    assert task.passes(A, 1) == []
    assert snapshots(task.passes(B, 1)) == [(1, False)]


def test_at_least_once_tracks_several_checkpoints_at_once() -> None:
    task = Subtask(A, B, mode=Mode.AT_LEAST_ONCE)
    task.passes(A, 1)
    assert task.passes(A, 2) == []
    assert snapshots(task.passes(B, 1)) == [(1, False)]
    assert snapshots(task.passes(B, 2)) == [(2, False)]


def test_at_least_once_declines_an_older_checkpoint_that_a_newer_one_completed_before() -> None:
    task = Subtask(A, B, mode=Mode.AT_LEAST_ONCE)
    task.passes(A, 1)
    task.passes(A, 2)
    answer = task.passes(B, 2)
    assert Superseded(CheckpointId(1)) in answer
    assert snapshots(answer) == [(2, False)]


def test_the_end_of_data_waits_behind_a_barrier_that_others_have_not_delivered() -> None:
    task = Subtask(A, B, mode=Mode.AT_LEAST_ONCE)
    task.passes(A, 1)
    assert task.handler.must_wait(A)
    assert not task.handler.must_wait(B)
    assert Release((A, B)) in task.passes(B, 1)
    assert not task.handler.must_wait(A)


# ---- unaligned ----
def test_an_unaligned_barrier_acts_when_it_is_announced() -> None:
    task = Subtask(A, B, C, mode=Mode.UNALIGNED)
    snapshot = snapshot_of(task.announced(B, 1))
    assert snapshot.overtaking
    assert snapshot.recording == (A, C)
    assert snapshot.barrier.mode is Mode.UNALIGNED


def test_the_recording_of_a_channel_ends_when_its_barrier_is_announced() -> None:
    task = Subtask(A, B, C, mode=Mode.UNALIGNED)
    task.announced(B, 1)
    assert task.announced(C, 1) == [Recorded(CheckpointId(1), C)]
    assert task.announced(A, 1) == [Recorded(CheckpointId(1), A), RecordingComplete(CheckpointId(1))]


def test_nothing_is_recorded_of_a_channel_whose_end_has_come_in() -> None:
    task = Subtask(A, B, mode=Mode.UNALIGNED)
    task.tell(Ending(A))
    answer = task.announced(B, 1)
    assert snapshot_of(answer).recording == ()
    assert answer[-1] == RecordingComplete(CheckpointId(1))


def test_a_newer_unaligned_barrier_supersedes_a_recording() -> None:
    task = Subtask(A, B, mode=Mode.UNALIGNED)
    task.announced(A, 1)
    answer = task.announced(A, 2)
    assert answer[0] == Superseded(CheckpointId(1))
    assert snapshots(answer) == [(2, True)]
    assert task.announced(B, 1) == []
    assert task.announced(B, 2)[-1] == RecordingComplete(CheckpointId(2))


def test_an_aborted_recording_is_not_completed() -> None:
    task = Subtask(A, B, mode=Mode.UNALIGNED)
    task.announced(A, 1)
    assert task.aborted(1) == []
    assert task.announced(B, 1) == []


def test_an_unaligned_barrier_supersedes_an_alignment() -> None:
    task = Subtask(A, B)
    task.passes(A, 1)
    answer = task.announced(B, 2, Mode.UNALIGNED)
    assert answer[:2] == [Release((A,)), Superseded(CheckpointId(1))]
    assert snapshots(answer) == [(2, True)]


# ---- adaptive ----
def test_an_adaptive_checkpoint_that_aligns_in_time_stays_aligned_and_passes_on_what_is_left() -> None:
    task = Subtask(A, B, mode=Mode.ADAPTIVE)
    assert task.passes(A, 1) == [Hold(A)]
    assert task.handler.wake_at == pytest.approx(10.1)
    task.now = 10.04
    snapshot = snapshot_of(task.passes(B, 1))
    assert not snapshot.overtaking
    assert snapshot.barrier.mode is Mode.ADAPTIVE
    assert snapshot.barrier.patience_ms == pytest.approx(60.0)
    assert snapshot.deadline == pytest.approx(10.1)
    assert task.handler.wake_at is None


def test_an_adaptive_checkpoint_overtakes_when_its_patience_ends() -> None:
    task = Subtask(A, B, C, mode=Mode.ADAPTIVE)
    task.passes(A, 1)
    task.announced(B, 1)
    task.now = 10.1
    answer = task.tell(PatienceOver())
    snapshot = snapshot_of(answer)
    assert snapshot.overtaking and snapshot.barrier.mode is Mode.UNALIGNED
    assert snapshot.behind == (A,)
    assert snapshot.recording == (C,)
    assert Release((A,)) in answer
    assert task.announced(C, 1)[-1] == RecordingComplete(CheckpointId(1))


def test_patience_that_is_not_over_changes_nothing() -> None:
    task = Subtask(A, B, mode=Mode.ADAPTIVE)
    task.passes(A, 1)
    task.now = 10.05
    assert task.tell(PatienceOver()) == []


def test_an_overtaking_barrier_of_the_same_checkpoint_makes_an_adaptive_one_overtake() -> None:
    task = Subtask(A, B, mode=Mode.ADAPTIVE)
    task.passes(A, 1)
    answer = task.announced(B, 1, Mode.UNALIGNED)
    assert snapshots(answer) == [(1, True)]
    assert answer[-1] == RecordingComplete(CheckpointId(1))


def test_an_adaptive_barrier_ends_the_recording_that_an_overtaking_one_began() -> None:
    task = Subtask(A, B, mode=Mode.ADAPTIVE)
    task.announced(A, 1, Mode.UNALIGNED)
    assert task.announced(B, 1) == [Recorded(CheckpointId(1), B), RecordingComplete(CheckpointId(1))]
    assert task.reached(B, 1) == []


def test_the_shortest_patience_of_all_channels_counts() -> None:
    task = Subtask(A, B, mode=Mode.ADAPTIVE)
    task.announced(A, 1, patience_ms=100.0)
    task.announced(B, 1, patience_ms=20.0)
    assert task.handler.wake_at == pytest.approx(10.02)


def test_a_barrier_without_patience_overtakes_at_once() -> None:
    task = Subtask(A, B, mode=Mode.ADAPTIVE)
    assert snapshots(task.announced(A, 1, patience_ms=0.0)) == [(1, True)]


def test_barriers_that_lie_in_the_queues_after_an_overtaking_snapshot_do_nothing() -> None:
    task = Subtask(A, B, mode=Mode.ADAPTIVE)
    task.announced(A, 1)
    task.announced(B, 1)
    task.now = 11.0
    task.tell(PatienceOver())
    assert task.reached(A, 1) == []
    assert task.reached(B, 1) == []


# ---- stop the world ----
def test_stop_the_world_pauses_the_source_until_the_checkpoint_is_complete() -> None:
    source = Subtask(mode=Mode.STOP_THE_WORLD)
    assert source.triggered(1)[-1] == PauseSource(CheckpointId(1))
    assert source.completed(1) == [ResumeSource(CheckpointId(1))]
    assert source.completed(1) == []


def test_an_abort_resumes_the_source() -> None:
    source = Subtask(mode=Mode.STOP_THE_WORLD)
    source.triggered(1)
    assert source.aborted(1) == [ResumeSource(CheckpointId(1))]


def test_the_end_of_another_checkpoint_does_not_resume_the_source() -> None:
    source = Subtask(mode=Mode.STOP_THE_WORLD)
    source.triggered(2)
    assert source.aborted(1) == []
    assert source.completed(1) == []
    assert source.aborted(3) == []
    assert source.completed(2) == [ResumeSource(CheckpointId(2))]


def test_stop_the_world_aligns_behind_the_sources_and_pauses_nobody_there() -> None:
    task = Subtask(A, B, mode=Mode.STOP_THE_WORLD)
    assert task.passes(A, 1) == [Hold(A)]
    answer = task.passes(B, 1)
    assert [type(i) for i in answer] == [Snapshot, Release]


# ---- housekeeping ----
def test_the_memory_of_answered_checkpoints_is_bounded() -> None:
    source = Subtask()
    for id in range(1, 5000):
        source.triggered(id)
    assert len(source.handler._answered) <= 512


def test_the_story_tells_the_last_events_with_their_answers() -> None:
    task = Subtask(A, B)
    task.passes(A, 7)
    assert "checkpoint=7" in task.handler.story()
    assert "Hold" in task.handler.story()


def test_a_broken_invariant_is_named_with_the_story() -> None:
    task = Subtask(A, B)
    task.passes(A, 7)
    task.handler._answered.add(CheckpointId(7))
    with pytest.raises(AssertionError, match="an open id is not answered"):
        task.handler.validate()
