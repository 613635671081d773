"""From a request to its answer: the only place that knows what a request means for a job.

`Handler.handle` knows no transport; whatever carries requests (the Unix socket of `remote/server.py`, a web page) calls
it from a thread of its own, for a long request takes as long as what it asks for. It never raises: what goes wrong is
an answer too.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Final, Protocol, Unpack, cast

from penstock.api.checkpoints import CheckpointOptions
from penstock.core.ids import CheckpointId
from penstock.core.settings import CheckpointSettings
from penstock.core.statistics import CheckpointStatistics, Status
from penstock.remote import messages as wire
from penstock.runtime.outcome import JobResult, JobStatus
from penstock.runtime.rescaling import RescaleOutcome

_LOG: Final = logging.getLogger(__name__)
_EXPECTED: Final = (RuntimeError, ValueError, OSError)
"""What a job says when it refuses or fails; anything else is a bug, and told to the driver's log too."""


class ControlledJob(Protocol):
    """What is asked of a job; `spark.job.Job` is one."""

    name: str

    def status(self) -> JobStatus: ...

    def settings(self) -> CheckpointSettings | None: ...

    def checkpoints(self) -> list[CheckpointStatistics]: ...

    def trigger_checkpoint(self) -> CheckpointId: ...

    def savepoint(self, path: str, *, aligned: bool = False) -> CheckpointId: ...

    def begin_stop(self, drain: bool = True, *, savepoint: str | None = None) -> None:
        """Returns when the job is about to end; raises if it will not."""
        ...

    def begin_cancel(self) -> None: ...

    def outcome(self) -> JobResult:
        """Waits for the end of the job."""
        ...

    def rescale(self, parallelism: int) -> RescaleOutcome: ...

    def configure(self, **options: Unpack[CheckpointOptions]) -> CheckpointSettings: ...


class Handler:
    def __init__(self, job: ControlledJob) -> None:
        self._job = job

    def handle(self, request: wire.Request) -> wire.Answer:
        try:
            return self._answer(request)
        except Exception as error:
            if not isinstance(error, _EXPECTED):
                _LOG.exception("the request %s failed", request)
            return wire.Refused(type(error).__name__, str(error))

    def _answer(self, request: wire.Request) -> wire.Answer:
        job = self._job
        match request:
            case wire.Describe():
                return self._view()
            case wire.ListCheckpoints(last):
                shown = job.checkpoints()[-last:] if last > 0 else []
                return wire.Checkpoints([checkpoint.as_entry() for checkpoint in shown])
            case wire.TakeCheckpoint():
                return wire.CheckpointTaken(job.trigger_checkpoint())
            case wire.TakeSavepoint(path, aligned):
                return wire.CheckpointTaken(job.savepoint(path, aligned=aligned))
            case wire.Stop(drain, savepoint):
                job.begin_stop(drain, savepoint=savepoint)
                return self._ended()
            case wire.Cancel():
                job.begin_cancel()
                return self._ended()
            case wire.Rescale(parallelism):
                done = job.rescale(parallelism)
                return wire.Rescaled(done.parallelism, done.checkpoint, done.outage)
            case wire.Configure(options):
                return wire.Configured(asdict(job.configure(**cast(CheckpointOptions, options))))

    def _ended(self) -> wire.Ended:
        result = self._job.outcome()
        return wire.Ended(result.state, result.seconds, result.restarts, result.checkpoints, result.newest_checkpoint)

    def _view(self) -> wire.JobView:
        status, settings = self._job.status(), self._job.settings()
        underway = [one for one in self._job.checkpoints() if one.status is Status.IN_PROGRESS]
        return wire.JobView(
            name=self._job.name,
            state=status.state,
            attempt=status.attempt,
            restarts=status.restarts,
            slots=len(status.workers),
            workers=sum(worker is not None for worker in status.workers),
            spares=len(status.spares),
            newest_checkpoint=status.newest_checkpoint,
            completed_checkpoints=status.completed_checkpoints,
            failed_checkpoints=status.failed_checkpoints,
            last_failure=status.last_failure.message if status.last_failure else "",
            settings=asdict(settings) if settings else None,
            underway=[
                wire.Underway(one.checkpoint, one.purpose, len(one.subtasks), one.expected, one.duration_ms)
                for one in underway
            ],
        )
