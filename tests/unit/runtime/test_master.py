"""The master from outside: what workers are told and what gets committed when things go well, and when they do not."""

import pytest
from tests.unit.runtime.master_harness import ALL, SINK, SINKS, SOURCES, Harness, RecordingSink

from penstock.core.barrier import Purpose
from penstock.core.causes import Cause
from penstock.core.handles import SnapshotFigures
from penstock.core.ids import Attempt, CheckpointId, WorkerId
from penstock.core.orders import JobState
from penstock.core.restarts import NoRestart
from penstock.core.settings import CheckpointSettings, RuntimeSettings
from penstock.core.statistics import Status
from penstock.runtime.control import messages as wire
from penstock.runtime.outcome import RequestOutcome
from penstock.simulation.files import MemoryFiles
from penstock.store.checkpoints import CheckpointStore


def output(checkpoint: int) -> list[bytes]:
    return [f"{checkpoint}:{subtask}".encode() for subtask in SINKS]


# ---- deployment ----
def test_nothing_is_deployed_before_all_slots_have_a_worker():
    job = Harness().deploy("a")
    assert job.of(wire.Deploy) == [] and job.needed == [2]
    job.register("b")
    assert job.to(wire.Deploy) == ["a", "b"]


def test_nothing_is_deployed_before_the_sinks_have_recovered():
    job = Harness()
    job.master.start()
    job.register("a", "b")
    assert job.of(wire.Deploy) == []
    job.settle()
    assert job.sink.calls == [("recover", None, 1)]
    assert job.to(wire.Deploy) == ["a", "b"]


def test_the_worker_of_a_slot_runs_that_subtask_of_every_chain_and_knows_where_all_others_are():
    job = Harness().deploy("a", "b")
    first, second = job.of(wire.Deploy)
    assert [assignment.subtask for assignment in first.assignments] == [SOURCES[0], SINKS[0]]
    assert [assignment.subtask for assignment in second.assignments] == [SOURCES[1], SINKS[1]]
    assert dict(first.locations) == {SOURCES[0]: "a", SINKS[0]: "a", SOURCES[1]: "b", SINKS[1]: "b"}
    assert set(first.peers) == {"a", "b"} and first.generation == 1


def test_tasks_start_only_when_all_workers_are_ready():
    job = Harness().deploy("a", "b")
    job.say("a", wire.Ready(Attempt(1)))
    assert job.of(wire.Start) == []
    job.say("b", wire.Ready(Attempt(1)))
    assert job.to(wire.Start) == ["a", "b"]


def test_workers_hear_how_far_the_slowest_of_the_aligned_sources_has_come():
    job = Harness().start("a", "b")

    def say(worker: str, attempt: int, **times: int) -> None:
        job.say(worker, wire.Figures(Attempt(attempt), 0, {}, {}, {}, times))

    say("a", 1, x=50)
    say("b", 1, y=70)
    say("a", 1, x=90)
    say("a", 7, x=1)
    say("b", 1)
    assert [message.slowest for message in job.of(wire.AlignSources)] == [50, 50, 70, 70, 90, 90]
    assert job.to(wire.AlignSources) == ["a", "b"] * 3


# ---- checkpoints ----
def test_a_checkpoint_is_triggered_at_the_sources_completed_in_the_store_notified_and_committed():
    job = Harness().start()
    checkpoint = job.trigger_next()
    assert [message.subtasks for message in job.of(wire.TriggerCheckpoint)] == [[SOURCES[0]], [SOURCES[1]]]
    job.acknowledge_all(checkpoint)
    assert job.of(wire.CompleteCheckpoint) == [] and job.sink.committed == {}
    job.settle()
    assert job.to(wire.CompleteCheckpoint) == ["a", "b"]
    assert job.store is not None and job.store.completed() == [checkpoint]
    assert job.sink.calls[-1] == ("commit", checkpoint, *output(checkpoint))


