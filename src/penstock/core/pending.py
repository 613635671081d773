"""One checkpoint between its trigger and its end: who still has to acknowledge, and what came in so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from penstock.core.barrier import Mode
from penstock.core.causes import Cause
from penstock.core.ids import Attempt, CheckpointId, Generation, SubtaskId, Uid
from penstock.core.moments import Moment
from penstock.core.plan import Plan
from penstock.core.record import CheckpointRecord, GraphRecord, SubtaskRecord
from penstock.core.requests import Request
from penstock.core.statistics import CheckpointStatistics, Status


class Phase(Enum):
    COLLECTING = auto()
    """Not all have acknowledged."""
    READY = auto()
    """All have; the record of another checkpoint is being written first."""
    WRITING = auto()
    """The record is on its way to the store. Only the store's answer ends this."""


@dataclass(slots=True)
class PendingCheckpoint:
    id: CheckpointId
    attempt: Attempt
    mode: Mode
    request: Request
    plan: Plan
    triggered: Moment
    deadline: float
    base: CheckpointId | None = None
    """The complete checkpoint that it may be built upon."""
    phase: Phase = Phase.COLLECTING
    waiting: set[SubtaskId] = field(default_factory=set)
    acknowledged: dict[SubtaskId, SubtaskRecord] = field(default_factory=dict)
    committables: dict[SubtaskId, Mapping[Uid, Sequence[bytes]]] = field(default_factory=dict)
    record: CheckpointRecord | None = None
    """What is being written."""

    def __post_init__(self) -> None:
        self.waiting = set(self.plan.acknowledge)

    def acknowledge(self, record: SubtaskRecord, committables: Mapping[Uid, Sequence[bytes]]) -> None:
        self.waiting.remove(record.subtask)
        self.acknowledged[record.subtask] = record
        if committables:
            self.committables[record.subtask] = committables
        if not self.waiting:
            self.phase = Phase.READY

    def make_record(
        self,
        at: Moment,
        generation: Generation,
        graph: GraphRecord,
        uncommitted: Sequence[Mapping[Uid, Sequence[bytes]]],
    ) -> CheckpointRecord:
        """`uncommitted`: of complete checkpoints whose commit has not returned yet."""
        finished = [SubtaskRecord(subtask, finished=True) for subtask in self.plan.finished]
        taken = [self.acknowledged[subtask] for subtask in self.plan.acknowledge]
        return CheckpointRecord(
            checkpoint=self.id,
            generation=generation,
            attempt=self.attempt,
            mode=self.mode,
            purpose=self.request.purpose,
            triggered_ms=self.triggered.wall_ms,
            completed_ms=at.wall_ms,
            graph=graph,
            subtasks=tuple(sorted([*finished, *taken], key=lambda record: record.subtask)),
            committables=_merged([*uncommitted, *(self.committables[s] for s in sorted(self.committables))]),
        )

    def statistics(
        self,
        at: Moment,
        status: Status,
        cause: Cause | None = None,
        subtask: SubtaskId | None = None,
        reason: str = "",
    ) -> CheckpointStatistics:
        return CheckpointStatistics(
            checkpoint=self.id,
            attempt=self.attempt,
            purpose=self.request.purpose,
            mode=self.mode,
            status=status,
            triggered_ms=self.triggered.wall_ms,
            duration_ms=(at.now - self.triggered.now) * 1000.0,
            expected=len(self.plan.acknowledge),
            finished=len(self.plan.finished),
            subtasks={subtask: record.figures for subtask, record in self.acknowledged.items()},
            cause=cause,
            subtask=subtask,
            reason=reason,
        )


def _merged(groups: Sequence[Mapping[Uid, Sequence[bytes]]]) -> dict[Uid, tuple[bytes, ...]]:
    """All committables of each sink, each one once, in the order of their first mention."""
    merged: dict[Uid, dict[bytes, None]] = {}
    for group in groups:
        for uid, committables in group.items():
            merged.setdefault(uid, {}).update(dict.fromkeys(committables))
    return {uid: tuple(committables) for uid, committables in merged.items() if committables}
