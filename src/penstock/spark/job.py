"""The running job as its user sees it, and how it is started."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Unpack

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from penstock.api.checkpoints import CheckpointOptions, changed_settings
from penstock.core.barrier import Purpose
from penstock.core.ids import CheckpointId, WorkerId
from penstock.core.orders import JobState
from penstock.core.restarts import ExponentialDelay, RestartSettings
from penstock.core.settings import CheckpointSettings, RuntimeSettings
from penstock.core.statistics import CheckpointStatistics
from penstock.graph.job import JobGraph
from penstock.remote.handling import Handler
from penstock.remote.server import open_door
from penstock.runtime.control.messages import ErrorReport, Figures
from penstock.runtime.driver import JobDriver
from penstock.runtime.master import Master
from penstock.runtime.network.tls import TlsFiles, server_context
from penstock.runtime.opening import RestoreElsewhere
from penstock.runtime.outcome import Incident, JobOutcome, JobResult, JobStatus, RequestOutcome
from penstock.runtime.rescaling import RescaleOutcome
from penstock.runtime.savepoints import SavepointRequest
from penstock.runtime.worker import WorkerConfig
from penstock.spark.deployment import SparkDeployment
from penstock.spark.entry import worker_function
from penstock.spark.session import session_for
from penstock.spark.slots import check_slots
from penstock.store.addresses import absolute_address
from penstock.store.checkpoints import CheckpointStore
from penstock.store.opening import open_files
from penstock.store.savepoints import check_free, find_snapshot


class JobFailed(RuntimeError):
    """The job ended without finishing. The message tells the whole story; `error` has it in parts."""

    def __init__(self, job: str, outcome: JobOutcome):
        super().__init__(_story(job, outcome))
        self.outcome = outcome
        self.error: ErrorReport | None = outcome.error


class CheckpointFailed(RuntimeError):
    """A checkpoint that was asked for did not complete."""


class RescaleFailed(RuntimeError):
    """The job goes on at the parallelism that it had."""


class Job:
    """A job that was started: watch it, checkpoint it, stop it; as `penstock` commands do from other processes."""

    def __init__(
        self,
        name: str,
        directory: str | None,
        driver: JobDriver,
        deployment: SparkDeployment,
        check_slots: Callable[[int], None],
    ):
        self.name, self.directory = name, directory
        self._check_slots = check_slots
        self._driver = driver
        self._deployment = deployment
        self._started = time.monotonic()
        self._over = threading.Event()
        """The job has ended; commands that wait for that are still to be answered."""
        self._ended = threading.Event()
        self._seconds = 0.0
        self._door = open_door(name, directory, Handler(self))
        threading.Thread(target=self._tidy_up, name=f"end of {name}", daemon=True).start()

    def wait(self, timeout: float | None = None) -> JobResult:
        """Until the job has ended. Raises `JobFailed` if it failed, `TimeoutError` if it goes on for longer."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"job {self.name!r} is still {self.status().state} after {timeout:g} s")
        return self.outcome()

    def outcome(self) -> JobResult:
        """As `wait`, for those whom the end of the job itself waits for."""
        self._over.wait()
        outcome = self._driver.wait()
        assert outcome is not None
        if outcome.state not in (JobState.FINISHED, JobState.CANCELLED):
            raise JobFailed(self.name, outcome)
        status = self.status()
        return JobResult(
            outcome.state, self._seconds, status.restarts, status.completed_checkpoints, status.newest_checkpoint
        )

    def done(self, timeout: float = 0.0) -> bool:
        """Whether the job has ended, in whatever way; waits for that up to `timeout` seconds."""
        return self._ended.wait(timeout)

    def stop(self, drain: bool = True, *, savepoint: str | None = None, timeout: float | None = None) -> JobResult:
        """Ends the job in good order. With `drain` the sources stop, everything that was read is processed to its end
        (windows close, timers fire) and committed. Without, a last checkpoint is taken and the job ends there: started
        again, it goes on as if nothing had been. `savepoint`: a directory to which the last checkpoint is copied;
        nothing is committed that it does not hold."""
        self.begin_stop(drain, savepoint=savepoint, timeout=timeout)
        return self.wait(timeout)

    def begin_stop(self, drain: bool = True, *, savepoint: str | None = None, timeout: float | None = None) -> None:
        """As `stop`, up to where nothing can go wrong any more: the job is about to end. Raises `CheckpointFailed` if
        it goes on, because its last checkpoint or its savepoint failed."""
        if drain and savepoint is None:
            self._driver.post(lambda master: master.drain())
        elif drain and savepoint is not None:
            self._savepoint(savepoint, timeout, lambda master, request: master.drain(request))
        elif savepoint is not None:
            self._savepoint(savepoint, timeout, lambda master, request: master.savepoint(request), stop=True)
        else:
            self.trigger_checkpoint(timeout)
            self.begin_cancel()

    def savepoint(self, path: str, *, aligned: bool = False, timeout: float | None = None) -> CheckpointId:
        """Takes a savepoint: a checkpoint of everything, copied to a directory of yours, from which this job or another
        can be started (`restore=path`), at any parallelism. `aligned`: without records in flight, which takes longer
        under backpressure, but then even the columns between two operators may change before it is restored. Returns
        the number of the checkpoint. Raises `CheckpointFailed` with the reason if it did not work."""
        return self._savepoint(path, timeout, lambda master, request: master.savepoint(request), aligned=aligned)

    def _savepoint(
        self,
        path: str,
        timeout: float | None,
        ask: Callable[[Master, SavepointRequest], None],
        aligned: bool = False,
        stop: bool = False,
    ) -> CheckpointId:
        answer: Future[RequestOutcome] = Future()
        address = absolute_address(path)
        try:
            check_free(open_files(address))
        except FileExistsError as error:
            raise CheckpointFailed(str(error)) from None
        request = SavepointRequest(lambda: open_files(address), answer.set_result, aligned, stop)
        self._driver.ask(lambda master: ask(master, request))
        return _completed(answer.result(timeout))

    def cancel(self) -> None:
        """Ends the job at once. What was committed stays; started again, it goes on from its last checkpoint."""
        self.begin_cancel()
        self._ended.wait()

    def begin_cancel(self) -> None:
        self._driver.post(lambda master: master.cancel())

    def trigger_checkpoint(self, timeout: float | None = None) -> CheckpointId:
        """Takes a checkpoint now and waits until it is complete. Raises `CheckpointFailed` with the reason if not."""
        answer: Future[RequestOutcome] = Future()
        self._driver.ask(lambda master: master.trigger(Purpose.CHECKPOINT, answer.set_result))
        return _completed(answer.result(timeout))

    def rescale(self, parallelism: int, timeout: float | None = None) -> RescaleOutcome:
        """Goes on at another parallelism, for all operators that have none of their own: new workers are started, a
        checkpoint is taken, and all begin again from it. Returns when the job runs again, with the seconds for which it
        did not. Raises `RescaleFailed` if it goes on as it was, with the reason."""
        self._check_slots(self._driver.ask(lambda master: master.slots_at(parallelism)))
        answer: Future[RescaleOutcome] = Future()
        self._driver.ask(lambda master: master.rescale(parallelism, answer.set_result))
        outcome = answer.result(timeout)
        if outcome.reason:
            raise RescaleFailed(outcome.reason)
        return outcome

    def configure(
        self, settings: CheckpointSettings | None = None, **options: Unpack[CheckpointOptions]
    ) -> CheckpointSettings:
        """Changes how checkpoints are taken from now on, with the words of `ps.Checkpoints`: `job.configure(every="5s",
        keep=5)`. What is not named stays as it is. Returns what holds now."""

        def configure(master: Master) -> CheckpointSettings:
            now = settings or master.settings
            if now is None:
                raise ValueError("the job runs without checkpoints: there is nothing to configure")
            changed = changed_settings(now, options)
            master.configure(changed)
            return changed

        return self._driver.ask(configure)

    def settings(self) -> CheckpointSettings | None:
        """How checkpoints are taken now; None in a job without."""
        return self._driver.ask(lambda master: master.settings)

    def status(self) -> JobStatus:
        return self._driver.ask(lambda master: master.status())

    def checkpoints(self) -> list[CheckpointStatistics]:
        """Of this run, oldest first, with the failed and unfinished ones."""
        return self._driver.ask(lambda master: master.statistics())

    def incidents(self) -> list[Incident]:
        """The failures of this run, oldest first, and when the job was running again."""
        return self._driver.ask(lambda master: master.incidents())

    def figures(self) -> dict[WorkerId, Figures]:
        """What each living worker last said of its subtasks: rows in and out so far, and seconds of work."""
        return self._driver.ask(lambda master: dict(master.figures()))

    def workers(self) -> dict[WorkerId, int]:
        """The living workers and their process ids."""
        return {worker: registered.pid for worker, registered in self._driver.workers().items()}

    def _tidy_up(self) -> None:
        self._driver.wait()
        self._seconds = time.monotonic() - self._started
        self._deployment.close()
        self._over.set()
        if self._door is not None:
            self._door.close()
        self._ended.set()


