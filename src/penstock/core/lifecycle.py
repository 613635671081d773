"""The life of a job, from the first worker to its end.

Theory of operation
-------------------
::

    WAITING_FOR_WORKERS --conditions met--> DEPLOYING --all ready--> RUNNING --all finished--> COMMITTING --> FINISHED
        ^                                      |                       |
        +--all idle-- RESETTING <---failure----+-----------------------+

An attempt is one run of the whole graph. It is deployed when four conditions hold, in whatever order they come true:
every slot has a worker; all of those are idle; the restart delay is over; the attempt is *prepared* (the shell has
chosen the restore point and recovered the sinks, which may wait for the store). A failure - a task's, a lost
worker's, a deploy timeout, too many failed checkpoints - ends the attempt: its number is never used again, so that
whatever it still sends is recognised; the survivors are told to reset in place and keep their slots; the lost one's
slot goes to a spare or to the next worker that registers. Resetting, waiting for a replacement, the restart delay and
the preparation run side by side.

A loss while nothing runs (WAITING_FOR_WORKERS, RESETTING) is no failure: the slot is merely filled again. A worker that
does not become idle in time is disconnected and counts as lost. Once all subtasks have finished, only the last commits
are open, and losses do not matter any more. Terminal states (FINISHED, FAILED, CANCELLED, FENCED) are left by nothing.
"""

from __future__ import annotations

from enum import Enum, auto

from penstock.core.assignment import Slots
from penstock.core.ids import Attempt, WorkerId
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
from penstock.core.restarts import GiveUp, RestartStrategy
from penstock.core.settings import RuntimeSettings
from penstock.core.story import Story


class _Worker(Enum):
    IDLE = auto()
    DEPLOYED = auto()
    READY = auto()
    RESETTING = auto()


