"""How a job ended, how it is doing, and what became of a checkpoint that somebody asked for."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from penstock.core.ids import Attempt, CheckpointId, WorkerId
from penstock.core.orders import JobState
from penstock.core.statistics import CheckpointStatistics
from penstock.runtime.control.messages import ErrorReport


@dataclass(frozen=True, slots=True)
class JobOutcome:
    state: JobState
    """FINISHED, FAILED, CANCELLED or FENCED."""
    reason: str
    error: ErrorReport | None = None
    """Of a FAILED job: the last failure, as it was reported."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended that did not fail."""

    state: JobState
    """FINISHED or CANCELLED."""
    seconds: float
    restarts: int
    checkpoints: int
    """Completed by this run."""
    newest_checkpoint: CheckpointId | None


@dataclass(frozen=True, slots=True)
class Incident:
    """A failure that ended an attempt. Times are the driver's wall clock, milliseconds since the epoch."""

    attempt: Attempt
    reason: str
    detected_ms: int
    restarted_ms: int | None = None
    """When every subtask of the next attempt was told to run; None as long as none was."""
    from_store: int = 0
    """Bytes that workers which keep local copies restored from the store all the same; and from the copies."""
    from_copies: int = 0


@dataclass(frozen=True, slots=True)
class JobStatus:
    state: JobState
    attempt: Attempt
    restarts: int
    workers: tuple[WorkerId | None, ...]
    """By slot."""
    spares: tuple[WorkerId, ...]
    newest_checkpoint: CheckpointId | None
    completed_checkpoints: int
    """By this driver, as are the failed ones."""
    failed_checkpoints: int
    last_failure: ErrorReport | None


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """What became of `Master.trigger`."""

    statistics: CheckpointStatistics | None
    """None: the job ended before the checkpoint started."""
    reason: str = ""
    """Why it failed; empty if it completed."""
    before: CheckpointId | None = None
    """It was complete already when it was asked for."""

    @property
    def checkpoint(self) -> CheckpointId | None:
        """The completed checkpoint."""
        if self.before is not None and not self.reason:
            return self.before
        return self.statistics.checkpoint if self.statistics is not None and not self.reason else None


def report_of(error: BaseException, message: str = "", uid: str = "", retriable: bool = True) -> ErrorReport:
    """An exception of the driver as a report; `message` says what was being done."""
    text = f"{type(error).__name__}: {error}"
    return ErrorReport(
        message=f"{message}: {text}" if message else text,
        uid=uid,
        traceback="".join(traceback.format_exception(error)),
        retriable=retriable,
    )
