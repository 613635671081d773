"""A worker process without the process: obeys the master, drives production tasks, writes their snapshots.

It lives until it is killed, shut down or notices that its driver is gone. A worker whose driver has given it up does
not know that: it runs on, sends and writes, until it notices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.core.causes import Cause
from penstock.core.handles import PartHandle, SnapshotFigures
from penstock.core.ids import Attempt, CheckpointId, SubtaskId, Uid, WorkerId
from penstock.runtime.control.messages import (
    AbortCheckpoint,
    Acknowledge,
    Address,
    CompleteCheckpoint,
    Decline,
    Deploy,
    Drain,
    Drained,
    ErrorReport,
    Finished,
    Idle,
    Ready,
    Register,
    Reset,
    Restore,
    Shutdown,
    Start,
    TaskFailed,
    ToMaster,
    ToWorker,
    TriggerCheckpoint,
)
from penstock.runtime.network.handshake import PROTOCOL
from penstock.runtime.pool import Pool
from penstock.runtime.ports import Abort, Cancel, Complete, Note, StopSources, Trigger
from penstock.runtime.restored import RestoredSubtask
from penstock.runtime.snapshots import PooledSnapshotWriter
from penstock.runtime.task import Task
from penstock.simulation.connection import Connection, short
from penstock.simulation.faults import Point
from penstock.simulation.scheduler import Actor
from penstock.simulation.transport import Line, Run, TaskTransport
from penstock.state.parts import RestoredPart
from penstock.store.parts import reader

if TYPE_CHECKING:
    from penstock.simulation.driver import SimulatedDriver
    from penstock.simulation.world import World


class TaskActor(Actor):
    """A production task, stepped when the schedule says so."""

    def __init__(self, worker: SimulatedWorker, task: Task, subtask: SubtaskId) -> None:
        self._worker, self.task, self.subtask = worker, task, subtask
        self._scheduler = worker.world.scheduler
        self._started = False
        self._stalled = False
        self.eagerness = worker.world.eagerness()

    def start(self) -> None:
        self._started = True
        self._scheduler.wake(self)

    def notified(self) -> None:
        """The task has a note."""
        if self._started and not self._stalled:
            self._scheduler.wake(self)

    def stall(self, seconds: float) -> None:
        """User code takes its time."""
        self._stalled = True
        self._scheduler.rest(self)
        self._scheduler.at(self._scheduler.clock.now() + seconds, self)

    def act(self) -> None:
        self._stalled = False
        self._scheduler.rest(self)
        with self._worker.world.acting(self._worker):
            wake = self.task.step()
        if self.task.ended:
            self._scheduler.retire(self)
            self._worker.task_ended(self.subtask)
        elif wake is not None and wake <= self._scheduler.clock.now():
            self._scheduler.wake(self)
        else:
            self._scheduler.at(wake, self)


class _Job(Actor):
    """Work in the worker's pool."""

    def __init__(self, pool: SimulatedPool, job: Callable[[], None]) -> None:
        self._pool, self._job = pool, job
        self.eagerness = pool.worker.world.eagerness()

    def act(self) -> None:
        self._pool.drop(self)
        with self._pool.worker.world.acting(self._pool.worker):
            self._job()


class SimulatedPool(Pool):
    """The pool of a worker, without threads: what was submitted happens in any order."""

    def __init__(self, worker: SimulatedWorker) -> None:
        super().__init__("simulated", 0)
        self.worker = worker
        self._waiting: list[_Job] = []

    def submit(self, job: Callable[[], None]) -> None:
        if self.worker.alive:
            actor = _Job(self, job)
            self._waiting.append(actor)
            self.worker.world.scheduler.wake(actor)

    def drop(self, job: _Job) -> None:
        self._waiting.remove(job)
        self.worker.world.scheduler.retire(job)

    def drop_all(self) -> None:
        for job in list(self._waiting):
            self.drop(job)


