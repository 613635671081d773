"""Why a checkpoint did not complete: one enum, so that statistics, logs and tests speak of the same things."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    EXPIRED = "expired"
    """Not acknowledged by all within the timeout."""
    DECLINED = "declined"
    """A subtask could not take part (its snapshot raised)."""
    WRITE_FAILED = "write_failed"
    """A subtask's or the coordinator's write to the store failed."""
    SUPERSEDED = "superseded"
    """A newer checkpoint overtook it at a subtask or completed first."""
    SUBTASK_FINISHED = "subtask_finished"
    """A subtask that should start the barrier had ended in the meantime; a new one is triggered at once."""
    JOB_FAILED = "job_failed"
    """The attempt that took it ended."""
    JOB_STOPPED = "job_stopped"
    RESCALED = "rescaled"
    """The attempt that took it ended for another parallelism."""
    FENCED = "fenced"
    """Another driver has claimed the job's directory."""

    @property
    def counts_as_failure(self) -> bool:
        """Whether it counts against the tolerable failures: only what says that checkpoints themselves are in
        trouble."""
        return self in (Cause.EXPIRED, Cause.DECLINED, Cause.WRITE_FAILED)
