"""A running job that changes its size, and one that ends with its last checkpoint: what the deciders say."""

from __future__ import annotations

from tests.unit.core.test_coordinator import TOPOLOGY, Drive

from penstock.core import orders
from penstock.core.assignment import Slots
from penstock.core.barrier import Mode, Purpose
from penstock.core.ids import Attempt, WorkerId
from penstock.core.instructions import SendAbort, SendTrigger
from penstock.core.lifecycle import JobLifecycle
from penstock.core.orders import JobState
from penstock.core.restarts import FixedDelay
from penstock.core.settings import RuntimeSettings

A, B, C = (WorkerId(name) for name in "abc")


def running(*workers: WorkerId) -> JobLifecycle:
    job = JobLifecycle(len(workers), RuntimeSettings(), FixedDelay(attempts=1, delay=0).strategy())
    job.begin(0.0)
    job.prepared(0.0, Attempt(1))
    for worker in workers:
        job.registered(0.0, worker)
    for worker in workers:
        job.ready(0.0, worker, Attempt(1))
    assert job.state is JobState.RUNNING
    return job


def test_more_slots_are_added_at_the_end_and_the_highest_ones_go_first() -> None:
    slots = Slots(2)
    slots.fill([A, B])
    assert slots.resize(3) == [] and list(slots.holders) == [A, B, None]
    assert slots.resize(1) == [B] and list(slots.holders) == [A]


def test_workers_for_a_larger_job_come_while_it_runs() -> None:
    job = running(A, B)
    assert job.expect(1.0, 3) == [orders.NeedWorkers(3)]
    assert job.registered(2.0, C) == [] and job.state is JobState.RUNNING
    told = job.rescale(3.0, 3)
    assert told[0] == orders.AttemptEnded(Attempt(1), None)
    assert [i.worker for i in told if isinstance(i, orders.ResetWorker)] == [A, B]
    job.prepared(3.0, Attempt(2))
    job.idle(3.0, A, Attempt(1))
    assert job.idle(3.0, B, Attempt(1)) == [orders.DeployAttempt(Attempt(2), (A, B, C))]
    assert job.restarts == 0
    job.validate()


def test_workers_of_slots_that_are_gone_leave() -> None:
    job = running(A, B)
    told = job.rescale(1.0, 1)
    assert [i.worker for i in told if isinstance(i, orders.ShutdownWorker)] == [B]
    assert job.lost(2.0, B, "it left") == []
    job.prepared(2.0, Attempt(2))
    assert job.idle(2.0, A, Attempt(1)) == [orders.DeployAttempt(Attempt(2), (A,))]
    job.validate()


def test_workers_that_are_not_needed_after_all_are_dismissed() -> None:
    job = running(A, B)
    job.expect(1.0, 3)
    job.registered(2.0, C)
    told = job.dismiss_surplus(3.0)
    assert told[0] == orders.NeedWorkers(2)
    assert [i.worker for i in told if isinstance(i, orders.ShutdownWorker)] == [C]
    assert job.state is JobState.RUNNING and job.workers == (A, B)


def test_nothing_starts_after_the_last_checkpoint_until_the_job_goes_on_after_all() -> None:
    drive = Drive(every=10.0)
    drive.event("request", Purpose.SAVEPOINT, True)
    last = drive.barrier
    assert (last.purpose, last.mode) == (Purpose.SAVEPOINT, Mode.ALIGNED)
    drive.ack(last.checkpoint)
    drive.event("record_written", last.checkpoint)
    drive.later(100.0)
    assert len(drive.ever(SendTrigger)) == 1
    drive.event("resume")
    assert len(drive.ever(SendTrigger)) == 2


def test_a_savepoint_may_be_aligned_whatever_the_settings_say() -> None:
    drive = Drive(mode=Mode.UNALIGNED)
    drive.event("request", Purpose.SAVEPOINT, False, True)
    assert drive.barrier.mode is Mode.ALIGNED


def test_a_job_that_ends_together_takes_no_checkpoint_but_the_final_one() -> None:
    drive = Drive(every=10.0)
    under_way = drive.trigger()
    drive.event("end_together")
    assert [abort.checkpoint for abort in drive.got(SendAbort)] == [under_way]
    drive.later(100.0)
    assert len(drive.ever(SendTrigger)) == 1
    for subtask in TOPOLOGY.subtasks:
        drive.event("drained", drive.attempt, subtask)
    assert len(drive.ever(SendTrigger)) == 2


def test_the_final_checkpoint_of_a_job_that_ends_together_is_written_as_the_savepoint_that_it_becomes() -> None:
    """So that it can be read without RocksDB, and divided into more key groups."""
    purposes = []
    for together in (True, False):
        drive = Drive(every=1000.0)
        if together:
            drive.event("end_together")
        for subtask in TOPOLOGY.subtasks:
            drive.event("drained", drive.attempt, subtask)
        purposes.append(drive.barrier.purpose)
    assert purposes == [Purpose.SAVEPOINT, Purpose.FINAL]
