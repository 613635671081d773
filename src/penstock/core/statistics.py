"""What is known about every checkpoint, also failed and unfinished ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.core.barrier import Mode, Purpose
from penstock.core.causes import Cause
from penstock.core.handles import SnapshotFigures
from penstock.core.ids import Attempt, CheckpointId, SubtaskId


class Status(StrEnum):
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckpointStatistics:
    checkpoint: CheckpointId
    attempt: Attempt
    purpose: Purpose
    mode: Mode
    status: Status
    triggered_ms: int
    """Wall clock, milliseconds since the epoch."""
    duration_ms: float
    """From the trigger to the end; to now while it is in progress."""
    expected: int
    """How many subtasks had to acknowledge."""
    finished: int
    """How many had finished before it."""
    subtasks: Mapping[SubtaskId, SnapshotFigures] = field(default_factory=dict)
    """Of those that acknowledged."""
    cause: Cause | None = None
    subtask: SubtaskId | None = None
    """The one that the failure came from, if it came from one."""
    reason: str = ""

    @property
    def state_bytes(self) -> int:
        return sum(figures.state_bytes for figures in self.subtasks.values())

    @property
    def in_flight_bytes(self) -> int:
        return sum(figures.in_flight_bytes for figures in self.subtasks.values())

    @property
    def unaligned(self) -> bool:
        """Whether its barrier overtook records anywhere."""
        return any(figures.unaligned for figures in self.subtasks.values())

    def as_entry(self) -> dict[str, object]:
        """As it is written down: plain values only."""
        return {
            "checkpoint": self.checkpoint,
            "attempt": self.attempt,
            "purpose": str(self.purpose),
            "mode": str(self.mode),
            "status": str(self.status),
            "triggered_ms": self.triggered_ms,
            "duration_ms": self.duration_ms,
            "expected": self.expected,
            "finished": self.finished,
            "state_bytes": self.state_bytes,
            "in_flight_bytes": self.in_flight_bytes,
            "unaligned": self.unaligned,
            "cause": str(self.cause) if self.cause else None,
            "subtask": str(self.subtask) if self.subtask else None,
            "reason": self.reason,
            "subtasks": {str(subtask): figures.as_dict() for subtask, figures in self.subtasks.items()},
        }


class History:
    """Counts all checkpoints of this driver's life and keeps the figures of the last ones."""

    def __init__(self, limit: int = 200) -> None:
        self._ended: deque[CheckpointStatistics] = deque(maxlen=limit)
        self.completed = 0
        self.failed = 0

    def add(self, statistics: CheckpointStatistics) -> None:
        self._ended.append(statistics)
        if statistics.status is Status.COMPLETED:
            self.completed += 1
        else:
            self.failed += 1

    def last(self) -> Sequence[CheckpointStatistics]:
        """Oldest first."""
        return tuple(self._ended)