def start_job(
    graph: JobGraph,
    *,
    spark: SparkSession | None = None,
    checkpoints: CheckpointSettings | None = None,
    directory: str | None = None,
    runtime: RuntimeSettings | None = None,
    restarts: RestartSettings | None = None,
    restore: CheckpointId | str | None = None,
    claim: bool = False,
    tls: TlsFiles | None = None,
) -> Job:
    """Starts the job and returns. What is wrong from the start (too few slots, no Java, a directory that cannot be
    opened) is raised here; everything later by `Job.wait`."""
    runtime = runtime or RuntimeSettings()
    if (checkpoints is None) != (directory is None):
        raise ValueError("checkpoint settings and a checkpoint directory go together: give both or none")
    session = session_for(graph.slots + runtime.spares, spark)
    check_slots(session, graph.slots, runtime.spares)
    store = None
    if checkpoints and directory:
        directory = absolute_address(directory)
        store = CheckpointStore(open_files(directory), graph.name, checkpoints.keep)
    host, bind = _master_host(session)
    secret = secrets.token_bytes(32)
    driver = JobDriver(
        graph,
        checkpoints,
        runtime,
        restarts or ExponentialDelay(),
        store,
        host=bind,
        secret=secret,
        restore=_origin(restore, claim),
        tls=server_context(tls),
    )
    config = WorkerConfig(host, driver.port, secret, directory, runtime, tls)
    deployment = SparkDeployment(
        session,
        graph.name,
        f"penstock-{graph.name}-{secrets.token_hex(4)}",
        worker_function(config, cloudpickle.dumps(graph)),  # type: ignore[no-untyped-call]
        registrations=lambda: driver.registrations,
        gave_up=lambda reason: driver.post(lambda master: master.broke(ErrorReport(reason, retriable=False))),
    )
    driver.start(deployment.need)
    return Job(graph.name, directory, driver, deployment, lambda slots: check_slots(session, slots, runtime.spares))