class JobLifecycle:
    def __init__(
        self, slots: int, settings: RuntimeSettings, restarts: RestartStrategy, story: Story | None = None
    ) -> None:
        self.story = story or Story()
        self.state = JobState.WAITING_FOR_WORKERS
        self.attempt = Attempt(1)
        """The one that runs or will run next."""
        self.restarts = 0
        self._settings, self._strategy = settings, restarts
        self._slots = Slots(slots)
        self._expected = slots
        self._workers: dict[WorkerId, _Worker] = {}
        """In the order of their registration."""
        self._prepared = False
        self._not_before = 0.0
        self._deploy_deadline: float | None = None
        self._reset_deadline: float | None = None
        self._registration_deadline: float | None = None

    # ---- events ----
    def begin(self, now: float) -> list[Order]:
        self._tell(now, "begin")
        self._not_before = now
        return [NeedWorkers(self._wanted), Prepare(self.attempt), *self._advance(now)]

    def registered(self, now: float, worker: WorkerId, host: str = "") -> list[Order]:
        self._tell(now, "registered", worker)
        if self.state.terminal:
            return [ShutdownWorker(worker, f"the job is {self.state}")]
        again = self.lost(now, worker, "it registered again") if worker in self._workers else []
        self._workers[worker] = _Worker.IDLE
        self._slots.locate(worker, host)
        return again + self._advance(now)

    def lost(self, now: float, worker: WorkerId, reason: str) -> list[Order]:
        if worker not in self._workers:
            return []
        self._tell(now, "lost", worker, reason)
        del self._workers[worker]
        slot = self._slots.release(worker)
        if self.state.terminal or self.state is JobState.COMMITTING:
            return []
        orders: list[Order] = [NeedWorkers(self._wanted)]
        if slot is not None and self._attempt_is_on:
            failure = Failure(f"worker {worker} (slot {slot}) was lost: {reason}")
            return orders + self._fail(now, failure)
        return orders + self._advance(now)

    def ready(self, now: float, worker: WorkerId, attempt: Attempt) -> list[Order]:
        """The worker has built and restored its subtasks."""
        deploying = self.state is JobState.DEPLOYING and attempt == self.attempt
        if not deploying or self._workers.get(worker) is not _Worker.DEPLOYED:
            return []
        self._tell(now, "ready", worker)
        self._workers[worker] = _Worker.READY
        holders = self._held()
        if any(self._workers[holder] is not _Worker.READY for holder in holders):
            return []
        self._enter(now, JobState.RUNNING)
        return [StartAttempt(self.attempt, holders)]

    def failed(self, now: float, attempt: Attempt, failure: Failure) -> list[Order]:
        """Something of the attempt failed; only the first failure of an attempt counts."""
        if attempt != self.attempt or not self._attempt_is_on:
            return []
        return self._fail(now, failure)

    def idle(self, now: float, worker: WorkerId, attempt: Attempt) -> list[Order]:
        """The worker has ended all tasks of `attempt` and older ones."""
        if self._workers.get(worker) is not _Worker.RESETTING or attempt < self.attempt - 1:
            return []
        self._tell(now, "idle", worker)
        self._workers[worker] = _Worker.IDLE
        return self._advance(now)

    def prepared(self, now: float, attempt: Attempt) -> list[Order]:
        if attempt != self.attempt or self.state.terminal:
            return []
        self._tell(now, "prepared", attempt)
        self._prepared = True
        return self._advance(now)

    def progressed(self, now: float) -> None:
        """A checkpoint completed."""
        self._strategy.on_progress(now)

    def expect(self, now: float, slots: int) -> list[Order]:
        """So many slots will be needed soon: their workers shall come while the job runs."""
        self._tell(now, "expect", slots)
        self._expected = slots
        return [NeedWorkers(self._wanted)]

    def rescale(self, now: float, slots: int) -> list[Order]:
        """Ends the running attempt, which has not failed; the next one has another number of slots. Survivors are reset
        in place, workers whose slots are gone leave."""
        assert self.state is JobState.RUNNING, f"a job that is {self.state} cannot be rescaled: {self.story}"
        self._tell(now, "rescale", slots)
        ended, self._expected = self.attempt, slots
        leaving = self._slots.resize(slots)
        for worker in leaving:
            del self._workers[worker]
        self.attempt, self._prepared, self._not_before = Attempt(ended + 1), False, now
        orders: list[Order] = [AttemptEnded(ended, None)]
        orders += [ShutdownWorker(worker, f"the job goes on with {slots} workers") for worker in leaving]
        return [*orders, NeedWorkers(self._wanted), *self._reset(now, ended)]

    def dismiss_surplus(self, now: float) -> list[Order]:
        """The workers that were expected are not needed after all."""
        self._expected = len(self._slots.holders)
        idle = [worker for worker in self._workers if worker not in self._slots.holders]
        surplus = idle[self._settings.spares :]
        for worker in surplus:
            del self._workers[worker]
        shutdowns = [ShutdownWorker(worker, "it is not needed any more") for worker in surplus]
        return [NeedWorkers(self._wanted), *shutdowns]

    def all_finished(self, now: float) -> None:
        """Every subtask has ended for good, now or before the restored checkpoint; only commits are left."""
        if not self.state.terminal:
            self._enter(now, JobState.COMMITTING)
            self._reset_deadline = self._registration_deadline = None

    def committed(self, now: float) -> list[Order]:
        """All output of the job is committed."""
        if self.state is not JobState.COMMITTING:
            return []
        return self._end(now, JobState.FINISHED, "all input was processed")

    def broke(self, now: float, failure: Failure) -> list[Order]:
        """Something failed that no restart can mend."""
        return self._end(now, JobState.FAILED, failure.reason, failure)

    def cancelled(self, now: float) -> list[Order]:
        return self._end(now, JobState.CANCELLED, "the job was cancelled")

    def fenced(self, now: float, reason: str) -> list[Order]:
        return self._end(now, JobState.FENCED, reason)

    def tick(self, now: float) -> list[Order]:
        if _due(self._deploy_deadline, now):
            return self._fail(now, Failure(self._late_workers()))
        if _due(self._registration_deadline, now):
            return self.broke(now, Failure(self._too_few_workers(), retriable=False))
        orders: list[Order] = []
        if _due(self._reset_deadline, now):
            reason = f"it did not end its tasks within {self._reset_timeout:g} s"
            for worker in [worker for worker, at in self._workers.items() if at is _Worker.RESETTING]:
                orders.append(DisconnectWorker(worker, reason))
                orders += self.lost(now, worker, reason)
        return orders + self._advance(now)

    def next_wake(self) -> float | None:
        times = [self._deploy_deadline, self._reset_deadline, self._registration_deadline]
        if self._only_delay_is_missing:
            times.append(self._not_before)
        return min((time for time in times if time is not None), default=None)

    # ---- views ----
    @property
    def workers(self) -> tuple[WorkerId, ...]:
        return tuple(self._workers)

    @property
    def holders(self) -> tuple[WorkerId | None, ...]:
        """The workers by slot."""
        return self._slots.holders

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        holders = [holder for holder in self._slots.holders if holder is not None]
        assert len(set(holders)) == len(holders), self.story
        assert set(holders) <= set(self._workers), self.story
        states = {self._workers[holder] for holder in holders}
        if self.state is JobState.RUNNING:
            assert states == {_Worker.READY} and not self._slots.vacant, self.story
        if self.state is JobState.DEPLOYING:
            assert _Worker.DEPLOYED in states and states <= {_Worker.DEPLOYED, _Worker.READY}, self.story
            assert not self._slots.vacant and self._deploy_deadline is not None, self.story
        if self.state is JobState.RESETTING:
            assert _Worker.RESETTING in states and self._reset_deadline is not None, self.story
        if self.state is JobState.WAITING_FOR_WORKERS:
            assert states <= {_Worker.IDLE}, self.story
        assert self._registration_deadline is None or (self._slots.vacant and self._between_attempts), self.story
        if self.state.terminal:
            assert self.next_wake() is None, self.story

    # ---- inside ----
    @property
    def _attempt_is_on(self) -> bool:
        return self.state in (JobState.DEPLOYING, JobState.RUNNING)

    @property
    def _between_attempts(self) -> bool:
        return self.state in (JobState.WAITING_FOR_WORKERS, JobState.RESETTING)

    @property
    def _wanted(self) -> int:
        return max(len(self._slots.holders), self._expected) + self._settings.spares

    @property
    def _reset_timeout(self) -> float:
        """A worker ends a stuck process itself after the grace; if it does not even do that, it is gone."""
        return self._settings.cancel_grace + self._settings.heartbeat_timeout

    @property
    def _only_delay_is_missing(self) -> bool:
        if not self._between_attempts or not self._prepared or self._slots.vacant:
            return False
        return all(self._workers[holder] is _Worker.IDLE for holder in self._held())

    def _held(self) -> tuple[WorkerId, ...]:
        return tuple(holder for holder in self._slots.holders if holder is not None)

    def _advance(self, now: float) -> list[Order]:
        """Between two attempts: fills slots and deploys as soon as all conditions hold."""
        if not self._between_attempts:
            return []
        self._slots.fill(worker for worker, at in self._workers.items() if at is _Worker.IDLE)
        if not self._slots.vacant:
            self._registration_deadline = None
        elif self._registration_deadline is None:
            self._registration_deadline = now + self._settings.registration_timeout
        if self.state is JobState.RESETTING and _Worker.RESETTING not in self._workers.values():
            self._reset_deadline = None
            self._enter(now, JobState.WAITING_FOR_WORKERS)
        if not self._only_delay_is_missing or now < self._not_before:
            return []
        self._enter(now, JobState.DEPLOYING)
        self._deploy_deadline = now + self._settings.deploy_timeout
        holders = self._held()
        self._workers.update(dict.fromkeys(holders, _Worker.DEPLOYED))
        return [DeployAttempt(self.attempt, holders)]

    def _fail(self, now: float, failure: Failure) -> list[Order]:
        self._tell(now, "attempt failed", self.attempt, failure.reason)
        if not failure.retriable:
            return self._end(now, JobState.FAILED, failure.reason, failure)
        decision = self._strategy.on_failure(now)
        if isinstance(decision, GiveUp):
            return self._end(now, JobState.FAILED, f"{failure.reason} (no restart: {decision.reason})", failure)
        failed = self.attempt
        self.attempt, self.restarts = Attempt(failed + 1), self.restarts + 1
        self._prepared, self._not_before = False, now + decision.seconds
        return [AttemptEnded(failed, failure), *self._reset(now, failed)]

    def _reset(self, now: float, ended: Attempt) -> list[Order]:
        """From the end of an attempt to the next: all that hold slots start over."""
        survivors = self._held()
        self._enter(now, JobState.RESETTING)
        self._reset_deadline = now + self._reset_timeout
        self._workers.update(dict.fromkeys(survivors, _Worker.RESETTING))
        resets = [ResetWorker(worker, ended) for worker in survivors]
        return [*resets, Prepare(self.attempt), *self._advance(now)]

    def _end(self, now: float, state: JobState, reason: str, failure: Failure | None = None) -> list[Order]:
        if self.state.terminal:
            return []
        ended: list[Order] = [AttemptEnded(self.attempt, failure)] if self._attempt_is_on else []
        self._enter(now, state)
        self._reset_deadline = self._registration_deadline = None
        shutdowns = [ShutdownWorker(worker, reason) for worker in self._workers]
        return [*ended, *shutdowns, JobEnded(state, reason, failure)]

    def _enter(self, now: float, state: JobState) -> None:
        self._tell(now, "state", f"{self.state} -> {state}", f"attempt {self.attempt}")
        self.state = state
        self._deploy_deadline = None

    def _late_workers(self) -> str:
        late = [str(worker) for worker in self._held() if self._workers[worker] is not _Worker.READY]
        return f"not ready within {self._settings.deploy_timeout:g} s (deploy_timeout): worker {', '.join(late)}"

    def _too_few_workers(self) -> str:
        needed = len(self._slots.holders)
        return (
            f"the job needs {needed} workers, only {needed - self._slots.vacant} registered within "
            f"{self._settings.registration_timeout:g} s (registration_timeout). Does the cluster offer {needed} free "
            "slots, and can its workers reach the driver's host and port?"
        )

    def _tell(self, now: float, event: str, *details: object) -> None:
        self.story.tell(now, event, *details)


def _due(deadline: float | None, now: float) -> bool:
    return deadline is not None and deadline <= now
