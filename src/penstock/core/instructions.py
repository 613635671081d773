"""What the checkpoint coordinator wants done. The shell around it does these in the order given."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.barrier import Barrier
from penstock.core.causes import Cause
from penstock.core.ids import Attempt, CheckpointId, SubtaskId
from penstock.core.record import CheckpointRecord
from penstock.core.requests import RequestId
from penstock.core.statistics import CheckpointStatistics


@dataclass(frozen=True, slots=True)
class SendTrigger:
    attempt: Attempt
    subtasks: tuple[SubtaskId, ...]
    barrier: Barrier


@dataclass(frozen=True, slots=True)
class SendAbort:
    """To all workers: the checkpoint will never complete."""

    attempt: Attempt
    checkpoint: CheckpointId
    cause: Cause


@dataclass(frozen=True, slots=True)
class SendComplete:
    """To all workers."""

    attempt: Attempt
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Make the checkpoint complete in the store; answer with `record_written` or `record_failed`, once the outcome is
    certain."""

    record: CheckpointRecord


@dataclass(frozen=True, slots=True)
class Commit:
    """The checkpoint is complete: commit what its sinks prepared; answer with `committed`."""

    record: CheckpointRecord


@dataclass(frozen=True, slots=True)
class CheckpointEnded:
    """It completed or failed for good."""

    statistics: CheckpointStatistics
    request: RequestId | None
    """The explicit request that this answers."""


@dataclass(frozen=True, slots=True)
class FailAttempt:
    attempt: Attempt
    reason: str


Instruction = SendTrigger | SendAbort | SendComplete | WriteRecord | Commit | CheckpointEnded | FailAttempt
