"""One attempt on one worker: its tasks with their threads, and the exchange between them and other workers.

Built at `Deploy`, it gets ready on its own threads (tasks open and restore, links are made), runs at `Start`, and is
ended as a whole: by `Reset`, or by the end of the worker. All methods are called by the worker's main thread; what
happens on other threads comes back to it as an event.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.core.ids import SubtaskId, WorkerId
from penstock.core.settings import RuntimeSettings
from penstock.graph.job import JobGraph
from penstock.operators.base import Clock
from penstock.runtime.control.messages import Assignment, Deploy, Figures, Ready, Restore, ToMaster
from penstock.runtime.copies import AttemptCopies
from penstock.runtime.network.dialling import Dialler
from penstock.runtime.network.exchange import Exchange
from penstock.runtime.pool import Pool
from penstock.runtime.ports import Abort, Align, Complete, Note, SnapshotWriter, StopSources, Trigger
from penstock.runtime.replay import read_restored
from penstock.runtime.reports import Reports
from penstock.runtime.restored import RestoredSubtask
from penstock.runtime.snapshots import AttemptFiles, NoSnapshots, PooledSnapshotWriter
from penstock.runtime.task import Task
from penstock.runtime.taskthread import TaskThread
from penstock.runtime.together import Together
from penstock.store.copies import CopyingFiles, LocalCopies
from penstock.store.files import Files

_LOG: Final = logging.getLogger(__name__)


class Control(Protocol):
    """What a worker tells the master. Called from any thread; nothing blocks."""

    def send(self, message: ToMaster) -> None: ...

    def leave(self, message: ToMaster) -> None:
        """With the next message, or at the next `flush`."""
        ...

    def flush(self) -> None: ...


@dataclass(frozen=True)
class Surroundings:
    """What a worker keeps from attempt to attempt."""

    graph: JobGraph
    settings: RuntimeSettings
    dialler: Dialler
    host_key: str
    files: Files | None
    """Where checkpoints are; None: the job takes none."""
    copies: LocalCopies | None
    """Of data files; None: none are kept."""
    pool: Pool
    clock: Clock
    control: Control


@dataclass(frozen=True)
class AttemptEvents:
    """Called from any thread; must not block."""

    progressed: Callable[[], None]
    """A task has opened or all links stand: `take_ready` may have become true."""
    broken: Callable[[WorkerId, str], None]
    """A data connection is gone."""


class AttemptRun:
    def __init__(self, deploy: Deploy, around: Surroundings, events: AttemptEvents):
        self.number = deploy.attempt
        self._around = around
        self._events = events
        self._connected = False
        self._told_ready = False
        self._opened: set[SubtaskId] = set()
        subtasks = [assignment.subtask for assignment in deploy.assignments]
        self._copies = self._attempt_copies(deploy)
        self._snapshots = self._attempt_files(deploy, subtasks)
        self._together = Together(subtasks, around.control.leave, around.control.flush)
        self._reports = {subtask: self._report(subtask) for subtask in subtasks}
        self._threads = {subtask: self._thread(subtask) for subtask in subtasks}
        self.exchange = Exchange(
            graph=around.graph,
            attempt=self.number,
            dialler=around.dialler,
            host_key=around.host_key,
            locations=dict(deploy.locations),
            peers=deploy.peers,
            mailboxes={subtask: thread.put for subtask, thread in self._threads.items()},
            connected=self._all_connected,
            broken=events.broken,
        )
        self._tasks = {assignment.subtask: self._task(assignment, deploy) for assignment in deploy.assignments}
        for subtask, task in self._tasks.items():
            self._threads[subtask].host(task)

    @property
    def subtasks(self) -> Sequence[SubtaskId]:
        return list(self._threads)

    def take_ready(self) -> Ready | None:
        """What to tell, once: when all links stand and all tasks are open."""
        if not self._connected or len(self._opened) < len(self._threads) or self._told_ready:
            return None
        self._told_ready = True
        if self._copies is None:
            return Ready(self.number)
        read = self._copies.files
        if read.read_bytes or read.missed_bytes:
            _LOG.info("restored %d bytes from local copies, %d from the store", read.read_bytes, read.missed_bytes)
        return Ready(self.number, read.missed_bytes, read.read_bytes)

    # ---- what the master orders ----
    def open(self) -> None:
        self.exchange.start()
        for thread in self._threads.values():
            thread.open()

    def start(self) -> None:
        for thread in self._threads.values():
            thread.start()

    def trigger(self, subtasks: Sequence[SubtaskId], note: Trigger) -> None:
        for subtask in subtasks:
            self._reports[subtask].triggered(note.barrier.checkpoint)
            self._threads[subtask].put(note)
            if self._threads[subtask].ended:
                self._reports[subtask].ended()

    def abort(self, note: Abort) -> None:
        for reports in self._reports.values():
            reports.settled(note.checkpoint)
        self._put_all(note)

    def complete(self, note: Complete) -> None:
        self._put_all(note)
        if self._copies is not None:
            self._copies.completed(note.checkpoint)

    def drain(self) -> None:
        self._put_all(StopSources())

    def align(self, note: Align) -> None:
        self._put_all(note)

    def figures(self) -> Figures:
        # A task that is being opened on its own thread is not to be looked into.
        tasks = {str(subtask): task for subtask, task in self._tasks.items() if subtask in self._opened}
        return Figures(
            self.number,
            self._around.clock.wall_ms(),
            rows_in={name: task.rows_in for name, task in tasks.items()},
            rows_out={name: task.rows_out for name, task in tasks.items()},
            busy={name: task.busy for name, task in tasks.items()},
            times={name: time for name, task in tasks.items() if (time := task.aligned_time) is not None},
        )

    def cancel(self, grace: float) -> list[SubtaskId]:
        """Ends tasks, threads and links. Returns the subtasks that are still in a user function after `grace`."""
        for thread in self._threads.values():
            thread.cancel()
        self.exchange.close()
        if self._snapshots is not None:
            self._snapshots.sharing.close()
        deadline = time.monotonic() + grace
        return [
            subtask
            for subtask, thread in self._threads.items()
            if not thread.join(max(0.0, deadline - time.monotonic()))
        ]

    def where_is(self, subtask: SubtaskId) -> str:
        """The stack of a subtask's thread, for the message about one that does not end."""
        frame = sys._current_frames().get(self._threads[subtask].ident)
        return "".join(traceback.format_stack(frame)) if frame is not None else "(its thread has just ended)"

    # ---- building ----
    def _report(self, subtask: SubtaskId) -> Reports:
        named = None if self._copies is None else self._copies.acknowledged
        return Reports(self.number, subtask, self._around.control.send, named, self._together.acknowledge)

    def _thread(self, subtask: SubtaskId) -> TaskThread:
        return TaskThread(
            subtask,
            self._around.clock,
            opened=lambda: self._task_opened(subtask),
            failed=self._reports[subtask].failed,
            ended=lambda: self._task_ended(subtask),
        )

    def _task(self, assignment: Assignment, deploy: Deploy) -> Task:
        around, subtask = self._around, assignment.subtask
        thread = self._threads[subtask]
        return Task(
            graph=around.graph,
            subtask=subtask,
            transport=self.exchange,
            reports=self._reports[subtask],
            snapshots=self._snapshot_writer(subtask, thread.put),
            clock=around.clock,
            settings=around.settings,
            checkpointing=around.files is not None,
            attempt=deploy.attempt,
            generation=deploy.generation,
            deployed_ms=deploy.deployed_ms,
            restored=None if assignment.restore is None else self._restored(assignment.restore),
            notify=thread.wake,
        )

    def _attempt_copies(self, deploy: Deploy) -> AttemptCopies | None:
        around = self._around
        if around.copies is None:
            return None
        slot = max(assignment.subtask.index for assignment in deploy.assignments)
        slots = 1 + max(subtask.index for subtask, _ in deploy.locations)
        return AttemptCopies(around.copies.of(deploy.generation, deploy.attempt, slot, slots), around.pool)

    def _attempt_files(self, deploy: Deploy, subtasks: Sequence[SubtaskId]) -> AttemptFiles | None:
        around = self._around
        if around.files is None:
            return None
        return AttemptFiles.of(
            around.files if self._copies is None else CopyingFiles(around.files, self._copies.files),
            around.pool,
            around.clock,
            deploy.generation,
            deploy.attempt,
            around.settings.layers,
            subtasks,
        )

    def _snapshot_writer(self, subtask: SubtaskId, put: Callable[[Note], None]) -> SnapshotWriter:
        return NoSnapshots() if self._snapshots is None else PooledSnapshotWriter(self._snapshots, subtask, put)

    def _restored(self, restore: Restore) -> RestoredSubtask:
        files = self._around.files
        assert files is not None, "a job without checkpoints has none to restore"
        return read_restored(files, restore, None if self._copies is None else self._copies.files)

    # ---- from other threads ----
    def _task_ended(self, subtask: SubtaskId) -> None:
        self._reports[subtask].ended()
        self._together.ended(subtask)
        if self._snapshots is not None:
            self._snapshots.sharing.leave(subtask)

    def _all_connected(self) -> None:
        self._connected = True
        self._events.progressed()

    def _task_opened(self, subtask: SubtaskId) -> None:
        self._opened.add(subtask)
        self._events.progressed()

    def _put_all(self, note: Note) -> None:
        for thread in self._threads.values():
            thread.put(note)
