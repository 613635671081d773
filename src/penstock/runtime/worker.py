"""A worker: one process that runs subtasks for the master, attempt after attempt, until the job is over.

The main thread owns everything: orders of the master and events of other threads come to it through one queue. It never
runs user code, so it can always answer. A reset cancels the attempt's tasks in place and keeps the process; a user
function that does not return within the grace time cannot be stopped from outside, so then the process ends itself and
Spark starts another. When the master is gone the worker ends: a master that comes back takes new workers.

On a normal return no thread and no socket is left: Spark uses the process again.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import queue
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

import msgspec

from penstock.core.ids import Attempt, WorkerId
from penstock.core.settings import RuntimeSettings
from penstock.graph.job import JobGraph
from penstock.runtime.allocation import keep_freed_memory
from penstock.runtime.attempt import AttemptEvents, AttemptRun, Surroundings
from penstock.runtime.clock import SystemClock
from penstock.runtime.control.client import ControlClient
from penstock.runtime.control.messages import (
    AbortCheckpoint,
    AlignSources,
    CompleteCheckpoint,
    Deploy,
    Drain,
    ErrorReport,
    Idle,
    Register,
    Reset,
    Shutdown,
    Start,
    TaskFailed,
    ToWorker,
    TriggerCheckpoint,
)
from penstock.runtime.network.dialling import Dialler
from penstock.runtime.network.door import Door
from penstock.runtime.network.handshake import PROTOCOL
from penstock.runtime.network.tls import TlsFiles, client_context, server_context
from penstock.runtime.pool import Pool
from penstock.runtime.ports import Abort, Align, Complete, Trigger
from penstock.runtime.reports import error_report
from penstock.runtime.warmup import warm_up
from penstock.store.copies import LocalCopies
from penstock.store.files import Files
from penstock.store.local import LocalFiles
from penstock.store.opening import open_files

_LOG: Final = logging.getLogger(__name__)
_SNAPSHOT_THREADS: Final = 4
_LAST_WORK: Final = 30.0
"""Seconds that writes (or the compilation of kernels) may take after the end of the job."""
_DIAL_TIMEOUT: Final = 3.0
_SUSPICION: Final = 0.2
"""Seconds between the break of a data connection and our report of it: mostly the peer has died, which the master sees
by itself and tells better, or it is being reset and so shall we."""
_IDLE_BEFORE_WARM_UP: Final = 0.5
"""Seconds without orders after which a worker is taken for a spare, and uses its time."""
STUCK_EXIT: Final = 77
"""Exit code of a worker that ended itself because a user function did not return."""


@dataclass(frozen=True)
class WorkerConfig:
    """What a worker must know before it can ask for more. Travels with Spark's closure."""

    master_host: str
    master_port: int
    secret: bytes = field(repr=False)
    directory: str | None
    """Of the checkpoints; None: the job takes none."""
    settings: RuntimeSettings
    tls: TlsFiles | None = None


@dataclass(frozen=True)
class _MasterLost:
    reason: str


@dataclass(frozen=True)
class _Progressed:
    attempt: Attempt


@dataclass(frozen=True)
class _Broken:
    attempt: Attempt
    peer: WorkerId
    reason: str


_Event = ToWorker | _MasterLost | _Progressed | _Broken


class End(Enum):
    """Why a worker returned."""

    JOB_OVER = auto()
    MASTER_LOST = auto()


def run_worker(config: WorkerConfig, load_graph: Callable[[], JobGraph]) -> End:
    """Raises a `ConnectionError` if the master cannot be reached at all.

    The graph is loaded after the registration: that imports the user's modules and takes its time, which the master can
    use for others.
    """
    keep_freed_memory()
    worker = _Worker(config, load_graph)
    try:
        return worker.run()
    finally:
        worker.close()


