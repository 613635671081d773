"""Executes what the checkpoint coordinator decides: messages to workers, records to the store, figures, answers.

What it cannot do alone it hands to the master (`CheckpointEvents`): committing, failing the attempt, ending the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from penstock.core.barrier import Barrier, Purpose
from penstock.core.causes import Cause
from penstock.core.coordinator import CheckpointCoordinator
from penstock.core.ids import Attempt, CheckpointId, SubtaskId
from penstock.core.instructions import (
    CheckpointEnded,
    Commit,
    FailAttempt,
    Instruction,
    SendAbort,
    SendComplete,
    SendTrigger,
    WriteRecord,
)
from penstock.core.moments import Moment
from penstock.core.orders import Failure
from penstock.core.plan import Topology
from penstock.core.record import CheckpointRecord, GraphRecord
from penstock.core.requests import RequestId
from penstock.core.settings import CheckpointSettings
from penstock.core.statistics import CheckpointStatistics, Status
from penstock.operators.base import Clock
from penstock.runtime.backoff import Background
from penstock.runtime.control.messages import (
    AbortCheckpoint,
    Acknowledge,
    CompleteCheckpoint,
    Decline,
    Drained,
    ErrorReport,
    Finished,
    ToWorker,
    TriggerCheckpoint,
)
from penstock.runtime.housekeeping import Housekeeping
from penstock.runtime.outcome import RequestOutcome
from penstock.runtime.records import RecordWriter
from penstock.runtime.telling import Heard

if TYPE_CHECKING:
    from penstock.store.checkpoints import CheckpointStore, Claim

Answer = Callable[[RequestOutcome], None]


class CheckpointEvents(Protocol):
    """What the master does for its checkpoints."""

    def to_subtasks(self, subtasks: Iterable[SubtaskId], message: Callable[[list[SubtaskId]], ToWorker]) -> None:
        """To each worker the message for those of the subtasks that it runs."""
        ...

    def to_all(self, message: ToWorker) -> None: ...

    def completed(self, record: CheckpointRecord) -> None:
        """The checkpoint is complete: it is the restore point from now on, and its output is to be committed."""
        ...

    def attempt_failed(self, attempt: Attempt, reason: str) -> None: ...

    def fenced(self, reason: str) -> None: ...

    def broke(self, report: ErrorReport) -> None: ...


class Checkpointing:
    def __init__(
        self,
        store: CheckpointStore,
        settings: CheckpointSettings,
        claim: Claim,
        graph: GraphRecord,
        topology: Topology,
        background: Background,
        clock: Clock,
        clean_every: float,
        events: CheckpointEvents,
    ) -> None:
        self._clock, self._events = clock, events
        newest = claim.newest.checkpoint if claim.newest else None
        self.coordinator = CheckpointCoordinator(topology, graph, settings, claim.generation, claim.next_id, newest)
        self.housekeeping = Housekeeping(
            store,
            background,
            events.fenced,
            lambda: (self.coordinator.bases, self.coordinator.oldest_writer),
            clock,
            clean_every,
        )
        self._records = RecordWriter(store, background, clock, self)
        self._answers: dict[RequestId, Answer] = {}
        self._heard = Heard()

    @property
    def all_finished(self) -> bool:
        return self.coordinator.all_finished

    @property
    def busy(self) -> bool:
        """Whether the outcome of a record is not known yet."""
        return self.coordinator.writing

    def trigger(self, purpose: Purpose, then: Answer, last: bool = False, aligned: bool = False) -> None:
        """See `CheckpointCoordinator.request`."""
        request, instructions = self.coordinator.request(self._at(), purpose, last, aligned)
        self._answers[request] = then
        self._do(instructions)

    def rescale(self, topology: Topology, graph: GraphRecord) -> None:
        self._do(self.coordinator.rescale(self._at(), topology, graph))

    def resume(self) -> None:
        self._do(self.coordinator.resume(self._at()))

    def end_together(self) -> None:
        self._do(self.coordinator.end_together(self._at()))

    def configure(self, settings: CheckpointSettings) -> None:
        self._do(self.coordinator.configure(self._at(), settings))

    def attempt_started(self, attempt: Attempt, restored: CheckpointRecord | None) -> None:
        self._heard = Heard(attempt)
        self._do(self.coordinator.attempt_started(self._at(), attempt, restored))

    def attempt_ended(self, attempt: Attempt, failure: Failure | None) -> None:
        cause, reason = (Cause.JOB_FAILED, failure.reason) if failure else (Cause.JOB_STOPPED, "the job ended")
        self._do(self.coordinator.attempt_ended(self._at(), attempt, cause, reason))

    def job_ended(self, reason: str) -> None:
        """Answers requests that will never be served."""
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer(RequestOutcome(None, f"the job has ended: {reason}"))

    def received(self, message: Acknowledge | Decline | Drained | Finished) -> None:
        at = self._at()
        match message:
            case Acknowledge(attempt, subtask, checkpoint, _, committables, figures, drained):
                handles = self._heard.hear(message)
                if handles is None:
                    return
                instructions = self.coordinator.acknowledge(
                    at, attempt, subtask, checkpoint, handles, committables, figures, drained
                )
            case Decline(attempt, subtask, checkpoint, cause, reason):
                instructions = self.coordinator.decline(at, attempt, subtask, checkpoint, cause, reason)
            case Drained(attempt, subtask, _):
                instructions = self.coordinator.drained(at, attempt, subtask)
            case Finished(attempt, subtask):
                instructions = self.coordinator.finished(at, attempt, subtask)
        self._do(instructions)

    def committed(self, checkpoint: CheckpointId) -> None:
        self.coordinator.committed(self._at(), checkpoint)

    def tick(self) -> None:
        self._do(self.coordinator.tick(self._at()))
        self._records.tick()

    def next_wake(self) -> float | None:
        wakes = (self.coordinator.next_wake(), self._records.next_wake())
        return min((wake for wake in wakes if wake is not None), default=None)

    def statistics(self) -> list[CheckpointStatistics]:
        return self.coordinator.statistics(self._at())

    # ---- outcomes of records ----
    def record_written(self, checkpoint: CheckpointId) -> None:
        self._do(self.coordinator.record_written(self._at(), checkpoint))

    def record_failed(self, checkpoint: CheckpointId, error: str) -> None:
        self._do(self.coordinator.record_failed(self._at(), checkpoint, error))

    def fenced(self, reason: str) -> None:
        self._events.fenced(reason)

    def broke(self, report: ErrorReport) -> None:
        self._events.broke(report)

    # ---- executing ----
    def _do(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case SendTrigger(attempt, subtasks, barrier):
                    self._trigger(attempt, subtasks, barrier)
                case SendAbort(attempt, checkpoint, cause):
                    self._events.to_all(AbortCheckpoint(attempt, checkpoint, cause))
                case SendComplete(attempt, checkpoint):
                    self._events.to_all(CompleteCheckpoint(attempt, checkpoint))
                case WriteRecord(record):
                    self._records.write(record)
                case Commit(record):
                    self._events.completed(record)
                case CheckpointEnded(statistics, request):
                    self._ended(statistics, request)
                case FailAttempt(attempt, reason):
                    self._events.attempt_failed(attempt, reason)

    def _trigger(self, attempt: Attempt, subtasks: tuple[SubtaskId, ...], barrier: Barrier) -> None:
        self._events.to_subtasks(subtasks, lambda own: TriggerCheckpoint(attempt, own, barrier))

    def _ended(self, statistics: CheckpointStatistics, request: RequestId | None) -> None:
        self.housekeeping.ended(statistics)
        answer = self._answers.pop(request, None) if request is not None else None
        if answer is not None:
            failed = "" if statistics.status is Status.COMPLETED else f"{statistics.cause}: {statistics.reason}"
            answer(RequestOutcome(statistics, failed))

    def _at(self) -> Moment:
        return Moment(self._clock.now(), self._clock.wall_ms())
