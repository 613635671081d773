"""A job on real worker processes without Spark: a process that dies is replaced, as Spark would do it.

Workers are forked from a server that has the runtime loaded, so that a test starts within a fraction of a second.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import secrets
import signal
import threading
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from pyspark import cloudpickle

from penstock.api.pipeline import Pipeline
from penstock.core.ids import WorkerId
from penstock.core.orders import JobState
from penstock.core.restarts import ExponentialDelay, RestartSettings
from penstock.core.settings import CheckpointSettings, RuntimeSettings
from penstock.runtime.driver import JobDriver
from penstock.runtime.outcome import JobOutcome, JobStatus
from penstock.runtime.worker import WorkerConfig
from penstock.store.checkpoints import CheckpointStore
from penstock.store.opening import open_files

PATIENCE = 60.0
"""Seconds after which a test gives a job up: only ever reached by a bug."""
_CONTEXT: ForkServerContext = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["penstock.runtime.worker", "tests.support.processes"])
LEFTOVER_EXIT = 88


def _worker_process(config: WorkerConfig, graph: bytes) -> None:
    before = threading.active_count()
    from penstock.spark.entry import serve

    serve(config, graph)
    left = [thread.name for thread in threading.enumerate()][before:]
    os._exit(LEFTOVER_EXIT if left else 0)


class ProcessJob:
    """A pipeline that runs on processes."""

    def __init__(
        self,
        pipeline: Pipeline,
        directory: Path | None = None,
        *,
        checkpoints: CheckpointSettings | None = None,
        runtime: RuntimeSettings | None = None,
        restarts: RestartSettings | None = None,
    ):
        graph = pipeline.graph()
        runtime = runtime or RuntimeSettings()
        store = None
        if directory is not None:
            checkpoints = checkpoints or CheckpointSettings(every=0.1)
            store = CheckpointStore(open_files(str(directory)), graph.name, checkpoints.keep)
        secret = secrets.token_bytes(32)
        self.driver = JobDriver(
            graph, checkpoints, runtime, restarts or ExponentialDelay(), store, host="127.0.0.1", secret=secret
        )
        where = None if directory is None else str(directory)
        self.config = WorkerConfig("127.0.0.1", self.driver.port, secret, where, runtime)
        self._graph = cloudpickle.dumps(graph)  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()
        self._over = False
        self.exits: queue.SimpleQueue[int] = queue.SimpleQueue()
        """Exit codes of processes, as they end."""
        self._keepers: list[threading.Thread] = []

    def start(self) -> ProcessJob:
        self.driver.start(self._need)
        return self

    def _need(self, count: int) -> None:
        while len(self._keepers) < count:
            keeper = threading.Thread(target=self._keep_one, name="keeper of a worker process")
            self._keepers.append(keeper)
            keeper.start()

    def _keep_one(self) -> None:
        """What Spark does for a task: starts it again when its process dies."""
        while not self._over:
            process: BaseProcess = _CONTEXT.Process(target=_worker_process, args=(self.config, self._graph))
            process.start()
            process.join()
            self.exits.put(process.exitcode or 0)
            if process.exitcode == 0:
                return

    def status(self) -> JobStatus:
        return self.driver.ask(lambda master: master.status())

    def pid_of(self, slot: int) -> int:
        worker = self.status().workers[slot]
        assert worker is not None
        return self.driver.workers()[worker].pid

    def pids(self) -> dict[WorkerId, int]:
        return {worker: registered.pid for worker, registered in self.driver.workers().items()}

    def data_ports(self) -> list[int]:
        return [worker.address.port for worker in self.driver.workers().values()]

    def kill(self, slot: int) -> int:
        pid = self.pid_of(slot)
        os.kill(pid, signal.SIGKILL)
        return pid

    def drain(self) -> None:
        self.driver.post(lambda master: master.drain())

    def wait(self, state: JobState = JobState.FINISHED) -> JobOutcome:
        outcome = self.driver.wait(PATIENCE)
        assert outcome is not None, f"the job hangs: {self.status()}"
        self._over = True
        for keeper in self._keepers:
            keeper.join(PATIENCE)
        assert outcome.state is state, outcome
        return outcome

    def close(self) -> None:
        """Whatever happened in the test, nothing stays behind."""
        self._over = True
        self.driver.post(lambda master: master.cancel())
        self.driver.wait(PATIENCE)
        for keeper in self._keepers:
            keeper.join(PATIENCE)


class Commits:
    """Follows a `Collect` sink: lets a test wait until more rows have been committed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rows = 0

    def __call__(self, table: object) -> None:
        with self._changed:
            self._rows += table.num_rows  # type: ignore[attr-defined]
            self._changed.notify_all()

    @property
    def rows(self) -> int:
        return self._rows

    def wait_for(self, rows: int) -> None:
        with self._changed:
            arrived = self._changed.wait_for(lambda: self._rows >= rows, PATIENCE)
        assert arrived, f"only {self._rows} of {rows} rows were committed"


def wait_until(condition: Callable[[], bool], tick: float = 0.002) -> None:
    """For what only polling can tell; fails after the tests' patience."""
    poll = threading.Event()
    for _ in range(int(PATIENCE / tick)):
        if condition():
            return
        poll.wait(tick)
    raise AssertionError("it did not come true")
