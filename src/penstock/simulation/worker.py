"""A worker process without the process: obeys the master, drives production tasks, writes their snapshots.

What `runtime.worker` does with threads, sockets and a queue is done here by actors of the schedule; tasks, reports, the
snapshot writer and the messages are the same. A worker lives until it is killed, shut down or notices that its driver
is gone. One that its driver has given up does not know that: it runs on, sends and writes, until it notices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.core.ids import Attempt, SubtaskId, WorkerId
from penstock.graph.job import JobGraph
from penstock.runtime.control.messages import (
    AbortCheckpoint,
    Acknowledge,
    Address,
    Assignment,
    CompleteCheckpoint,
    Deploy,
    Drain,
    ErrorReport,
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
from penstock.runtime.ports import Abort, Cancel, Complete, Note, SnapshotWriter, StopSources, Trigger
from penstock.runtime.replay import read_restored
from penstock.runtime.reports import Reports
from penstock.runtime.restored import RestoredSubtask
from penstock.runtime.snapshots import AttemptFiles, NoSnapshots, PooledSnapshotWriter
from penstock.runtime.task import Task
from penstock.simulation.connection import Connection, short
from penstock.simulation.faults import Point
from penstock.simulation.scheduler import Actor
from penstock.simulation.transport import Line, Run

if TYPE_CHECKING:
    from penstock.simulation.driver import SimulatedDriver
    from penstock.simulation.world import World


VALIDATED = 4
"""The invariants of every n-th step are looked at: what is broken mostly stays so."""


class TaskActor(Actor):
    """A production task: opened by its first action, stepped by the later ones."""

    def __init__(self, worker: SimulatedWorker, run: Run, subtask: SubtaskId) -> None:
        self._worker, self.run, self.subtask = worker, run, subtask
        self._scheduler = worker.world.scheduler
        self.reports = Reports(run[1], subtask, worker.tell)
        self.task: Task
        self._opened = self._released = self._stalled = False
        self.eagerness = worker.world.eagerness()

    def release(self) -> None:
        """Started, or cancelled: from now on notes move it."""
        self._released = True
        self.notified()

    def notified(self) -> None:
        """The task has a note."""
        if self._opened and self._released and not self._stalled:
            self._scheduler.wake(self)

    def put(self, note: Note) -> None:
        """A note that comes after its worker's end is lost."""
        if self._worker.tasks.get(self.subtask) is self:
            self.task.put(note)

    def stall(self, seconds: float) -> None:
        """User code takes its time."""
        if self._released:
            self._stalled = True
            self._scheduler.rest(self)
            self._scheduler.at(self._scheduler.clock.now() + seconds, self)

    def act(self) -> None:
        self._stalled = False
        self._scheduler.rest(self)
        with self._worker.world.acting(self._worker):
            if not self._opened:
                self._open()
            else:
                self._step()
        if self.task.ended:
            self._scheduler.retire(self)
            self._worker.task_ended(self)

    def _open(self) -> None:
        self._opened = True
        self.task.open()
        if not self.task.ended:
            self._worker.task_opened()
            if self._released:
                self._scheduler.wake(self)

    def _step(self) -> None:
        wake = self.task.step()
        if self._scheduler.steps % VALIDATED == 0:
            self.task.validate()
        if wake is not None and wake <= self._scheduler.clock.now():
            self._scheduler.wake(self)
        else:
            self._scheduler.at(wake, self)

    @property
    def opened(self) -> bool:
        return self._opened