def test_checkpoints_are_committed_strictly_in_order_even_if_one_commit_must_be_repeated():
    job = Harness().start()
    job.sink.fail.extend([OSError("busy"), OSError("busy")])
    first = job.trigger_next()
    job.acknowledge_all(first)
    while job.work:
        job.run_one()
    second = job.trigger_next()
    job.acknowledge_all(second)
    job.pass_time(5.0)
    commits = [call[1] for call in job.sink.calls if call[0] == "commit"]
    assert commits == sorted(commits) and commits[0] == commits[1] == commits[2] == first
    assert set(output(first) + output(second)) <= set(job.sink.committed)


def test_a_record_also_names_output_whose_commit_has_not_returned_yet():
    """A writer stops naming output once its checkpoint is complete, which may be long before the commit succeeds."""
    job = Harness().start()
    job.sink.fail.extend([OSError("busy")])
    first = job.trigger_next()
    job.acknowledge_all(first)
    job.settle()
    job.master.trigger()
    second = job.barrier().checkpoint
    job.acknowledge_all(second)
    job.settle()
    assert job.store is not None
    assert list(job.store.load(second).committables[SINK]) == output(first) + output(second)


def test_a_commit_that_keeps_failing_ends_the_job_and_says_that_nothing_is_lost():
    job = Harness().start()
    job.sink.fail.extend([OSError(f"disk full {n}") for n in range(10)])
    job.acknowledge_all(job.trigger_next())
    job.pass_time(10.0)
    assert job.outcome is not None and job.outcome.state is JobState.FAILED and job.outcome.error is not None
    assert job.outcome.error.uid == SINK and not job.outcome.error.retriable
    assert "disk full 3" in job.outcome.error.message and "its next start commits again" in job.outcome.error.message


def test_the_next_driver_commits_what_the_last_one_could_not():
    job = Harness().start()
    job.sink.fail.extend([OSError("disk full")] * 4)
    checkpoint = job.trigger_next()
    job.acknowledge_all(checkpoint)
    job.pass_time(10.0)
    again = Harness(files=job.files)
    again.deploy("a", "b")
    assert again.sink.calls == [("recover", checkpoint, 1, *output(checkpoint))]


def test_a_requested_checkpoint_answers_with_its_statistics():
    job, answers = Harness().start(), []
    job.master.trigger(Purpose.SAVEPOINT, answers.append)
    assert job.barrier().purpose is Purpose.SAVEPOINT
    job.acknowledge_all(job.barrier().checkpoint)
    job.settle()
    [answer] = answers
    assert answer.checkpoint == job.barrier().checkpoint and answer.reason == ""
    assert answer.statistics.status is Status.COMPLETED and answer.statistics.state_bytes == 40


def test_a_request_that_waits_outlives_a_restart():
    job, answers = Harness().deploy("a", "b"), []
    job.master.trigger(Purpose.SAVEPOINT, answers.append)
    job.say("a", wire.TaskFailed(Attempt(1), SOURCES[0], wire.ErrorReport("lost")))
    job.idle("a", "b").settle()
    job.ready()
    assert job.barrier().purpose is Purpose.SAVEPOINT and answers == []


def test_a_request_made_before_the_store_is_open_is_not_lost():
    job, answers = Harness(), []
    job.master.trigger(Purpose.CHECKPOINT, answers.append)
    job.start()
    job.acknowledge_all(job.barrier().checkpoint)
    job.settle()
    assert [answer.reason for answer in answers] == [""]


def test_requests_that_are_never_served_are_answered_when_the_job_ends():
    job, answers = Harness().deploy("a"), []
    job.master.trigger(then=answers.append)
    job.master.cancel()
    job.master.trigger(then=answers.append)
    assert answers == [RequestOutcome(None, "the job has ended: the job was cancelled")] * 2


