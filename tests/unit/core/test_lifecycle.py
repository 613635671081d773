"""The life of a job: workers, attempts, failures, ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import Attempt, WorkerId
from penstock.core.lifecycle import JobLifecycle
from penstock.core.orders import (
    AttemptEnded,
    DeployAttempt,
    DisconnectWorker,
    Failure,
    JobEnded,
    JobState,
    NeedWorkers,
    Order,
    Prepare,
    ResetWorker,
    ShutdownWorker,
    StartAttempt,
)
from penstock.core.restarts import ExponentialDelay, FixedDelay, NoRestart, RestartSettings
from penstock.core.settings import RuntimeSettings

BOOM = Failure("boom")
THREE_AT_ONCE = FixedDelay(attempts=3, delay=0.0)


class Drive:
    """A lifecycle of two slots with a clock of its own."""

    def __init__(self, restarts: RestartSettings = THREE_AT_ONCE, **settings: Any) -> None:
        self.now = 10.0
        self.job = JobLifecycle(2, RuntimeSettings(**settings), restarts.strategy())
        self.did: list[Order] = []
        self.event("begin")

    def event(self, name: str, *arguments: Any) -> Drive:
        self.did = getattr(self.job, name)(self.now, *arguments) or []
        self.job.validate()
        return self

    def got(self, kind: type) -> list[Any]:
        return [instruction for instruction in self.did if isinstance(instruction, kind)]

    def later(self, seconds: float) -> Drive:
        self.now += seconds
        return self.event("tick")

    def register(self, *workers: str) -> Drive:
        for worker in workers:
            self.event("registered", WorkerId(worker))
        return self

    def ready(self, *workers: str) -> Drive:
        for worker in workers:
            self.event("ready", WorkerId(worker), self.job.attempt)
        return self

    def idle(self, *workers: str) -> Drive:
        for worker in workers:
            self.event("idle", WorkerId(worker), Attempt(self.job.attempt - 1))
        return self

    def prepared(self) -> Drive:
        return self.event("prepared", self.job.attempt)

    def lost(self, worker: str) -> Drive:
        return self.event("lost", WorkerId(worker), "killed")

    def failed(self, failure: Failure = BOOM) -> Drive:
        return self.event("failed", self.job.attempt, failure)

    def running(self, *workers: str) -> Drive:
        names = workers or ("a", "b")
        self.prepared().register(*names).ready(*names[:2])
        assert self.job.state is JobState.RUNNING
        return self


# ---- towards running ----
def test_a_job_begins_by_asking_for_workers_and_preparing_its_first_attempt():
    assert Drive(spares=1).did == [NeedWorkers(3), Prepare(Attempt(1))]


def test_it_deploys_when_every_slot_has_a_worker_and_the_attempt_is_prepared_in_any_order():
    drive = Drive().prepared().register("a")
    assert drive.did == []
    assert drive.register("b").did == [DeployAttempt(Attempt(1), (WorkerId("a"), WorkerId("b")))]
    drive = Drive().register("a", "b")
    assert drive.did == []
    assert drive.prepared().did == [DeployAttempt(Attempt(1), (WorkerId("a"), WorkerId("b")))]


def test_it_starts_when_all_are_ready():
    drive = Drive().prepared().register("a", "b").ready("b")
    assert drive.did == [] and drive.job.state is JobState.DEPLOYING
    assert drive.ready("a").did == [StartAttempt(Attempt(1), (WorkerId("a"), WorkerId("b")))]


def test_ready_twice_or_from_a_spare_or_of_another_attempt_means_nothing():
    drive = Drive().prepared().register("a", "b", "spare").ready("a").ready("a").ready("spare")
    drive.event("ready", WorkerId("b"), Attempt(7))
    assert drive.job.state is JobState.DEPLOYING


def test_workers_beyond_the_slots_wait_as_spares():
    drive = Drive().running("a", "b", "spare")
    assert drive.job.holders == ("a", "b") and drive.job.workers == ("a", "b", "spare")


# ---- failures ----
def test_a_failure_ends_the_attempt_resets_the_survivors_and_prepares_the_next():
    drive = Drive().running().failed()
    assert drive.did == [
        AttemptEnded(Attempt(1), BOOM),
        ResetWorker(WorkerId("a"), Attempt(1)),
        ResetWorker(WorkerId("b"), Attempt(1)),
        Prepare(Attempt(2)),
    ]
    assert drive.job.state is JobState.RESETTING


def test_only_the_first_failure_of_an_attempt_counts():
    drive = Drive().running().failed()
    assert drive.event("failed", Attempt(1), BOOM).did == [] and drive.job.restarts == 1


def test_the_next_attempt_is_deployed_when_all_survivors_are_idle_on_their_old_slots():
    drive = Drive().running().failed().prepared().idle("b")
    assert drive.did == [] and drive.job.state is JobState.RESETTING
    assert drive.idle("a").did == [DeployAttempt(Attempt(2), (WorkerId("a"), WorkerId("b")))]


def test_idle_of_an_older_attempt_or_from_an_idle_worker_means_nothing():
    drive = Drive().running().failed().prepared()
    drive.event("idle", WorkerId("a"), Attempt(0))
    assert drive.job.state is JobState.RESETTING
    drive.idle("a").idle("a")
    assert drive.did == [] and drive.job.state is JobState.RESETTING


def test_resetting_waiting_and_preparing_run_side_by_side():
    drive = Drive().running().lost("a")
    assert drive.got(ResetWorker) == [ResetWorker(WorkerId("b"), Attempt(1))]
    drive.register("c").idle("b")
    assert drive.did == [] and drive.job.state is JobState.WAITING_FOR_WORKERS
    assert drive.prepared().did == [DeployAttempt(Attempt(2), (WorkerId("c"), WorkerId("b")))]


def test_a_spare_takes_the_lost_workers_slot_at_once():
    drive = Drive().running("a", "b", "spare").lost("b").prepared().idle("a")
    assert drive.did == [DeployAttempt(Attempt(2), (WorkerId("a"), WorkerId("spare")))]


def test_the_loss_of_a_spare_is_no_failure():
    drive = Drive().running("a", "b", "spare").lost("spare")
    assert drive.did == [NeedWorkers(2)] and drive.job.state is JobState.RUNNING


def test_all_slots_lost_is_one_failure_and_all_slots_to_fill():
    drive = Drive().running().lost("a").lost("b").prepared()
    assert drive.job.state is JobState.WAITING_FOR_WORKERS and drive.job.restarts == 1
    assert drive.register("c", "d").got(DeployAttempt)[0].workers == ("c", "d")


def test_a_worker_that_registers_again_under_its_name_is_a_loss_and_a_newcomer():
    drive = Drive().running().register("a")
    assert drive.got(AttemptEnded) and drive.job.restarts == 1
    assert drive.prepared().idle("b").got(DeployAttempt)[0].workers == ("a", "b")


def test_a_worker_lost_while_deploying_fails_that_attempt():
    drive = Drive().prepared().register("a", "b").ready("a").lost("a")
    assert drive.got(AttemptEnded)[0].attempt == 1 and "a (slot 0)" in drive.got(AttemptEnded)[0].failure.reason


def test_the_restart_delay_is_waited_for():
    drive = Drive(restarts=FixedDelay(attempts=1, delay=5.0)).running().failed().prepared().idle("a", "b")
    assert drive.did == [] and drive.job.next_wake() == drive.now + 5.0
    assert drive.later(5.0).got(DeployAttempt)


def test_when_the_strategy_gives_up_the_job_fails_with_both_reasons():
    drive = Drive(restarts=NoRestart()).running().failed()
    ended = drive.got(JobEnded)[0]
    assert ended.state is JobState.FAILED and ended.failure == BOOM
    assert "boom" in ended.reason and "none" in ended.reason
    assert [shutdown.worker for shutdown in drive.got(ShutdownWorker)] == ["a", "b"]


def test_an_error_that_would_happen_again_is_not_tried_again():
    drive = Drive().running().failed(Failure("corrupt", retriable=False))
    assert drive.got(JobEnded)[0].state is JobState.FAILED and drive.job.restarts == 0


def test_progress_is_passed_on_to_the_strategy():
    drive = Drive(restarts=ExponentialDelay(attempts=1)).running()
    for _ in range(3):
        drive.failed().prepared().idle("a", "b").ready("a", "b")
        drive.event("progressed")
        assert drive.job.state is JobState.RUNNING


# ---- deadlines ----
def test_workers_that_are_not_ready_in_time_fail_the_attempt_by_name():
    drive = Drive(deploy_timeout=60.0).prepared().register("a", "b").ready("a").later(60.0)
    assert drive.got(AttemptEnded)[0].failure.reason.endswith("worker b")


def test_a_worker_that_does_not_become_idle_is_disconnected_and_its_slot_filled_again():
    drive = Drive(cancel_grace=5.0, heartbeat_timeout=10.0).running("a", "b", "spare").failed().prepared().idle("a")
    drive.later(15.0)
    assert [dismissed.worker for dismissed in drive.got(DisconnectWorker)] == ["b"]
    assert drive.got(DeployAttempt)[0].workers == ("a", "spare")


def test_missing_workers_end_the_job_after_the_registration_timeout():
    drive = Drive(registration_timeout=120.0).register("a").later(120.0)
    assert "needs 2 workers, only 1 registered within 120 s" in drive.got(JobEnded)[0].reason


def test_the_registration_timeout_counts_anew_for_a_replacement():
    drive = Drive(registration_timeout=120.0).running().later(1000.0).lost("a").prepared().idle("b")
    drive.later(119.0)
    assert drive.job.state is JobState.WAITING_FOR_WORKERS
    assert drive.register("c").got(DeployAttempt)


# ---- ends ----
def test_a_job_is_finished_only_when_its_output_is_committed():
    drive = Drive().running()
    drive.event("committed")
    assert drive.did == [] and drive.job.state is JobState.RUNNING
    drive.event("all_finished")
    assert drive.job.state is JobState.COMMITTING
    drive.event("committed")
    assert drive.got(JobEnded)[0].state is JobState.FINISHED


def test_losses_and_failures_after_all_finished_do_not_matter():
    drive = Drive().running().event("all_finished")
    assert drive.lost("a").did == [] and drive.failed().did == [] and drive.job.state is JobState.COMMITTING


def test_a_job_with_nothing_left_to_run_needs_no_workers():
    drive = Drive(registration_timeout=120.0).event("all_finished").later(1000.0)
    assert drive.did == [] and drive.event("committed").got(JobEnded)[0].state is JobState.FINISHED


def test_nothing_leaves_a_terminal_state():
    drive = Drive().running().event("cancelled")
    assert drive.got(AttemptEnded) == [AttemptEnded(Attempt(1), None)]
    for event in ("cancelled", "committed", "tick", "all_finished"):
        assert drive.event(event).did == []
    drive.event("fenced", "another driver")
    drive.failed().lost("a").lost("a").prepared()
    assert drive.did == [] and drive.job.state is JobState.CANCELLED and drive.job.next_wake() is None


def test_a_worker_that_comes_after_the_end_is_shut_down():
    assert Drive().event("fenced", "another driver").register("late").got(ShutdownWorker)[0].worker == "late"


# ---- any order of events ----
WORKERS = ["a", "b", "c", "d"]
EVENTS: list[Callable[[Drive, str], Drive]] = [
    lambda drive, worker: drive.register(worker) if worker not in drive.job.workers else drive,
    lambda drive, worker: drive.lost(worker),
    lambda drive, worker: drive.ready(worker),
    lambda drive, worker: drive.idle(worker),
    lambda drive, worker: drive.prepared(),
    lambda drive, worker: drive.failed(),
    lambda drive, worker: drive.later(7.0),
]


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from(WORKERS)), max_size=60))
def test_whatever_happens_attempts_rise_and_only_idle_workers_are_deployed(story):
    drive = Drive(restarts=FixedDelay(attempts=1000, delay=1.0))
    deployed: list[int] = []
    busy: set[str] = set()
    for event, worker in story:
        event(drive, worker)
        for instruction in drive.did:
            if isinstance(instruction, DeployAttempt):
                assert not busy & set(instruction.workers), drive.job.story
                deployed.append(instruction.attempt)
                busy |= set(instruction.workers)
            elif isinstance(instruction, StartAttempt):
                assert instruction.attempt == deployed[-1] and set(instruction.workers) <= busy
        busy &= {w for w in drive.job.workers if drive.job._workers[w].name != "IDLE"}
    assert deployed == sorted(set(deployed))


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from(WORKERS)), max_size=40))
def test_from_wherever_it_got_to_the_job_runs_again_once_workers_behave(story):
    drive = Drive(restarts=FixedDelay(attempts=1000, delay=1.0), registration_timeout=1e9)
    for event, worker in story:
        event(drive, worker)
    drive.prepared().register(*(worker for worker in WORKERS if worker not in drive.job.workers))
    drive.idle(*WORKERS).prepared().later(1.0).ready(*WORKERS)
    assert drive.job.state is JobState.RUNNING, drive.job.story


def test_a_job_that_was_cancelled_while_deploying_does_not_start_when_its_workers_are_ready():
    drive = Drive().register("a", "b").event("prepared", Attempt(1)).event("cancelled")
    assert drive.ready("a", "b").job.state is JobState.CANCELLED
    assert not drive.got(StartAttempt)