class _Job(Actor):
    """Work in the worker's pool."""

    def __init__(self, pool: SimulatedPool, job: Callable[[], None]) -> None:
        self._pool, self._job = pool, job
        world = pool.worker.world
        self.eagerness = world.eagerness() * world.scenario.writing

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
            self.worker.world.scheduler.wake(self._made(job))

    def after(self, seconds: float, job: Callable[[], None]) -> Callable[[], None]:
        scheduler, actor = self.worker.world.scheduler, self._made(job)
        scheduler.at(scheduler.clock.now() + seconds, actor)
        return lambda: self.drop(actor)

    def _made(self, job: Callable[[], None]) -> _Job:
        actor = _Job(self, job)
        self._waiting.append(actor)
        return actor

    def drop(self, job: _Job) -> None:
        if job in self._waiting:
            self._waiting.remove(job)
            self.worker.world.scheduler.retire(job)

    def drop_all(self) -> None:
        for job in list(self._waiting):
            self.drop(job)


class SimulatedWorker:
    def __init__(self, world: World, driver: SimulatedDriver, id: WorkerId) -> None:
        self.world, self.driver, self.id = world, driver, id
        self.alive = True
        self.run: Run | None = None
        """What is deployed here."""
        self._newest: Run | None = None
        """What was deployed last."""
        self.tasks: dict[SubtaskId, TaskActor] = {}
        """Of the run, also those that have ended."""
        self._files: AttemptFiles | None = None
        """Where the run writes; None: nothing is deployed, or the job takes no checkpoints."""
        self._resetting: Attempt | None = None
        self._pool = SimulatedPool(self)
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
            if isinstance(message, Acknowledge):
                self.world.chaos.reach(Point.ACK_SENT)

    # ---- what the master says ----
    def received(self, message: ToWorker) -> None:
        if not self.alive:
            return
        self.world.story.tell(f"{self.id} < {short(message)}")
        self.world.chaos.reach_message(Point.TO_WORKER, lambda: self.connection.repeat_to_worker(message))
        if isinstance(message, Shutdown):
            self.end(f"shut down: {message.reason}")
        elif isinstance(message, Deploy):
            self._deploy(message)
        elif isinstance(message, Reset):
            self._reset(message.attempt)
        elif self.run is not None and self.run[1] == message.attempt and self._resetting is None:
            self._obey(message)

    def _obey(self, message: ToWorker) -> None:
        match message:
            case Start():
                for actor in self.tasks.values():
                    actor.release()
            case TriggerCheckpoint():
                for subtask in message.subtasks:
                    self._trigger(self.tasks[subtask], Trigger(message.barrier))
            case AbortCheckpoint():
                for actor in self.tasks.values():
                    actor.reports.settled(message.checkpoint)
                self._put_all(Abort(message.checkpoint, message.cause))
            case CompleteCheckpoint():
                self._put_all(Complete(message.checkpoint))
            case Drain():
                self._put_all(StopSources())

    def _put_all(self, note: Note) -> None:
        for actor in list(self.tasks.values()):
            actor.task.put(note)

    def _trigger(self, actor: TaskActor, note: Trigger) -> None:
        actor.reports.triggered(note.barrier.checkpoint)
        actor.task.put(note)
        if actor.task.ended:
            actor.reports.ended()

    # ---- a run begins ----
    def _deploy(self, message: Deploy) -> None:
        run = (message.generation, message.attempt)
        if self._newest is not None and self._newest >= run:
            return
        self.run = self._newest = run
        self.tasks.clear()
        self.world.chaos.reach(Point.DEPLOY)
        self._files = self._attempt_files(message)
        for assignment in message.assignments:
            self._build(message, assignment, self.driver.graph_at(message.parallelism))

    def _build(self, message: Deploy, assignment: Assignment, graph: JobGraph) -> None:
        """As the real worker does: a task from its assignment, which opens soon, but does not run yet."""
        world, subtask, restore = self.world, assignment.subtask, assignment.restore
        run = generation, attempt = message.generation, message.attempt
        network = world.network.join(run, graph)
        actor = self.tasks[subtask] = TaskActor(self, run, subtask)
        actor.task = Task(
            graph=graph,
            subtask=subtask,
            transport=network,
            reports=actor.reports,
            snapshots=self._snapshots(actor),
            clock=world.scheduler.clock,
            settings=world.scenario.runtime,
            checkpointing=world.scenario.checkpoints is not None,
            attempt=attempt,
            generation=generation,
            deployed_ms=message.deployed_ms,
            restored=None if restore is None else self._restored(run, restore),
            notify=actor.notified,
        )
        network.attach(subtask, actor.put)
        world.scheduler.wake(actor)

    def _attempt_files(self, message: Deploy) -> AttemptFiles | None:
        world = self.world
        if world.scenario.checkpoints is None:
            return None
        return AttemptFiles.of(
            world.files,
            self._pool,
            world.scheduler.clock,
            message.generation,
            message.attempt,
            world.scenario.runtime.layers,
            [assignment.subtask for assignment in message.assignments],
        )

    def _snapshots(self, actor: TaskActor) -> SnapshotWriter:
        """The answers of the writer take their time too: what is written and not yet answered may be lost."""
        if self._files is None:
            return NoSnapshots()
        answers: Line[Note] = Line(self.world.scheduler, f"writes of {actor.subtask}", actor.put)
        return PooledSnapshotWriter(self._files, actor.subtask, answers.send)

    def _restored(self, run: Run, restore: Restore) -> RestoredSubtask:
        restored = read_restored(self.world.files, restore)
        self.world.witness.restored.add(run)
        self.world.chaos.reach(Point.REPLAY if restored.channels or restored.replays else Point.RESTORE)
        return restored

    def task_opened(self) -> None:
        if self.run is not None and all(actor.opened for actor in self.tasks.values()):
            self.tell(Ready(self.run[1]))

    # ---- a run ends ----
    def task_ended(self, actor: TaskActor) -> None:
        actor.reports.ended()
        if self._files is not None:
            self._files.sharing.leave(actor.subtask)
        self.world.network.of(actor.run).detach(actor.subtask, keep=lambda waiting: waiting)
        self._answer_reset()

    def _reset(self, attempt: Attempt) -> None:
        self.world.chaos.reach(Point.RESET)
        if self._resetting is not None:
            self._resetting = max(self._resetting, attempt)
        elif self.run is None or self.run[1] <= attempt:
            self._resetting = attempt
            for actor in list(self.tasks.values()):
                actor.task.put(Cancel())
                actor.release()
        else:
            self.tell(Idle(attempt))
        self._answer_reset()

    def _answer_reset(self) -> None:
        if self._resetting is not None and all(actor.task.ended for actor in self.tasks.values()):
            answered, self._resetting, self.run = self._resetting, None, None
            self.tasks.clear()
            if self._files is not None:
                self._files.sharing.close()
            self.tell(Idle(answered))

    def connection_broke(self, peer: WorkerId) -> None:
        """A data connection to another worker of the run is gone."""
        if self.alive and self.run is not None and self.tasks and self._resetting is None:
            subtask = next(iter(self.tasks))
            message = f"worker {self.id} lost its data connection to worker {peer}"
            self.tell(TaskFailed(self.run[1], subtask, ErrorReport(message)))

    def end(self, reason: str) -> None:
        """In good order: tasks are closed, the connection too."""
        if not self.alive:
            return
        self.world.story.tell(f"{self.id} ends: {reason}")
        with self.world.acting(self):
            for actor in self.tasks.values():
                if actor.opened and not actor.task.ended:
                    actor.task.put(Cancel())
                    actor.task.step()
        self._vanish(keep=lambda waiting: waiting)

    def kill(self) -> None:
        """SIGKILL: nothing is closed, and what was under way arrives or not."""
        if self.alive:
            self.world.story.tell(f"{self.id} is killed")
            self._vanish(keep=lambda waiting: self.world.random.randint(0, waiting))

    def _vanish(self, keep: Callable[[int], int]) -> None:
        self.alive = False
        self.world.living -= 1
        for actor in self.tasks.values():
            self.world.scheduler.retire(actor)
            self.world.network.of(actor.run).detach(actor.subtask, keep)
        self.tasks.clear()
        self._pool.drop_all()
        self.connection.worker_gone(keep(len(self.connection.to_master)))