def test_too_many_failed_checkpoints_restart_the_job_with_a_reason_that_names_subtask_and_cause():
    job = Harness().start()
    job.decline(SINKS[1], job.trigger_next(), Cause.DECLINED)
    assert job.to(wire.Reset) == ["a", "b"]
    failure = job.master.status().last_failure
    assert failure is not None and "sink[1]" in failure.message and "declined" in failure.message


def test_the_figures_of_every_checkpoint_outlive_the_driver():
    job = Harness(checkpoints=CheckpointSettings(tolerable_failures=5)).start()
    done = job.checkpoint()
    failed = job.trigger_next()
    job.decline(SINKS[0], failed, Cause.WRITE_FAILED)
    job.settle()
    assert job.store is not None
    entries = {entry["checkpoint"]: (entry["status"], entry["cause"]) for entry in job.store.statistics()}
    assert entries[done] == ("completed", None) and entries[failed] == ("failed", "write_failed")


def test_settings_can_be_changed_while_the_job_runs():
    job = Harness(checkpoints=CheckpointSettings(every=1000.0)).start()
    job.pass_time(2.0)
    assert job.of(wire.TriggerCheckpoint) == []
    job.master.configure(CheckpointSettings(every=1.0))
    assert len(job.of(wire.TriggerCheckpoint)) == 2


def test_the_number_of_retained_checkpoints_can_be_changed_while_the_job_runs():
    job = Harness().start()
    job.master.configure(CheckpointSettings(keep=1))
    for _ in range(3):
        newest = job.checkpoint()
    assert job.store is not None and job.store.completed() == [newest]
    with pytest.raises(ValueError, match="at least 1"):
        job.master.configure(CheckpointSettings(keep=0))


# ---- failures ----
def test_after_a_lost_worker_survivors_are_reset_in_place_and_the_spare_gets_the_slot():
    job = Harness(runtime=RuntimeSettings(spares=1)).start("a", "b", "spare")
    assert job.needed == [3]
    checkpoint = job.checkpoint()
    job.lose("a")
    assert job.to(wire.Reset) == ["b"]
    job.settle()
    job.idle("b")
    deployed = dict(job.sent[-2:])
    assert set(deployed) == {"spare", "b"}
    message = deployed[WorkerId("spare")]
    assert isinstance(message, wire.Deploy) and message.attempt == 2
    assert [assignment.subtask.index for assignment in message.assignments] == [0, 0]
    assert all(assignment.restore.checkpoint == checkpoint for assignment in message.assignments if assignment.restore)
    assert all(assignment.restore is not None for assignment in message.assignments)


def test_without_a_spare_the_slot_waits_for_the_next_worker_that_registers():
    job = Harness().start()
    job.lose("a")
    job.settle()
    job.idle("b")
    before = len(job.of(wire.Deploy))
    job.register("c")
    assert job.to(wire.Deploy)[before:] == ["c", "b"]
    assert job.needed == [2, 2]


def test_the_loss_of_a_worker_counts_once_even_if_it_is_reported_twice():
    job = Harness().start()
    job.lose("a")
    job.lose("a")
    assert job.master.status().restarts == 1 and job.to(wire.Reset) == ["b"]


def test_a_worker_that_is_lost_while_it_resets_is_no_second_failure():
    job = Harness().start()
    job.lose("a")
    job.lose("b")
    job.settle()
    job.register("c", "d")
    assert job.master.status().restarts == 1
    assert job.to(wire.Deploy)[-2:] == ["c", "d"] and job.of(wire.Deploy)[-1].attempt == 2


def test_a_worker_lost_during_the_deployment_fails_that_attempt():
    job = Harness().deploy("a", "b")
    job.lose("a")
    assert job.attempt == 2 and job.to(wire.Reset) == ["b"]