class _Reports:
    """Implements `ports.TaskReports` for one subtask of one run."""

    def __init__(self, worker: SimulatedWorker, attempt: Attempt, subtask: SubtaskId) -> None:
        self._worker, self._attempt, self._subtask = worker, attempt, subtask

    def acknowledge(
        self,
        checkpoint: CheckpointId,
        handles: Sequence[PartHandle],
        committables: Mapping[Uid, Sequence[bytes]],
        figures: SnapshotFigures,
        drained: bool,
    ) -> None:
        told = {uid: list(group) for uid, group in committables.items()}
        self._worker.tell(Acknowledge(self._attempt, self._subtask, checkpoint, list(handles), told, figures, drained))
        self._worker.world.chaos.reach(Point.ACK_SENT)

    def decline(self, checkpoint: CheckpointId, cause: Cause, reason: str) -> None:
        self._worker.tell(Decline(self._attempt, self._subtask, checkpoint, cause, reason))

    def drained(self, committables: Mapping[Uid, Sequence[bytes]]) -> None:
        told = {uid: list(group) for uid, group in committables.items()}
        self._worker.tell(Drained(self._attempt, self._subtask, told))

    def finished(self) -> None:
        self._worker.tell(Finished(self._attempt, self._subtask))

    def failed(self, error: BaseException) -> None:
        self._worker.tell(TaskFailed(self._attempt, self._subtask, ErrorReport(str(error))))

    def cancelled(self) -> None:
        self._worker.world.story.tell(f"{self._subtask} a{self._attempt} cancelled")


