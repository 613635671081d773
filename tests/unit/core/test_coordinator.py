"""The checkpoint coordinator: from trigger to completion, and everything that can come between."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.barrier import Barrier, Mode, Purpose
from penstock.core.causes import Cause
from penstock.core.coordinator import CheckpointCoordinator
from penstock.core.handles import PartHandle, PartKind, SnapshotFigures
from penstock.core.ids import Attempt, ChainId, CheckpointId, Generation, SubtaskId, Uid
from penstock.core.instructions import (
    CheckpointEnded,
    Commit,
    FailAttempt,
    Instruction,
    SendAbort,
    SendComplete,
    SendTrigger,
    WriteRecord,
)
from penstock.core.moments import Moment
from penstock.core.plan import Topology
from penstock.core.record import CheckpointRecord, GraphRecord, SubtaskRecord
from penstock.core.settings import CheckpointSettings
from penstock.core.statistics import Status

SOURCE, OTHER, SINK = (SubtaskId(ChainId(chain), 0) for chain in ("source", "other", "sink"))
TOPOLOGY = Topology((SOURCE, OTHER, SINK), {SOURCE: frozenset(), OTHER: frozenset(), SINK: frozenset({SOURCE, OTHER})})
GRAPH = GraphRecord("job", 128, (), ())
OUT = Uid("out")


class Drive:
    """A coordinator with a clock of its own; `did` holds the instructions of the last event, `all` those of all."""

    def __init__(self, start: bool = True, **settings: Any) -> None:
        self.now = 100.0
        options = {"every": 10.0, "mode": Mode.ALIGNED, "tolerable_failures": 0, "timeout": 600.0} | settings
        self.coordinator = CheckpointCoordinator(
            TOPOLOGY, GRAPH, CheckpointSettings(**options), Generation(3), CheckpointId(7)
        )
        self.attempt = Attempt(1)
        self.did: list[Instruction] = []
        self.all: list[Instruction] = []
        if start:
            self.event("attempt_started", self.attempt)

    def event(self, name: str, *arguments: Any) -> Drive:
        result = getattr(self.coordinator, name)(Moment(self.now, int(self.now * 1000)), *arguments)
        self.did = result[1] if isinstance(result, tuple) else result or []
        self.all += self.did
        self.coordinator.validate()
        return self

    def later(self, seconds: float) -> Drive:
        self.now += seconds
        return self.event("tick")

    def got(self, kind: type) -> list[Any]:
        return [instruction for instruction in self.did if isinstance(instruction, kind)]

    def ever(self, kind: type) -> list[Any]:
        return [instruction for instruction in self.all if isinstance(instruction, kind)]

    def trigger(self) -> CheckpointId:
        self.later(10.0)
        return self.barrier.checkpoint

    @property
    def barrier(self) -> Barrier:
        [trigger] = self.got(SendTrigger)
        return trigger.barrier  # type: ignore[no-any-return]

    def ack(
        self, checkpoint: int, *subtasks: SubtaskId, drained: bool = False, prepared: tuple[bytes, ...] = ()
    ) -> Drive:
        for subtask in subtasks or TOPOLOGY.subtasks:
            committables = {OUT: list(prepared)} if subtask == SINK and prepared else {}
            self.event(
                "acknowledge",
                self.attempt,
                subtask,
                checkpoint,
                (),
                committables,
                SnapshotFigures(sync_ms=1.0),
                drained,
            )
        return self

    def decline(self, checkpoint: int, cause: Cause, subtask: SubtaskId = SINK) -> Drive:
        return self.event("decline", self.attempt, subtask, checkpoint, cause, "because")

    def complete(self, checkpoint: int, **options: Any) -> Drive:
        return self.ack(checkpoint, **options).event("record_written", checkpoint)


# ---- the way of a checkpoint ----
def test_barriers_start_at_the_sources_after_the_interval_with_the_next_unused_id():
    drive = Drive().later(9.9)
    assert drive.did == []
    drive.later(0.1)
    assert drive.did == [SendTrigger(Attempt(1), (SOURCE, OTHER), Barrier(CheckpointId(7), Mode.ALIGNED))]


def test_an_adaptive_barrier_carries_its_patience():
    drive = Drive(mode=Mode.ADAPTIVE, alignment_timeout=0.25)
    drive.trigger()
    assert drive.barrier.patience_ms == 250.0


def test_the_record_is_written_when_the_last_subtask_has_acknowledged_and_holds_all_of_them():
    drive = Drive()
    checkpoint = drive.trigger()
    drive.ack(checkpoint, SINK, SOURCE)
    assert drive.did == []
    drive.ack(checkpoint, OTHER)
    [write] = drive.did
    assert isinstance(write, WriteRecord)
    assert [entry.subtask for entry in write.record.subtasks] == sorted(TOPOLOGY.subtasks)
    assert (write.record.generation, write.record.attempt, write.record.checkpoint) == (3, 1, 7)
    assert write.record.triggered_ms == 110_000


def test_a_checkpoint_is_complete_only_when_the_store_says_so():
    drive = Drive()
    checkpoint = drive.trigger()
    drive.ack(checkpoint)
    assert drive.coordinator.newest is None and drive.ever(SendComplete) == [] and drive.coordinator.writing
    drive.event("record_written", checkpoint)
    assert [type(instruction) for instruction in drive.did] == [SendComplete, Commit, CheckpointEnded]
    assert drive.coordinator.newest == checkpoint and not drive.coordinator.writing


def test_handles_and_figures_of_the_acknowledgements_reach_record_and_statistics():
    drive = Drive()
    checkpoint = drive.trigger()
    handle = PartHandle(Uid("map"), "total", PartKind.KEYED, "x.data", 0, 8, 123)
    drive.event("acknowledge", drive.attempt, SOURCE, checkpoint, [handle], {}, SnapshotFigures(state_bytes=8), False)
    drive.ack(checkpoint, OTHER, SINK)
    [write] = drive.got(WriteRecord)
    [record] = [entry for entry in write.record.subtasks if entry.subtask == SOURCE]
    assert record.handles == (handle,)
    drive.now += 0.5
    drive.event("record_written", checkpoint)
    [ended] = drive.got(CheckpointEnded)
    assert ended.statistics.state_bytes == 8 and ended.statistics.duration_ms == pytest.approx(500.0)
    assert ended.request is None, "nobody asked for a periodic one"


def test_a_duplicate_acknowledgement_is_ignored():
    drive = Drive()
    checkpoint = drive.trigger()
    drive.ack(checkpoint, SOURCE).ack(checkpoint, SOURCE)
    assert drive.did == [] and drive.coordinator.statistics(Moment(drive.now, 0))[-1].status is Status.IN_PROGRESS


def test_a_late_acknowledgement_of_an_aborted_checkpoint_is_ignored():
    drive = Drive(tolerable_failures=5)
    aborted = drive.trigger()
    drive.decline(aborted, Cause.DECLINED)
    drive.ack(aborted)
    assert drive.did == [] and drive.ever(WriteRecord) == []


def test_messages_of_another_attempt_are_ignored():
    drive = Drive()
    checkpoint = drive.trigger()
    for attempt in (0, 2):
        drive.event("acknowledge", attempt, SOURCE, checkpoint)
        drive.event("decline", attempt, SOURCE, checkpoint, Cause.DECLINED, "")
        drive.event("drained", attempt, SOURCE)
        drive.event("finished", attempt, SOURCE)
        drive.event("attempt_ended", attempt, Cause.JOB_FAILED, "")
        assert drive.did == []
    drive.complete(checkpoint)
    assert drive.coordinator.newest == checkpoint


# ---- failures ----
def test_a_declined_checkpoint_is_aborted_everywhere_at_once_with_its_cause():
    drive = Drive(tolerable_failures=1)
    checkpoint = drive.trigger()
    drive.decline(checkpoint, Cause.DECLINED, SOURCE)
    abort, ended = drive.did
    assert abort == SendAbort(Attempt(1), checkpoint, Cause.DECLINED)
    assert isinstance(ended, CheckpointEnded)
    assert (ended.statistics.cause, ended.statistics.subtask) == (Cause.DECLINED, SOURCE)


def test_an_expired_checkpoint_names_those_that_did_not_acknowledge():
    drive = Drive(timeout=5.0, tolerable_failures=1)
    checkpoint = drive.trigger()
    drive.ack(checkpoint, SOURCE)
    assert drive.coordinator.next_wake() == drive.now + 5.0
    drive.later(5.0)
    [ended] = drive.got(CheckpointEnded)
    assert ended.statistics.cause is Cause.EXPIRED
    assert "other[0], sink[0]" in ended.statistics.reason and "source" not in ended.statistics.reason


def test_one_failure_too_many_fails_the_attempt_and_starts_nothing_new():
    drive = Drive(tolerable_failures=1)
    drive.decline(drive.trigger(), Cause.WRITE_FAILED)
    assert drive.got(FailAttempt) == []
    drive.decline(drive.trigger(), Cause.WRITE_FAILED)
    [failed] = drive.got(FailAttempt)
    assert "sink[0]" in failed.reason and "2 failed in a row" in failed.reason
    assert drive.later(100.0).did == []


def test_a_complete_checkpoint_between_two_failures_keeps_the_attempt_alive():
    drive = Drive(tolerable_failures=1)
    drive.decline(drive.trigger(), Cause.DECLINED)
    drive.complete(drive.trigger())
    drive.decline(drive.trigger(), Cause.DECLINED)
    assert drive.ever(FailAttempt) == []


def test_a_failed_record_aborts_the_checkpoint_and_counts():
    drive = Drive()
    checkpoint = drive.trigger()
    drive.ack(checkpoint).event("record_failed", checkpoint, "disk full")
    assert [type(instruction) for instruction in drive.did] == [SendAbort, CheckpointEnded, FailAttempt]
    assert drive.coordinator.newest is None


def test_nothing_but_the_store_ends_a_checkpoint_whose_record_is_being_written():
    drive = Drive(timeout=5.0)
    checkpoint = drive.trigger()
    drive.ack(checkpoint)
    drive.decline(checkpoint, Cause.DECLINED)
    assert drive.did == []
    drive.later(60.0)
    assert drive.did == []
    drive.event("attempt_ended", drive.attempt, Cause.JOB_FAILED, "boom")
    assert drive.did == [] and drive.coordinator.writing


def test_a_record_that_completes_after_its_attempt_is_committed_but_nobody_is_notified():
    drive = Drive()
    checkpoint = drive.trigger()
    drive.ack(checkpoint).event("attempt_ended", drive.attempt, Cause.JOB_FAILED, "boom")
    drive.event("record_written", checkpoint)
    assert [type(instruction) for instruction in drive.did] == [Commit, CheckpointEnded]
    assert drive.coordinator.newest == checkpoint


def test_a_record_that_fails_after_its_attempt_counts_against_nobody():
    drive = Drive()
    checkpoint = drive.trigger()
    drive.ack(checkpoint).event("attempt_ended", drive.attempt, Cause.JOB_FAILED, "boom")
    drive.event("record_failed", checkpoint, "disk full")
    assert [type(instruction) for instruction in drive.did] == [CheckpointEnded]


def test_the_end_of_an_attempt_aborts_what_is_under_way_and_ids_are_never_used_again():
    drive = Drive()
    checkpoint = drive.trigger()
    drive.event("attempt_ended", drive.attempt, Cause.JOB_FAILED, "boom")
    [ended] = drive.did
    assert isinstance(ended, CheckpointEnded) and ended.statistics.cause is Cause.JOB_FAILED
    drive.attempt = Attempt(2)
    drive.event("attempt_started", drive.attempt)
    assert drive.trigger() > checkpoint


# ---- several at once ----
def test_a_newer_one_that_completes_first_overtakes_the_older():
    drive = Drive(maximum_concurrent=2, mode=Mode.AT_LEAST_ONCE)
    older, newer = drive.trigger(), drive.trigger()
    drive.ack(older, SOURCE).complete(newer)
    assert drive.got(SendAbort) == [SendAbort(Attempt(1), older, Cause.SUPERSEDED)]
    drive.ack(older, OTHER, SINK)
    assert drive.did == [] and drive.coordinator.newest == newer


def test_records_are_written_one_at_a_time():
    drive = Drive(maximum_concurrent=2, mode=Mode.AT_LEAST_ONCE)
    first, second = drive.trigger(), drive.trigger()
    drive.ack(first).ack(second)
    assert [write.record.checkpoint for write in drive.ever(WriteRecord)] == [first]
    drive.event("record_written", first)
    assert [write.record.checkpoint for write in drive.got(WriteRecord)] == [second]


def test_an_older_one_that_is_ready_while_a_newer_is_written_still_counts_if_the_newer_fails():
    drive = Drive(maximum_concurrent=2, mode=Mode.AT_LEAST_ONCE, tolerable_failures=5)
    older, newer = drive.trigger(), drive.trigger()
    drive.ack(newer).ack(older)
    drive.event("record_failed", newer, "lost")
    assert [write.record.checkpoint for write in drive.got(WriteRecord)] == [older]


def test_a_lowered_limit_lets_those_under_way_end():
    drive = Drive(maximum_concurrent=2, mode=Mode.AT_LEAST_ONCE)
    first, second = drive.trigger(), drive.trigger()
    drive.event("configure", CheckpointSettings(every=1.0, maximum_concurrent=1, mode=Mode.ALIGNED))
    assert drive.got(SendTrigger) == [] and drive.later(50.0).did == []
    drive.complete(first).complete(second)
    assert drive.coordinator.newest == second


# ---- committables ----
def test_a_record_names_the_output_of_all_subtasks_once():
    drive = Drive()
    drive.ack(drive.trigger(), prepared=(b"x", b"y", b"x"))
    [write] = drive.got(WriteRecord)
    assert write.record.committables == {OUT: (b"x", b"y")}


def test_output_of_a_complete_checkpoint_stays_in_records_until_its_commit_has_returned():
    drive = Drive()
    first = drive.trigger()
    drive.complete(first, prepared=(b"x",))
    second = drive.trigger()
    drive.ack(second, prepared=(b"y",))
    [write] = drive.got(WriteRecord)
    assert write.record.committables == {OUT: (b"x", b"y")}
    drive.event("record_written", second).event("committed", first).event("committed", second)
    drive.ack(drive.trigger(), prepared=(b"z",))
    [write] = drive.got(WriteRecord)
    assert write.record.committables == {OUT: (b"z",)}


# ---- subtasks that end ----
def test_a_finished_source_is_recorded_as_finished_and_the_others_go_on():
    drive = Drive().event("drained", 1, SOURCE).event("finished", 1, SOURCE)
    drive.later(10.0)
    [trigger] = drive.got(SendTrigger)
    assert trigger.subtasks == (OTHER,)
    drive.ack(trigger.barrier.checkpoint, OTHER, SINK)
    [write] = drive.got(WriteRecord)
    assert [entry.subtask for entry in write.record.subtasks if entry.finished] == [SOURCE]


def test_a_trigger_that_meets_a_finished_subtask_is_planned_again_at_once():
    drive = Drive(minimum_pause=60.0)
    checkpoint = drive.trigger()
    drive.event("finished", 1, SOURCE)
    abort, ended, again = drive.did
    assert abort == SendAbort(Attempt(1), checkpoint, Cause.SUBTASK_FINISHED) and isinstance(ended, CheckpointEnded)
    assert isinstance(again, SendTrigger)
    assert again.barrier.checkpoint == checkpoint + 1 and again.subtasks == (OTHER,)


def test_a_decline_because_of_a_finished_subtask_plans_again_even_before_its_end_is_known():
    drive = Drive()
    checkpoint = drive.trigger()
    drive.decline(checkpoint, Cause.SUBTASK_FINISHED, SOURCE)
    assert drive.barrier.checkpoint == checkpoint + 1 and drive.got(FailAttempt) == []


def test_someone_who_asked_hears_only_of_the_checkpoint_that_was_planned_again():
    drive = Drive()
    request = drive.coordinator.request(Moment(drive.now, 0), Purpose.SAVEPOINT)[0]
    drive.event("finished", 1, SOURCE)
    again = drive.barrier
    assert again.purpose is Purpose.SAVEPOINT and drive.got(CheckpointEnded)[0].request is None
    drive.ack(again.checkpoint, OTHER, SINK).event("record_written", again.checkpoint)
    assert drive.got(CheckpointEnded)[0].request == request


def test_after_a_checkpoint_that_ends_subtasks_the_next_waits_until_they_have_ended():
    drive = Drive(every=1.0)
    drive.event("drained", 1, SOURCE)
    checkpoint = drive.trigger()
    drive.ack(checkpoint, SOURCE, drained=True).ack(checkpoint, OTHER, SINK).event("record_written", checkpoint)
    assert drive.later(60.0).did == [] and drive.coordinator.next_wake() is None
    drive.event("finished", 1, SOURCE)
    [trigger] = drive.got(SendTrigger)
    assert trigger.subtasks == (OTHER,)


def test_when_all_are_drained_the_final_checkpoint_starts_without_interval_or_pause():
    drive = Drive(every=1000.0, minimum_pause=1000.0)
    for subtask in (SOURCE, OTHER):
        assert drive.event("drained", 1, subtask).did == []
    drive.event("drained", 1, SINK)
    assert drive.barrier.purpose is Purpose.FINAL


def test_the_final_checkpoint_waits_for_one_under_way_and_is_not_needed_if_that_covers_the_end():
    drive = Drive()
    checkpoint = drive.trigger()
    for subtask in TOPOLOGY.subtasks:
        drive.event("drained", 1, subtask)
    assert drive.did == []
    drive.complete(checkpoint, drained=True)
    for subtask in TOPOLOGY.subtasks:
        drive.event("finished", 1, subtask)
    assert drive.coordinator.all_finished and len(drive.ever(SendTrigger)) == 1
    assert drive.later(1000.0).did == []


def test_the_final_checkpoint_follows_one_that_was_under_way_and_did_not_cover_the_end():
    drive = Drive(every=10.0)
    checkpoint = drive.trigger()
    for subtask in TOPOLOGY.subtasks:
        drive.event("drained", 1, subtask)
    drive.complete(checkpoint, drained=False)
    assert drive.barrier.purpose is Purpose.FINAL


def test_a_final_checkpoint_that_failed_is_tried_again_soon():
    drive = Drive(every=1000.0, tolerable_failures=5)
    for subtask in TOPOLOGY.subtasks:
        drive.event("drained", 1, subtask)
    drive.decline(drive.barrier.checkpoint, Cause.DECLINED)
    assert drive.got(SendTrigger) == []
    drive.later(1.0)
    assert drive.barrier.purpose is Purpose.FINAL


def test_a_job_restored_with_finished_subtasks_waits_for_their_report_before_it_triggers():
    drive = Drive(start=False)
    record = CheckpointRecord(
        CheckpointId(6),
        Generation(2),
        Attempt(4),
        Mode.ALIGNED,
        Purpose.CHECKPOINT,
        0,
        0,
        GRAPH,
        (SubtaskRecord(SOURCE, finished=True), SubtaskRecord(OTHER), SubtaskRecord(SINK)),
    )
    drive.event("attempt_started", Attempt(1), record)
    assert drive.later(60.0).did == []
    drive.event("finished", 1, SOURCE)
    assert drive.got(SendTrigger)[0].subtasks == (OTHER,)


def test_a_job_restored_with_drained_subtasks_takes_the_final_checkpoint_when_the_rest_is_drained():
    drive = Drive(start=False, every=1000.0)
    subtasks = (SubtaskRecord(SOURCE, drained=True), SubtaskRecord(OTHER, drained=True), SubtaskRecord(SINK))
    record = CheckpointRecord(
        CheckpointId(6), Generation(2), Attempt(4), Mode.ALIGNED, Purpose.CHECKPOINT, 0, 0, GRAPH, subtasks
    )
    drive.event("attempt_started", Attempt(1), record)
    drive.event("drained", 1, SINK)
    assert drive.barrier.purpose is Purpose.FINAL


# ---- settings and requests ----
def test_a_shorter_timeout_holds_for_checkpoints_under_way_too():
    drive = Drive(timeout=600.0)
    drive.trigger()
    drive.now += 20.0
    drive.event("configure", CheckpointSettings(timeout=10.0, every=1000.0, mode=Mode.ALIGNED))
    assert drive.got(CheckpointEnded)[0].statistics.cause is Cause.EXPIRED


def test_a_request_is_served_at_once_and_named_when_it_ends():
    drive = Drive(every=1000.0)
    request, instructions = drive.coordinator.request(Moment(drive.now, 0), Purpose.SAVEPOINT)
    [trigger] = instructions
    assert isinstance(trigger, SendTrigger) and trigger.barrier.purpose is Purpose.SAVEPOINT
    drive.complete(trigger.barrier.checkpoint)
    assert drive.got(CheckpointEnded)[0].request == request


def test_a_request_between_two_attempts_waits_for_the_next():
    drive = Drive(start=False)
    drive.event("request", Purpose.SAVEPOINT)
    assert drive.did == []
    drive.event("attempt_started", Attempt(1))
    assert drive.barrier.purpose is Purpose.SAVEPOINT


def test_the_story_tells_what_happened_to_a_checkpoint():
    drive = Drive(tolerable_failures=1)
    drive.decline(drive.trigger(), Cause.DECLINED)
    story = "\n".join(drive.coordinator.story.lines())
    assert "triggered  7" in story and "failed  7 declined sink[0] because" in story