def test_messages_of_an_old_attempt_change_nothing():
    job = Harness().start()
    checkpoint = job.trigger_next()
    job.fail()
    for subtask in ALL:
        job.say("a", wire.Finished(Attempt(1), subtask))
        job.say("a", wire.Drained(Attempt(1), subtask, {}))
        job.say("a", wire.Acknowledge(Attempt(1), subtask, checkpoint, [], {}, SnapshotFigures(), False))
    job.say("a", wire.TaskFailed(Attempt(1), SOURCES[1], wire.ErrorReport("late")))
    job.say("a", wire.Ready(Attempt(1)))
    job.settle()
    assert job.master.status().restarts == 1 and job.store is not None and job.store.completed() == []
    assert job.outcome is None


def test_a_failure_while_the_record_is_being_written_restores_that_checkpoint_if_it_became_complete():
    job = Harness().start()
    checkpoint = job.trigger_next()
    job.acknowledge_all(checkpoint)
    job.fail()
    job.idle("a", "b")
    assert len(job.of(wire.Deploy)) == 2, "the restore point is not known yet"
    job.settle()
    restores = [assignment.restore for message in job.of(wire.Deploy)[2:] for assignment in message.assignments]
    assert [restore.checkpoint for restore in restores if restore] == [checkpoint] * 4
    assert set(job.sink.committed) == set(output(checkpoint))
    assert job.of(wire.CompleteCheckpoint) == []


def test_a_failure_while_the_record_is_being_written_starts_from_before_if_the_write_failed():
    job = Harness().start()
    checkpoint = job.trigger_next()
    job.acknowledge_all(checkpoint)
    job.fail()
    job.idle("a", "b")
    job.files.before = raising("create")
    job.run_one()
    job.files.before = lambda operation, path: None
    job.settle()
    redeployed = [assignment for message in job.of(wire.Deploy)[2:] for assignment in message.assignments]
    assert [assignment.restore for assignment in redeployed] == [None] * 4
    assert job.sink.committed == {}


def raising(operation: str):
    def hook(done: str, path: str) -> None:
        if done == operation:
            raise OSError(28, "No space left on device", path)

    return hook


def test_a_lost_answer_of_the_store_is_asked_for_again():
    job = Harness().start()
    checkpoint = job.trigger_next()
    job.files.after = raising("create")
    job.acknowledge_all(checkpoint)
    job.run_one()
    job.files.after = lambda operation, path: None
    job.settle()
    assert job.master.status().newest_checkpoint == checkpoint and job.to(wire.CompleteCheckpoint) == ["a", "b"]


def test_an_unreachable_store_keeps_the_outcome_open_until_it_answers():
    job = Harness().start()
    checkpoint = job.trigger_next()
    job.files.after = raising("create")
    job.acknowledge_all(checkpoint)
    job.run_one()
    job.files.before = raising("names")
    job.pass_time(1.0)
    assert job.of(wire.AbortCheckpoint) == [] and job.of(wire.CompleteCheckpoint) == []
    job.files.before = job.files.after = lambda operation, path: None
    job.pass_time(30.0)
    assert checkpoint in {message.checkpoint for message in job.of(wire.CompleteCheckpoint)}


def test_a_driver_that_is_overtaken_while_its_write_is_in_doubt_ends_as_fenced():
    job = Harness().start()
    job.files.before = raising("create")
    job.acknowledge_all(job.trigger_next())
    job.run_one()
    job.files.before = lambda operation, path: None

    def another_driver_claims(operation: str, path: str) -> None:
        if operation == "create":
            job.files.after = lambda operation, path: None
            CheckpointStore(job.files, "orders").claim()

    job.files.after = another_driver_claims
    job.pass_time(10.0)
    assert job.outcome is not None and job.outcome.state is JobState.FENCED and job.sink.committed == {}


def test_a_store_that_never_answers_fails_the_job():
    job = Harness().start()
    job.files.after = raising("create")
    job.acknowledge_all(job.trigger_next())
    job.run_one()
    job.files.before = raising("names")
    job.pass_time(60.0)
    assert job.outcome is not None and job.outcome.state is JobState.FAILED
    assert "does not say whether checkpoint 1 is complete" in job.outcome.reason