class SimulatedWorker:
    def __init__(self, world: World, driver: SimulatedDriver, id: WorkerId) -> None:
        self.world, self.driver, self.id = world, driver, id
        self.alive = True
        self.tasks: dict[SubtaskId, TaskActor] = {}
        self._pool = SimulatedPool(self)
        self.run: Run | None = None
        self._resetting: Attempt | None = None
        self._newest = Attempt(0)
        self.connection = Connection(
            world.scheduler,
            id,
            at_master=driver.received,
            at_worker=self.received,
            master_loses=driver.lost,
            worker_loses=lambda: self.end("its driver is gone"),
        )
        self.tell(Register(id, 0, Address("", 0, "", ""), PROTOCOL))

    def tell(self, message: ToMaster) -> None:
        if self.alive:
            self.connection.tell_master(message)

    def put(self, run: Run, subtask: SubtaskId, note: Note) -> None:
        actor = self.tasks.get(subtask)
        if actor is not None and run == self.run:
            actor.task.put(note)

    # ---- what the master says ----
    def received(self, message: ToWorker) -> None:
        if not self.alive:
            return
        self.world.story.tell(f"{self.id} < {short(message)}")
        self.world.chaos.reach_message(Point.TO_WORKER, lambda: self.connection.repeat_to_worker(message))
        match message:
            case Deploy():
                self._deploy(message)
            case Start():
                if self._is_current(message.attempt):
                    for actor in self.tasks.values():
                        actor.start()
            case TriggerCheckpoint():
                if self._is_current(message.attempt):
                    for subtask in message.subtasks:
                        self._trigger(subtask, message)
            case AbortCheckpoint():
                self._put_all(message.attempt, Abort(message.checkpoint, message.cause))
            case CompleteCheckpoint():
                self._put_all(message.attempt, Complete(message.checkpoint))
            case Drain():
                self._put_all(message.attempt, StopSources())
            case Reset():
                self._reset(message.attempt)
            case Shutdown():
                self.end(f"shut down: {message.reason}")

    def _is_current(self, attempt: Attempt) -> bool:
        return self.run is not None and self.run[1] == attempt and self._resetting is None

    def _put_all(self, attempt: Attempt, note: Note) -> None:
        if self._is_current(attempt):
            for actor in list(self.tasks.values()):
                actor.task.put(note)

    def _trigger(self, subtask: SubtaskId, message: TriggerCheckpoint) -> None:
        if subtask in self.tasks:
            self.tasks[subtask].task.put(Trigger(message.barrier))
        else:
            reason = "the subtask had finished when the trigger came"
            cause = Cause.SUBTASK_FINISHED
            self.tell(Decline(message.attempt, subtask, message.barrier.checkpoint, cause, reason))

    def _deploy(self, message: Deploy) -> None:
        if message.attempt <= self._newest:
            return
        self._newest = message.attempt
        self.run = (message.generation, message.attempt)
        self.world.chaos.reach(Point.DEPLOY)
        with self.world.acting(self):
            for assignment in message.assignments:
                subtask = assignment.subtask
                try:
                    self._build(self.run, subtask, assignment.restore)
                except (OSError, ValueError) as error:
                    self.tell(TaskFailed(message.attempt, subtask, ErrorReport(f"{subtask} cannot start: {error}")))
                    return
        self.tell(Ready(message.attempt))

    def _build(self, run: Run, subtask: SubtaskId, restore: Restore | None) -> None:
        """As the real worker does: a task from its assignment, opened and attached, but not running yet."""
        world = self.world
        restored = None if restore is None else self._restored(restore)

        def notify() -> None:
            actor.notified()

        generation, attempt = run
        answers: Line[Note] = Line(world.scheduler, f"writes of {subtask}", lambda note: self.put(run, subtask, note))
        task = Task(
            graph=self.driver.graph,
            subtask=subtask,
            transport=TaskTransport(world.network, run),
            reports=_Reports(self, attempt, subtask),
            snapshots=PooledSnapshotWriter(
                world.files, self._pool, world.scheduler.clock, generation, attempt, subtask, answers.send
            ),
            clock=world.scheduler.clock,
            settings=world.scenario.runtime,
            checkpointing=world.scenario.checkpoints is not None,
            attempt=attempt,
            generation=generation,
            restored=restored,
            notify=notify,
        )
        actor = self.tasks[subtask] = TaskActor(self, task, subtask)
        world.network.attach(run, subtask, task.put)
        if restored is not None:
            world.witness.restored.add(run)
            world.chaos.reach(Point.REPLAY if restored.channels else Point.RESTORE)
        task.open()

    def _restored(self, restore: Restore) -> RestoredSubtask:
        files = self.world.files
        parts = (
            (
                handle.uid,
                RestoredPart(
                    handle.name,
                    handle.kind,
                    index,
                    reader(files, restore.directory, handle),
                    handle.key_groups,
                    handle.channel,
                ),
            )
            for index, handle in restore.handles
        )
        return RestoredSubtask.of(restore.checkpoint, parts, restore.finished)

    def task_ended(self, subtask: SubtaskId) -> None:
        assert self.run is not None
        del self.tasks[subtask]
        self.world.network.detach(self.run, subtask, keep=lambda waiting: waiting)
        self._answer_reset()

    # ---- ends ----
    def _reset(self, attempt: Attempt) -> None:
        if attempt < self._newest or (self._resetting is not None and attempt <= self._resetting):
            return
        self.world.chaos.reach(Point.RESET)
        self._newest = self._resetting = attempt
        self._cancel_all()
        self._answer_reset()

    def _answer_reset(self) -> None:
        if self._resetting is not None and not self.tasks:
            self.run, answered, self._resetting = None, self._resetting, None
            self.tell(Idle(answered))

    def _cancel_all(self) -> None:
        for actor in list(self.tasks.values()):
            actor.task.put(Cancel())
            actor.start()

    def end(self, reason: str) -> None:
        """In good order: tasks are closed, the connection too."""
        self.world.story.tell(f"{self.id} ends: {reason}")
        for actor in list(self.tasks.values()):
            actor.task.put(Cancel())
            with self.world.acting(self):
                actor.task.step()
        self._vanish(keep_all=True)

    def kill(self) -> None:
        """SIGKILL: nothing is closed, and what was under way arrives or not."""
        self.world.story.tell(f"{self.id} is killed")
        self._vanish(keep_all=False)

    def _vanish(self, keep_all: bool) -> None:
        if not self.alive:
            return
        self.alive = False
        random, world = self.world.random, self.world

        def keep(waiting: int) -> int:
            return waiting if keep_all else random.randint(0, waiting)

        for subtask, actor in self.tasks.items():
            world.scheduler.retire(actor)
            if self.run is not None:
                world.network.detach(self.run, subtask, keep)
        self.tasks.clear()
        self._pool.drop_all()
        self.connection.worker_gone(keep(len(self.connection.to_master)))
