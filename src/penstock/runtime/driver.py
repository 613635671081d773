"""The thread in which a job's master lives, and its ports to the world: control connections, background work, time.

Whatever happens outside is put into one mailbox as a call; the thread makes the calls one by one and lets the master
tick in between, so the master needs no lock. An exception that escapes from the master is a bug in Penstock: it fails
the job at once, with its traceback, because a master that goes on after one cannot be trusted.
"""

from __future__ import annotations

import logging
import queue
import ssl
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final, TypeVar

from penstock.core.ids import CheckpointId, WorkerId
from penstock.core.orders import JobState
from penstock.core.restarts import RestartSettings
from penstock.core.settings import CheckpointSettings, RuntimeSettings
from penstock.graph.job import JobGraph
from penstock.operators.base import Clock
from penstock.runtime.clock import SystemClock
from penstock.runtime.control.messages import Register, ToMaster, ToWorker
from penstock.runtime.control.server import ControlServer
from penstock.runtime.master import Master
from penstock.runtime.opening import RestoreElsewhere
from penstock.runtime.outcome import JobOutcome, report_of
from penstock.runtime.pool import Pool
from penstock.store.checkpoints import CheckpointStore

_LOG: Final = logging.getLogger(__name__)
_BACKGROUND_THREADS: Final = 4
_LAST_WORK: Final = 5.0
"""Seconds that background work may take after the end of the job."""

T = TypeVar("T")


class JobDriver:
    def __init__(
        self,
        graph: JobGraph,
        checkpoints: CheckpointSettings | None,
        runtime: RuntimeSettings,
        restarts: RestartSettings,
        store: CheckpointStore | None,
        *,
        host: str,
        secret: bytes,
        restore: CheckpointId | RestoreElsewhere | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
    ):
        self._need_workers: Callable[[int], None]
        self._clock = clock or SystemClock()
        self._mailbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._over = False
        self._outcome: JobOutcome | None = None
        self._closed = threading.Event()
        self._workers: dict[WorkerId, Register] = {}
        self.registrations = 0
        """How many workers have ever come."""
        self._pool = Pool("master background", _BACKGROUND_THREADS)
        self._server = ControlServer(host, secret, self, runtime, tls=tls)
        self._master = Master(graph, checkpoints, runtime, restarts, store, self, self._clock, restore)
        self._thread = threading.Thread(target=self._run, name=f"master of {graph.name}", daemon=True)

    @property
    def port(self) -> int:
        return self._server.port

    def start(self, need_workers: Callable[[int], None]) -> None:
        """`need_workers` is called on the master's thread and must not block."""
        self._need_workers = need_workers
        self._server.start()
        self._thread.start()

    def wait(self, timeout: float | None = None) -> JobOutcome | None:
        """The outcome, once everything is closed; None if that takes longer than `timeout`."""
        self._closed.wait(timeout)
        return self._outcome if self._closed.is_set() else None

    def post(self, call: Callable[[Master], None]) -> None:
        """Makes the call on the master's thread, some time soon; after the end of the job, here and now."""
        with self._lock:
            if not self._over:
                self._mailbox.put(lambda: call(self._master))
                return
        call(self._master)

    def ask(self, question: Callable[[Master], T]) -> T:
        """The answer of a call on the master's thread."""
        answer: Future[T] = Future()

        def put_it(master: Master) -> None:
            try:
                answer.set_result(question(master))
            except Exception as error:
                answer.set_exception(error)

        self.post(put_it)
        return answer.result()

    def workers(self) -> Mapping[WorkerId, Register]:
        """The workers that are connected, as they registered."""
        return dict(self._workers)

    # ---- events of the control server, on its threads ----
    def registered(self, worker: WorkerId, message: Register) -> None:
        self._workers[worker] = message
        self.registrations += 1
        self.post(lambda master: master.registered(worker, message))

    def received(self, worker: WorkerId, message: ToMaster) -> None:
        self.post(lambda master: master.received(worker, message))

    def lost(self, worker: WorkerId, reason: str) -> None:
        self._workers.pop(worker, None)
        self.post(lambda master: master.lost(worker, reason))

    # ---- ports of the master, on its thread ----
    def send(self, worker: WorkerId, message: ToWorker) -> None:
        self._server.send(worker, message)

    def background(self, work: Callable[[], T], then: Callable[[T | BaseException], None]) -> None:
        def run() -> None:
            result: T | BaseException
            try:
                result = work()
            except Exception as error:
                result = error
            self.post(lambda master: then(result))

        self._pool.submit(run)

    def disconnect(self, worker: WorkerId, reason: str) -> None:
        _LOG.warning("worker %s is dismissed: %s", worker, reason)
        self._workers.pop(worker, None)
        self._server.disconnect(worker)

    def need_workers(self, count: int) -> None:
        self._need_workers(count)

    def ended(self, outcome: JobOutcome) -> None:
        self._outcome = outcome

    # ---- the thread ----
    def _run(self) -> None:
        try:
            self._master.start()
            while self._outcome is None:
                self._wait_for_calls(self._master.tick())
        except Exception as error:
            _LOG.exception("the master broke")
            report = report_of(error, "Penstock's master broke (this is a bug)", retriable=False)
            self._outcome = JobOutcome(JobState.FAILED, report.message, report)
        self._close()

    def _wait_for_calls(self, wake: float | None) -> None:
        """Makes the calls that are there; waits for one until `wake`."""
        if self._outcome is not None:
            return
        try:
            call = self._mailbox.get(timeout=None if wake is None else max(0.0, wake - self._clock.now()))
            while True:
                call()
                call = self._mailbox.get_nowait()
        except queue.Empty:
            return

    def _close(self) -> None:
        with self._lock:
            self._over = True
        self._server.close()
        if not self._pool.close(_LAST_WORK):
            _LOG.warning("a write to the store or a commit did not return within %g s", _LAST_WORK)
        while not self._mailbox.empty():
            self._mailbox.get()()
        self._closed.set()
