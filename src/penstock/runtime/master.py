"""The master: the shell that runs a job by executing what the deciders in `core/` say.

Theory of operation
-------------------
Two machines decide, the master does. `JobLifecycle` says who works and which attempt runs; `CheckpointCoordinator` says
which checkpoints are taken. Everything that happens outside is a method call here (a message, a lost worker, the end of
background work, the clock); it becomes an event of a machine, and the machine's instructions are executed at once. The
master is single-threaded, never blocks and owns no thread: the store and the committers are reached only through
`MasterPorts.background`. The simulation drives this same class.

What the master adds to the machines is order between things that only it sees together:

- An attempt is prepared only when the outcome of every record is known and every commit is done; then its restore
  point is the newest complete checkpoint, and `Committer.recover` gets exactly that.
- A job whose restored checkpoint covers the end of every subtask has nothing left to run: it ends after the commit.
- FINISHED comes after the last commit and the last cleaning. Other ends wait for commits that are under way, but not
  longer than `cancel_grace`. Once fenced, nothing more is committed.

After every call the caller asks `tick()` when the master wants to be called next.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from penstock.core import orders
from penstock.core.barrier import Purpose
from penstock.core.drift import SourceAlignment
from penstock.core.ids import Attempt, CheckpointId, Generation, SubtaskId, WorkerId
from penstock.core.lifecycle import JobLifecycle
from penstock.core.orders import Failure, JobState
from penstock.core.record import CheckpointRecord
from penstock.core.restarts import RestartSettings
from penstock.core.restore import SubtaskRestore, as_restored, plan_restore
from penstock.core.settings import CheckpointSettings, RuntimeSettings
from penstock.core.statistics import CheckpointStatistics
from penstock.core.store import Fenced
from penstock.graph.diff import restorable
from penstock.graph.job import JobGraph
from penstock.graph.record import graph_record, topology
from penstock.operators.base import Clock
from penstock.runtime.checkpointing import Answer, Checkpointing
from penstock.runtime.commits import Commits
from penstock.runtime.control import messages as wire
from penstock.runtime.control.messages import ErrorReport, ToMaster, ToWorker
from penstock.runtime.deployment import deploy_messages
from penstock.runtime.ending import Ending
from penstock.runtime.masterports import MasterPorts
from penstock.runtime.opening import Opened, RestoreElsewhere, open_job
from penstock.runtime.outcome import Incident, JobOutcome, JobStatus, RequestOutcome, report_of
from penstock.runtime.rescaling import RescaleOutcome, Rescaling
from penstock.runtime.savepoints import SavepointRequest, Savepoints
from penstock.runtime.unprotected import LAST_COMMIT, Unprotected

if TYPE_CHECKING:
    from penstock.store.checkpoints import CheckpointStore

__all__ = ["Master", "MasterPorts"]

REMEMBERED_INCIDENTS = 100


log = logging.getLogger(__name__)
T = TypeVar("T")


class Master:
    def __init__(
        self,
        graph: JobGraph,
        checkpoints: CheckpointSettings | None,
        runtime: RuntimeSettings,
        restarts: RestartSettings,
        store: CheckpointStore | None,
        ports: MasterPorts,
        clock: Clock,
        restore_from: CheckpointId | RestoreElsewhere | None = None,
    ) -> None:
        if (checkpoints is None) != (store is None):
            raise ValueError("checkpoint settings and a checkpoint store go together: give both or none")
        self._graph, self.settings, self._runtime = graph, checkpoints, runtime
        self._store, self._ports, self._clock, self._restore_from = store, ports, clock, restore_from
        self.running_graph, self._topology = graph_record(graph), topology(graph)
        self.lifecycle = JobLifecycle(graph.slots, runtime, restarts.strategy())
        self._unprotected = Unprotected(self._topology)
        self._checkpointing: Checkpointing | None = None
        """None until the store's directory is claimed, and in a job without checkpoints."""
        self._commits = Commits({}, self._background, clock, self.broke)
        self._generation = Generation(clock.wall_ms())
        """Without a store, the time of the start tells this run's leftovers from those of earlier ones."""
        self._opening = True
        self.restore_point: CheckpointRecord | None = None
        self._restores: Mapping[SubtaskId, SubtaskRestore] = {}
        self._to_prepare: Attempt | None = None
        self._addresses: dict[WorkerId, wire.Address] = {}
        self._figures: dict[WorkerId, wire.Figures] = {}
        self._alignment = SourceAlignment()
        self._savepoints: Savepoints | None = None
        self._early_requests: list[tuple[Callable[[Checkpointing, Savepoints], None], Answer]] = []
        self._draining = False
        self._rescaling = Rescaling(self, clock, runtime.registration_timeout)
        self._parallelism: int | None = None
        """At which the job runs since it was rescaled."""
        self._last_failure: ErrorReport | None = None
        self._incidents: deque[Incident] = deque(maxlen=REMEMBERED_INCIDENTS)
        self._ending: Ending | None = None
        self._closed = False

    # ---- the job, from outside ----
    def start(self) -> None:
        """Claims the store, loads what to restore, recovers the sinks; meanwhile workers register."""
        self._background(lambda: open_job(self._graph, self._store, self._restore_from), self._opened)
        self.execute(self.lifecycle.begin(self._clock.now()))

    def trigger(self, purpose: Purpose = Purpose.CHECKPOINT, then: Answer = lambda outcome: None) -> None:
        """Asks for a checkpoint; `then` hears once what became of it. A request that waits outlives restarts."""
        self._when_open(lambda checkpointing, _: checkpointing.trigger(purpose, then), then)

    def savepoint(self, request: SavepointRequest) -> None:
        """Takes a savepoint; `request.then` hears once what became of it."""
        self._when_open(lambda _, savepoints: savepoints.take(request), request.then)

    def _when_open(self, ask: Callable[[Checkpointing, Savepoints], None], then: Answer) -> None:
        if self._store is None:
            raise ValueError("the job runs without checkpoints: give its pipeline checkpoints=ps.Checkpoints(...)")
        if self._ending is not None:
            then(RequestOutcome(None, f"the job has ended: {self._ending.outcome.reason}"))
        elif self._checkpointing is None or self._savepoints is None:
            self._early_requests.append((ask, then))
        else:
            ask(self._checkpointing, self._savepoints)

    def drain(self, savepoint: SavepointRequest | None = None) -> None:
        """Sources stop where they are, everything is processed, and the job finishes; with a savepoint of its end."""
        if savepoint is not None:
            self._when_open(lambda _, savepoints: savepoints.take_at_end(savepoint), savepoint.then)
        self._draining = True
        if self.lifecycle.state is JobState.RUNNING:
            self.to_all(wire.Drain(self.lifecycle.attempt))

    def rescale(self, parallelism: int, then: Callable[[RescaleOutcome], None]) -> None:
        """Goes on at another parallelism, from a fresh checkpoint; `then` hears once what became of it."""
        if self._store is None:
            raise ValueError("the job runs without checkpoints: it would begin from scratch")
        if self._ending is not None:
            return then(RescaleOutcome(parallelism, reason=f"the job has ended: {self._ending.outcome.reason}"))
        self._rescaling.begin(parallelism, self._scaled(parallelism), then)

    def run_from_now_on(self, graph: JobGraph, parallelism: int) -> None:
        self._graph, self._parallelism = graph, parallelism
        self.running_graph, self._topology = graph_record(graph), topology(graph)

    def slots_at(self, parallelism: int) -> int:
        """How many slots the job would need. Raises what is wrong with the number."""
        return self._scaled(parallelism).slots

    def _scaled(self, parallelism: int) -> JobGraph:
        if self._graph.scaled is None:
            raise ValueError("this graph was not built from a pipeline: its parallelism is fixed")
        return self._graph.scaled(parallelism)

    def cancel(self) -> None:
        self.execute(self.lifecycle.cancelled(self._clock.now()))

    def configure(self, settings: CheckpointSettings) -> None:
        """Changes how checkpoints are taken from now on."""
        if self._store is None:
            raise ValueError("the job runs without checkpoints: there is nothing to configure")
        self._store.retain(settings.keep)
        self.settings = settings
        if self._checkpointing is not None:
            self._checkpointing.configure(settings)
        self._settle()

    def status(self) -> JobStatus:
        coordinator = self._checkpointing.coordinator if self._checkpointing else None
        holders = self.lifecycle.holders
        return JobStatus(
            state=self.lifecycle.state,
            attempt=self.lifecycle.attempt,
            restarts=self.lifecycle.restarts,
            workers=holders,
            spares=tuple(worker for worker in self.lifecycle.workers if worker not in holders),
            newest_checkpoint=coordinator.newest if coordinator else None,
            completed_checkpoints=coordinator.history.completed if coordinator else 0,
            failed_checkpoints=coordinator.history.failed if coordinator else 0,
            last_failure=self._last_failure,
        )

    def incidents(self) -> list[Incident]:
        """The last failures of this driver's life, oldest first."""
        return list(self._incidents)

    def statistics(self) -> list[CheckpointStatistics]:
        """Of the checkpoints of this driver's life, oldest first."""
        return self._checkpointing.statistics() if self._checkpointing else []

    def figures(self) -> Mapping[WorkerId, wire.Figures]:
        """What each living worker last said about its throughput."""
        return self._figures

    def validate(self) -> None:
        """Raises AssertionError if an invariant of the deciders does not hold."""
        self.lifecycle.validate()
        if self._checkpointing:
            self._checkpointing.coordinator.validate()

    def story(self) -> list[str]:
        """What the deciders went through lately, for people."""
        coordinator = self._checkpointing.coordinator.story.lines() if self._checkpointing else []
        return sorted([*self.lifecycle.story.lines(), *coordinator])

    # ---- workers ----
    def registered(self, worker: WorkerId, message: wire.Register) -> None:
        self._addresses[worker] = message.address
        self.execute(self.lifecycle.registered(self._clock.now(), worker, message.address.host_key))

    def lost(self, worker: WorkerId, reason: str) -> None:
        self._addresses.pop(worker, None)
        self._figures.pop(worker, None)
        self.execute(self.lifecycle.lost(self._clock.now(), worker, reason))

    def received(self, worker: WorkerId, message: ToMaster) -> None:
        now = self._clock.now()
        match message:
            case wire.Acknowledge() | wire.Decline() | wire.Drained() | wire.Finished():
                self._protection.received(message)
                self._settle()
            case wire.Ready(attempt):
                self._account_for(message)
                self.execute(self.lifecycle.ready(now, worker, attempt))
            case wire.Idle(attempt):
                self.execute(self.lifecycle.idle(now, worker, attempt))
            case wire.TaskFailed(attempt, subtask, error):
                where = f" ({error.operator or error.uid})" if error.operator or error.uid else ""
                failure = Failure(f"subtask {subtask}{where} failed: {error.message}", error.retriable, error)
                self.execute(self.lifecycle.failed(now, attempt, failure))
            case wire.Figures():
                self._figures[worker] = message
                self._align_sources(worker, message)
            case wire.Register():
                self.registered(worker, message)

    def _align_sources(self, worker: WorkerId, message: wire.Figures) -> None:
        if message.attempt == self.lifecycle.attempt:
            slowest = self._alignment.report(message.attempt, worker, message.times)
            if slowest is not None:
                self.to_all(wire.AlignSources(message.attempt, slowest))

    def _account_for(self, ready: wire.Ready) -> None:
        """Where the state of the next attempt came from."""
        if self._incidents and self._incidents[-1].restarted_ms is None and ready.attempt == self.lifecycle.attempt:
            last = self._incidents[-1]
            self._incidents[-1] = replace(
                last,
                from_store=last.from_store + ready.from_store,
                from_copies=last.from_copies + ready.from_copies,
            )

    def tick(self) -> float | None:
        """Does what is due; returns when (`clock.now()`) it wants to be called again, None: only after another call."""
        if ordered := self.lifecycle.tick(self._clock.now()):
            self.execute(ordered)
        if self._checkpointing and self._ending is None:
            self._checkpointing.tick()
        self._commits.tick()
        self._settle()
        if self._closed:
            return None
        parts = [self.lifecycle, self._checkpointing, self._commits, self._rescaling]
        wakes = [self._ending.deadline if self._ending else None, *(part.next_wake() for part in parts if part)]
        return min((wake for wake in wakes if wake is not None), default=None)

    # ---- opening ----
    def _opened(self, result: Opened | BaseException) -> None:
        self._opening = False
        if isinstance(result, Fenced):
            return self.fenced(str(result))
        if isinstance(result, BaseException):
            return self.broke(report_of(result, "the job could not be opened", retriable=False))
        claim = result.claim
        self._commits = Commits(result.committers, self._background, self._clock, self.broke)
        if claim is not None:
            assert self._store is not None and self.settings is not None
            self._generation, self.restore_point = claim.generation, claim.newest
            self._checkpointing = Checkpointing(
                self._store,
                self.settings,
                claim,
                self.running_graph,
                self._topology,
                self._background,
                self._clock,
                self._runtime.clean_every,
                self,
            )
            self._savepoints = Savepoints(self._store, self._checkpointing, self._background, self.cancel)
            early, self._early_requests = self._early_requests, []
            for ask, _ in early:
                ask(self._checkpointing, self._savepoints)

    # ---- what checkpoints and commits bring about ----
    def completed(self, record: CheckpointRecord) -> None:
        """The checkpoint is complete: restore from it from now on, commit its output."""
        self.restore_point = record
        self.lifecycle.progressed(self._clock.now())
        if self.lifecycle.state is not JobState.FENCED:
            self._commits.commit(record.checkpoint, record.committables, lambda: self._committed(record.checkpoint))

    def _committed(self, checkpoint: CheckpointId) -> None:
        if self._checkpointing and self._savepoints:
            self._checkpointing.committed(checkpoint)
            self._savepoints.committed(checkpoint)

    def attempt_failed(self, attempt: Attempt, reason: str) -> None:
        failure = Failure(reason, report=ErrorReport(reason))
        self.execute(self.lifecycle.failed(self._clock.now(), attempt, failure))

    def fenced(self, reason: str) -> None:
        self.execute(self.lifecycle.fenced(self._clock.now(), reason))

    def broke(self, report: ErrorReport) -> None:
        """Something failed that no restart can mend."""
        self.execute(self.lifecycle.broke(self._clock.now(), Failure(report.message, False, report)))

    # ---- executing the lifecycle's orders ----
    def execute(self, ordered: Iterable[orders.Order]) -> None:
        for order in ordered:
            match order:
                case orders.NeedWorkers(count):
                    self._ports.need_workers(count)
                case orders.Prepare(attempt):
                    self._to_prepare = attempt
                case orders.DeployAttempt(attempt, workers):
                    self._deploy(attempt, workers)
                case orders.StartAttempt(attempt, _):
                    self._started(attempt)
                case orders.AttemptEnded(attempt, failure):
                    self._attempt_ended(attempt, failure)
                case orders.ResetWorker(worker, attempt):
                    self._ports.send(worker, wire.Reset(attempt))
                case orders.DisconnectWorker(worker, reason):
                    self._ports.disconnect(worker, reason)
                case orders.ShutdownWorker(worker, reason):
                    self._ports.send(worker, wire.Shutdown(reason))
                case orders.JobEnded(state, reason, failure):
                    self._job_ended(state, reason, failure)
        self._settle()

    def _deploy(self, attempt: Attempt, workers: tuple[WorkerId, ...]) -> None:
        addresses = {worker: self._addresses[worker] for worker in workers}
        now = self._clock.wall_ms()
        messages = deploy_messages(
            self._graph, attempt, self._generation, workers, addresses, self._restores, self._parallelism, now
        )
        for worker, message in messages.items():
            self._ports.send(worker, message)

    def _started(self, attempt: Attempt) -> None:
        log.info("attempt %d starts from %s", attempt, _origin(self.restore_point))
        if self._incidents and self._incidents[-1].restarted_ms is None:
            self._incidents[-1] = replace(self._incidents[-1], restarted_ms=self._clock.wall_ms())
        if self._draining:
            # First: what a source that had stopped left behind is not to be read by one that takes its place.
            self.to_all(wire.Drain(attempt))
        self.to_all(wire.Start(attempt))
        restored = self.restore_point and as_restored(self.restore_point, self._restores)
        self._protection.attempt_started(attempt, restored)
        self._rescaling.attempt_started(restored.checkpoint if restored else None)

    def _attempt_ended(self, attempt: Attempt, failure: Failure | None) -> None:
        if failure is not None:
            log.warning("attempt %d failed: %s", attempt, failure.reason)
            self._last_failure = _report(failure)
            self._incidents.append(Incident(attempt, failure.reason, self._clock.wall_ms()))
        self._protection.attempt_ended(attempt, failure)

    def _job_ended(self, state: JobState, reason: str, failure: Failure | None) -> None:
        log.info("the job is %s: %s", state, reason)
        outcome = JobOutcome(state, reason, _report(failure) if failure else None)
        self._ending = Ending(outcome, self._clock.now(), self._runtime.cancel_grace)
        if state is JobState.FENCED:
            self._commits.drop()
        if self._checkpointing:
            self._checkpointing.job_ended(reason)
        if self._savepoints:
            self._savepoints.job_ended(reason)
        self._rescaling.job_ended(reason)
        early, self._early_requests = self._early_requests, []
        for _, answer in early:
            answer(RequestOutcome(None, f"the job has ended: {reason}"))

    # ---- what has become possible ----
    @property
    def _protection(self) -> Checkpointing | Unprotected:
        return self._checkpointing or self._unprotected

    def _settle(self) -> None:
        """Called after everything that happens: takes the steps that wait for several things at once."""
        if self._closed:
            return
        if self._ending is not None:
            return self._finish_up(self._ending)
        if self._opening:
            return
        if self._checkpointing is not None:
            self._rescaling.advance(self._checkpointing)
        if self.lifecycle.state is JobState.RUNNING and self._protection.all_finished:
            self.lifecycle.all_finished(self._clock.now())
            if self._checkpointing is None:
                self._commits.commit(LAST_COMMIT, self._unprotected.last_output(), lambda: None)
        if self._protection.busy or not self._commits.idle:
            return
        if self._to_prepare is not None:
            self._prepare(self._to_prepare)
        elif self.lifecycle.state is JobState.COMMITTING:
            if self._savepoints and self.restore_point:
                self._savepoints.all_committed(self.restore_point.checkpoint)
            if not (self._savepoints and self._savepoints.busy):
                self.execute(self.lifecycle.committed(self._clock.now()))

    def _prepare(self, attempt: Attempt) -> None:
        self._to_prepare = None
        record = self.restore_point
        checkpoint, committables = (record.checkpoint, record.committables) if record else (None, {})
        try:
            self._commits.check_known(committables)
            if record is not None:
                allowed = self._runtime.allow_dropped_state
                record = self.restore_point = restorable(record, self._graph, allow_dropped_state=allowed)
            self._restores = plan_restore(record, self.running_graph) if record else {}
        except Exception as error:
            return self.broke(report_of(error, f"{_origin(record)} cannot be restored", retriable=False))
        self._commits.recover(
            checkpoint, committables, self._generation, attempt, lambda: self._prepared(attempt, record)
        )

    def _prepared(self, attempt: Attempt, record: CheckpointRecord | None) -> None:
        if record is not None and all(subtask.finished or subtask.drained for subtask in record.subtasks):
            self.lifecycle.all_finished(self._clock.now())
        else:
            self.execute(self.lifecycle.prepared(self._clock.now(), attempt))

    def _finish_up(self, ending: Ending) -> None:
        fenced = ending.outcome.state is JobState.FENCED
        busy = self._opening or (self._protection.busy and not fenced)
        housekeeping = self._checkpointing.housekeeping if self._checkpointing else None
        if ending.done(self._clock.now(), busy, self._commits, housekeeping):
            self._closed = True
            self._commits.drop()
            self._ports.ended(ending.outcome)

    # ---- helpers ----
    def _background(self, work: Callable[[], T], then: Callable[[T | BaseException], None]) -> None:
        def unless_closed(result: T | BaseException) -> None:
            if not self._closed:
                then(result)
                self._settle()

        self._ports.background(work, unless_closed)

    def to_all(self, message: ToWorker) -> None:
        for worker in self.lifecycle.holders:
            if worker is not None:
                self._ports.send(worker, message)

    def to_subtasks(self, subtasks: Iterable[SubtaskId], message: Callable[[list[SubtaskId]], ToWorker]) -> None:
        grouped: dict[WorkerId, list[SubtaskId]] = {}
        for subtask in subtasks:
            worker = self.lifecycle.holders[subtask.index]
            assert worker is not None, f"no worker runs {subtask}"
            grouped.setdefault(worker, []).append(subtask)
        for worker, own in grouped.items():
            self._ports.send(worker, message(own))


def _report(failure: Failure) -> ErrorReport:
    return failure.report if isinstance(failure.report, ErrorReport) else ErrorReport(failure.reason)


def _origin(record: CheckpointRecord | None) -> str:
    return "the beginning" if record is None else f"checkpoint {record.checkpoint}"