def test_a_full_disk_aborts_the_checkpoint_and_names_the_error():
    job = Harness(checkpoints=CheckpointSettings(tolerable_failures=3)).start()
    checkpoint = job.trigger_next()
    job.files.before = raising("write")
    job.acknowledge_all(checkpoint)
    job.settle()
    [statistics] = [s for s in job.master.statistics() if s.checkpoint == checkpoint]
    assert statistics.cause is Cause.WRITE_FAILED and "No space left" in statistics.reason
    assert [message.checkpoint for message in job.of(wire.AbortCheckpoint)] == [checkpoint, checkpoint]


def test_an_error_that_would_happen_again_fails_the_job_at_once_and_reaches_the_user_whole():
    job = Harness().start()
    error = job.fail(retriable=False)
    assert job.to(wire.Shutdown) == ["a", "b"] and job.of(wire.Reset) == []
    job.settle()
    assert job.outcome is not None and job.outcome.state is JobState.FAILED and job.outcome.error == error
    assert "source[0] (map(ratio)) failed: division by zero" in job.outcome.reason


def test_when_no_restart_is_left_the_outcome_carries_the_last_error_and_why_it_ended():
    job = Harness(restarts=NoRestart()).start()
    error = job.fail()
    job.settle()
    assert job.outcome is not None and job.outcome.error == error and "none" in job.outcome.reason


def test_a_driver_that_was_overtaken_ends_as_fenced_and_commits_nothing():
    job = Harness().start()
    checkpoint = job.trigger_next()
    successor = Harness(files=job.files).deploy()
    assert successor.of(wire.Shutdown) == []
    job.acknowledge_all(checkpoint)
    job.settle()
    assert job.outcome is not None and job.outcome.state is JobState.FENCED
    assert job.to(wire.Shutdown) == ["a", "b"] and job.sink.committed == {}


def test_a_cancelled_job_shuts_its_workers_down_and_finishes_commits_of_complete_checkpoints():
    job = Harness().start()
    checkpoint = job.trigger_next()
    job.acknowledge_all(checkpoint)
    job.run_one()
    job.master.cancel()
    assert job.to(wire.Shutdown) == ["a", "b"] and job.outcome is None
    job.settle()
    assert job.outcome is not None and job.outcome.state is JobState.CANCELLED
    assert set(job.sink.committed) == set(output(checkpoint)) and job.sink.closed == 1


def test_a_cancelled_job_does_not_wait_for_a_commit_that_hangs():
    job = Harness(runtime=RuntimeSettings(cancel_grace=5.0)).start()
    job.acknowledge_all(job.trigger_next())
    job.run_one()
    job.master.cancel()
    job.clock.time += 5.0
    job.master.tick()
    assert job.outcome is not None and job.outcome.state is JobState.CANCELLED
    job.settle()


def test_a_fenced_driver_closes_its_committers_only_when_the_commit_under_way_has_returned():
    job = Harness().start()
    first = job.trigger_next()
    job.acknowledge_all(first)
    job.run_one()
    hanging = [entry for entry in job.work if "_Step" in entry[0].__qualname__]
    assert len(hanging) == 1
    job.work.remove(hanging[0])
    job.master.fenced("another driver")
    job.settle()
    assert job.sink.closed == 0 and job.outcome is None
    job.work.extend(hanging)
    job.settle()
    assert job.sink.closed == 1 and job.outcome is not None and job.outcome.state is JobState.FENCED


def test_a_worker_that_registers_after_the_end_is_sent_home():
    job = Harness().start()
    job.master.cancel()
    job.register("late")
    assert job.to(wire.Shutdown) == ["a", "b", "late"]


