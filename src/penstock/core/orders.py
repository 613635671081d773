"""The states of a job, and what its lifecycle orders: values that `JobLifecycle` returns and its shell executes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.core.ids import Attempt, WorkerId


class JobState(StrEnum):
    WAITING_FOR_WORKERS = "waiting_for_workers"
    DEPLOYING = "deploying"
    RUNNING = "running"
    RESETTING = "resetting"
    COMMITTING = "committing"
    """All subtasks have finished; the last output is being committed."""
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    FENCED = "fenced"
    """Another driver has taken over the job's directory."""

    @property
    def terminal(self) -> bool:
        return self in (JobState.FINISHED, JobState.FAILED, JobState.CANCELLED, JobState.FENCED)


@dataclass(frozen=True, slots=True)
class Failure:
    reason: str
    retriable: bool = True
    report: object = None
    """Whatever the shell wants to find again in the job's outcome."""


# ---- orders ----
@dataclass(frozen=True, slots=True)
class NeedWorkers:
    """How many live workers the job wants in all."""

    count: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Choose what the attempt restores from, recover the sinks; answer with `prepared`."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class DeployAttempt:
    attempt: Attempt
    workers: tuple[WorkerId, ...]
    """By slot."""


@dataclass(frozen=True, slots=True)
class StartAttempt:
    attempt: Attempt
    workers: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    attempt: Attempt
    failure: Failure | None
    """None: the job was ended, or goes on with another number of slots."""


@dataclass(frozen=True, slots=True)
class ResetWorker:
    worker: WorkerId
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class DisconnectWorker:
    worker: WorkerId
    reason: str


@dataclass(frozen=True, slots=True)
class ShutdownWorker:
    worker: WorkerId
    reason: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    state: JobState
    reason: str
    failure: Failure | None = None


Order = (
    NeedWorkers
    | Prepare
    | DeployAttempt
    | StartAttempt
    | AttemptEnded
    | ResetWorker
    | DisconnectWorker
    | ShutdownWorker
    | JobEnded
)