class _Worker:
    def __init__(self, config: WorkerConfig, load_graph: Callable[[], JobGraph]):
        self._config = config
        self._settings = config.settings
        self._load_graph = load_graph
        self._id = WorkerId(f"{os.getpid()}-{secrets.token_hex(4)}")
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._attempt: AttemptRun | None = None
        self._suspicion: tuple[float, _Broken] | None = None
        self._warm = False
        self._idle_since = time.monotonic()
        self._figures_due = 0.0
        self._dialler = Dialler(self._id, config.secret, client_context(config.tls), _DIAL_TIMEOUT)
        self._control = ControlClient(
            self._dialler,
            config.master_host,
            config.master_port,
            config.settings,
            received=self._events.put,
            lost=lambda reason: self._events.put(_MasterLost(reason)),
        )
        try:
            self._door = Door(self._control.local_host, config.secret, server_context(config.tls))
        except BaseException:
            self._control.close()
            raise
        self._pool = Pool("snapshots", _SNAPSHOT_THREADS)
        self._copies: LocalCopies | None = None
        self._job_is_over = False
        self._around: Surroundings | Exception
        self._scaled: dict[int, Surroundings] = {}

    def run(self) -> End:
        self._control.send(Register(self._id, os.getpid(), self._door.address, PROTOCOL))
        self._around = self._look_around()
        while True:
            event = self._next_event()
            if isinstance(event, Shutdown | _MasterLost):
                _LOG.info("worker %s ends: %s", self._id, event.reason)
                self._job_is_over = isinstance(event, Shutdown)
                return End.JOB_OVER if self._job_is_over else End.MASTER_LOST
            if event is not None:
                self._obey(event)

    def _look_around(self) -> Surroundings | Exception:
        """What all attempts share. An error waits for the first deployment: then there is somebody to tell it to."""
        directory = self._config.directory
        try:
            files = None if directory is None else open_files(directory)
            self._copies = self._local_copies(files)
            return Surroundings(
                graph=self._load_graph(),
                settings=self._settings,
                dialler=self._dialler,
                host_key=self._door.address.host_key,
                files=files,
                copies=self._copies,
                pool=self._pool,
                clock=SystemClock(),
                control=self._control,
            )
        except Exception as error:
            _LOG.exception("worker %s cannot load the job", self._id)
            return error

    def _local_copies(self, files: Files | None) -> LocalCopies | None:
        """A worker that can keep none goes on without."""
        wanted = self._settings.local_copies
        if wanted is None:
            wanted = not isinstance(files, LocalFiles)
        if self._config.directory is None or not wanted:
            return None
        try:
            return LocalCopies(self._config.directory, self._settings.local_directory)
        except OSError as error:
            _LOG.warning("worker %s keeps no local copies of what it writes: %s", self._id, error)
            return None

    def close(self) -> None:
        self._end_attempt()
        self._door.close()
        if not self._pool.close(_LAST_WORK):
            self._end_process(f"a write to the checkpoint directory did not return within {_LAST_WORK:g} s")
        if self._copies is not None:
            self._copies.close(self._job_is_over)
        self._control.close()

    def _next_event(self) -> _Event | None:
        """None when something else was due before anything came."""
        due = self._next_due()
        try:
            return self._events.get(timeout=None if due is None else max(0.0, due - time.monotonic()))
        except queue.Empty:
            self._do_what_is_due()
            return None

    def _next_due(self) -> float | None:
        if self._attempt is not None:
            return min(self._figures_due, self._suspicion[0] if self._suspicion else math.inf)
        return None if self._warm else self._idle_since + _IDLE_BEFORE_WARM_UP

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        if self._attempt is None:
            self._warm = True
            if isinstance(self._around, Surroundings):
                self._pool.submit(functools.partial(warm_up, self._around.graph, self._around.clock))
            return
        if now >= self._figures_due:
            self._figures_due = now + self._settings.heartbeat_every
            self._control.send(self._attempt.figures())
        if self._suspicion is not None and now >= self._suspicion[0]:
            suspicion, self._suspicion = self._suspicion[1], None
            self._report_broken(self._attempt, suspicion)

    def _obey(self, event: _Event) -> None:
        if isinstance(event, Deploy):
            self._deploy(event)
        elif isinstance(event, Reset):
            self._reset(event)
        elif self._attempt is not None and event.attempt == self._attempt.number:  # type: ignore[union-attr]
            self._obey_in(self._attempt, event)

    def _obey_in(self, attempt: AttemptRun, event: _Event) -> None:
        """What concerns the attempt that is deployed here; anything of another one does not get here."""
        match event:
            case _Progressed():
                if (ready := attempt.take_ready()) is not None:
                    self._control.send(ready)
            case _Broken():
                if self._suspicion is None:
                    self._suspicion = (time.monotonic() + _SUSPICION, event)
            case Start():
                attempt.start()
            case TriggerCheckpoint():
                attempt.trigger(event.subtasks, Trigger(event.barrier))
            case AbortCheckpoint():
                attempt.abort(Abort(event.checkpoint, event.cause))
            case CompleteCheckpoint():
                attempt.complete(Complete(event.checkpoint))
            case Drain():
                attempt.drain()
            case AlignSources():
                attempt.align(Align(event.slowest))

    def _deploy(self, deploy: Deploy) -> None:
        self._end_attempt()
        number = deploy.attempt
        events = AttemptEvents(
            progressed=lambda: self._events.put(_Progressed(number)),
            broken=lambda peer, reason: self._events.put(_Broken(number, peer, reason)),
        )
        try:
            if isinstance(self._around, Exception):
                raise RuntimeError(f"the job could not be loaded: {self._around}") from self._around
            attempt = AttemptRun(deploy, self._surroundings(self._around, deploy.parallelism), events)
        except Exception as error:
            _LOG.exception("attempt %d could not be built", number)
            first = deploy.assignments[0].subtask
            report = msgspec.structs.replace(error_report(error, first), retriable=False)
            self._control.send(TaskFailed(number, first, report))
            return
        self._attempt = attempt
        self._door.open(attempt.exchange)
        attempt.open()

    def _surroundings(self, around: Surroundings, parallelism: int | None) -> Surroundings:
        """At the parallelism at which the job runs now."""
        if parallelism is None:
            return around
        if parallelism not in self._scaled:
            assert around.graph.scaled is not None, "the master rescales only what can be"
            self._scaled[parallelism] = replace(around, graph=around.graph.scaled(parallelism))
        return self._scaled[parallelism]

    def _reset(self, reset: Reset) -> None:
        if self._attempt is not None and self._attempt.number <= reset.attempt:
            self._end_attempt()
        self._control.send(Idle(reset.attempt))

    def _end_attempt(self) -> None:
        attempt, self._attempt, self._suspicion = self._attempt, None, None
        self._idle_since = time.monotonic()
        if attempt is None:
            return
        self._door.shut()
        stuck = attempt.cancel(self._settings.cancel_grace)
        if stuck:
            names = ", ".join(map(str, stuck))
            grace = self._settings.cancel_grace
            self._end_process(
                f"{names} did not return from a user function within {grace:g} s after it was cancelled; it is here:\n"
                + "\n".join(map(attempt.where_is, stuck))
            )

    def _report_broken(self, attempt: AttemptRun, broken: _Broken) -> None:
        subtask = attempt.subtasks[0]
        message = f"worker {self._id} lost its data connection to worker {broken.peer}: {broken.reason}"
        self._control.send(
            TaskFailed(broken.attempt, subtask, ErrorReport(message, uid=subtask.chain, subtask=subtask.index))
        )

    def _end_process(self, reason: str) -> None:
        """A thread cannot be killed; its process can."""
        _LOG.error("worker %s ends its process: %s", self._id, reason)
        for handler in logging.getLogger().handlers:
            handler.flush()
        sys.stderr.flush()
        os._exit(STUCK_EXIT)