# ---- the end ----
def test_when_all_input_has_ended_a_final_checkpoint_is_taken_at_once_and_the_job_finishes_after_its_commit():
    job = Harness(checkpoints=CheckpointSettings(every=1000.0, minimum_pause=1000.0)).start()
    job.drain_all()
    final = job.barrier()
    assert final.purpose is Purpose.FINAL
    job.acknowledge_all(final.checkpoint, drained=True)
    job.run_one()
    job.finish_all()
    assert job.outcome is None and job.sink.committed == {}
    job.settle()
    assert job.outcome is not None and job.outcome.state is JobState.FINISHED
    assert set(job.sink.committed) == set(output(final.checkpoint)) and job.sink.closed == 1
    assert job.to(wire.Shutdown) == ["a", "b"]


def test_a_worker_lost_after_all_subtasks_finished_does_not_matter():
    job = Harness().start()
    job.drain_all()
    job.acknowledge_all(job.barrier().checkpoint, drained=True)
    job.run_one()
    job.finish_all()
    job.lose("a")
    job.settle()
    assert job.outcome is not None and job.outcome.state is JobState.FINISHED
    assert job.master.status().restarts == 0


def test_a_worker_lost_between_the_final_checkpoint_and_its_own_end_costs_nothing_but_the_commit():
    job = Harness().start()
    job.drain_all()
    final = job.barrier().checkpoint
    job.acknowledge_all(final, drained=True)
    job.run_one()
    job.lose("a")
    job.settle()
    assert job.outcome is not None and job.outcome.state is JobState.FINISHED
    assert set(job.sink.committed) == set(output(final)) and len(job.of(wire.Deploy)) == 2


def test_a_job_that_had_finished_before_ends_at_once_after_the_commit():
    first = Harness().start()
    first.drain_all()
    final = first.barrier().checkpoint
    first.acknowledge_all(final, drained=True)
    first.run_one()
    again = Harness(files=first.files)
    again.master.start()
    again.settle()
    assert again.outcome is not None and again.outcome.state is JobState.FINISHED
    assert again.sink.calls == [("recover", final, 1, *output(final))] and again.of(wire.Deploy) == []


def test_a_drain_is_repeated_in_the_attempt_that_follows_a_failure():
    job = Harness().start()
    job.master.drain()
    assert [message.attempt for message in job.of(wire.Drain)] == [1, 1]
    job.fail()
    job.settle()
    job.idle("a", "b").ready()
    assert [message.attempt for message in job.of(wire.Drain)] == [1, 1, 2, 2]


def test_sources_of_a_job_that_is_being_drained_hear_so_before_they_start():
    job = Harness().start()
    job.master.drain()
    job.fail()
    job.settle()
    job.idle("a", "b").ready()
    for worker in "ab":
        heard = [type(message) for to, message in job.sent if to == worker]
        assert heard.index(wire.Drain, heard.index(wire.Reset)) < heard.index(wire.Start, heard.index(wire.Reset))


def test_a_finished_job_leaves_no_file_behind_that_no_checkpoint_needs():
    job = Harness(checkpoints=CheckpointSettings(tolerable_failures=9)).start()
    for _ in range(5):
        job.checkpoint()
    aborted = job.trigger_next()
    job.files.write(f"checkpoints/{aborted}/g1-a1-source-0-0.data", [b"half"])
    job.decline(SINKS[0], aborted, Cause.DECLINED)
    job.drain_all()
    job.acknowledge_all(job.barrier().checkpoint, drained=True)
    job.settle()
    job.finish_all()
    job.settle()
    assert job.outcome is not None and job.outcome.state is JobState.FINISHED and job.store is not None
    kept = {info.path.split("/")[1].lstrip("0") for info in job.files.list("checkpoints")}
    assert kept == {str(checkpoint) for checkpoint in job.store.completed()}