def _master_host(session: SparkSession) -> tuple[str, str]:
    """Where workers find the master, and what it listens on: loopback if they cannot be elsewhere, else as Spark's own
    driver."""
    context = session.sparkContext
    if str(context.master).startswith("local"):
        return "127.0.0.1", "127.0.0.1"
    host = context.getConf().get("spark.driver.host") or "127.0.0.1"
    return host, context.getConf().get("spark.driver.bindAddress") or host


def _origin(restore: CheckpointId | str | None, claim: bool) -> CheckpointId | RestoreElsewhere | None:
    if not isinstance(restore, str):
        if claim:
            raise ValueError("claim=True goes with restore='path of a savepoint': that is what the job then owns")
        return restore
    address = absolute_address(restore)
    return RestoreElsewhere(lambda: find_snapshot(address), claim)


def _completed(outcome: RequestOutcome) -> CheckpointId:
    if outcome.checkpoint is None:
        raise CheckpointFailed(outcome.reason)
    return outcome.checkpoint


def _story(job: str, outcome: JobOutcome) -> str:
    lines = [f"job {job!r} {outcome.state}: {outcome.reason}"]
    error = outcome.error
    if error is not None:
        if error.uid:
            where = f"operator {error.operator or error.uid!r} (uid {error.uid!r})"
            lines.append(f"  in {where}" + (f", subtask {error.subtask}" if error.subtask >= 0 else ""))
        if error.sample_row:
            lines.append(f"  first row of the batch: {error.sample_row}")
        if error.traceback:
            lines += ["  traceback of the worker:", *(f"    {line}" for line in error.traceback.rstrip().splitlines())]
    return "\n".join(lines)