# ---- without checkpoints ----
def test_without_checkpoints_all_output_is_committed_once_at_the_end():
    job = Harness(checkpoints=None).start()
    for number, subtask in enumerate(ALL):
        prepared = {SINK: [f"part {number}".encode()]} if subtask in SINKS else {}
        job.say("a", wire.Drained(Attempt(1), subtask, prepared))
    job.finish_all()
    assert job.outcome is None
    job.settle()
    assert job.outcome is not None and job.outcome.state is JobState.FINISHED
    assert job.sink.calls[-1] == ("commit", 1, b"part 2", b"part 3")


def test_without_checkpoints_a_failed_attempt_leaves_nothing_and_the_next_begins_from_scratch():
    job = Harness(checkpoints=None).start()
    job.say("a", wire.Drained(Attempt(1), SINKS[0], {SINK: [b"of a dead attempt"]}))
    job.fail()
    job.settle()
    job.idle("a", "b").ready()
    job.finish_all()
    job.pass_time(0)
    assert job.outcome is not None and job.outcome.state is JobState.FINISHED and job.sink.committed == {}
    assert [call[:3] for call in job.sink.calls] == [("recover", None, 1), ("recover", None, 2)]


def test_without_checkpoints_asking_for_one_says_what_to_do():
    with pytest.raises(ValueError, match=r"checkpoints=ps\.Checkpoints"):
        Harness(checkpoints=None).master.trigger()


# ---- opening ----
def test_a_directory_of_another_job_is_refused():
    files = MemoryFiles()
    other = Harness(files=files, job="other")
    other.master.start()
    other.settle()
    job = Harness(files=files)
    job.deploy("a", "b")
    job.settle()
    assert job.outcome is not None and job.outcome.state is JobState.FAILED
    assert "'other'" in job.outcome.reason and job.of(wire.Deploy) == []


def test_a_named_checkpoint_is_restored_instead_of_the_newest():
    job = Harness().start()
    old, _ = job.checkpoint(), job.checkpoint()
    again = Harness(files=job.files, restore_from=old).deploy("a", "b")
    restored = {a.restore.checkpoint for m in again.of(wire.Deploy) for a in m.assignments if a.restore}
    assert restored == {old}


def test_a_named_checkpoint_that_does_not_exist_fails_with_the_ones_that_do():
    job = Harness().start()
    done = job.checkpoint()
    again = Harness(files=job.files, restore_from=CheckpointId(99)).deploy("a", "b")
    again.settle()
    assert again.outcome is not None and "checkpoint 99" in again.outcome.reason and str(done) in again.outcome.reason


def test_prepared_output_of_a_sink_that_the_job_no_longer_has_is_never_dropped_silently():
    job = Harness().start()
    job.acknowledge_all(job.trigger_next())
    job.settle()
    other_sink = RecordingSink()
    again = Harness(files=job.files, sink=other_sink)
    specs = again.master._graph.chains[1].operators
    object.__setattr__(specs[0], "sink", None)
    again.deploy("a", "b")
    again.settle()
    assert again.outcome is not None and again.outcome.state is JobState.FAILED
    assert "sink 'sink'" in again.outcome.reason and "uid" in again.outcome.reason


def test_checkpoint_ids_go_on_above_everything_the_directory_has_seen():
    job = Harness().start()
    last = job.checkpoint()
    again = Harness(files=job.files).start()
    assert again.trigger_next() > last


def test_too_few_workers_end_the_job_with_the_numbers():
    job = Harness(runtime=RuntimeSettings(registration_timeout=120.0)).deploy("a")
    job.pass_time(121.0)
    assert job.outcome is not None and "needs 2 workers, only 1 registered" in job.outcome.reason


def test_a_worker_that_does_not_end_its_tasks_is_disconnected_and_replaced():
    job = Harness(runtime=RuntimeSettings(cancel_grace=5.0, heartbeat_timeout=10.0)).start()
    job.fail()
    job.settle()
    job.idle("a")
    job.pass_time(15.0)
    assert job.disconnected == ["b"]
    job.register("c")
    assert job.to(wire.Deploy)[-2:] == ["a", "c"]
