"""Writes checkpoint records and finds out for certain what became of them.

An error from the store is ambiguous: the write may have happened although its answer was lost. Subtasks delete their
files of an aborted checkpoint, so a complete one must never be taken for a failed one. Therefore after an error the
store is asked whether the checkpoint is complete, again and again until it answers; only then is the outcome told. If
it never answers, the job fails: the next start reads the truth.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.core.ids import CheckpointId
from penstock.core.record import CheckpointRecord
from penstock.core.store import Fenced
from penstock.operators.base import Clock
from penstock.runtime.backoff import STORE_RETRIES, Background, Retry
from penstock.runtime.control.messages import ErrorReport
from penstock.runtime.outcome import report_of

if TYPE_CHECKING:
    from penstock.store.checkpoints import CheckpointStore


class RecordOutcomes(Protocol):
    def record_written(self, checkpoint: CheckpointId) -> None: ...

    def record_failed(self, checkpoint: CheckpointId, error: str) -> None: ...

    def fenced(self, reason: str) -> None: ...

    def broke(self, report: ErrorReport) -> None: ...


@dataclass
class _InDoubt:
    checkpoint: CheckpointId
    error: BaseException
    retry: Retry = field(default_factory=lambda: Retry(STORE_RETRIES))


class RecordWriter:
    def __init__(self, store: CheckpointStore, background: Background, clock: Clock, outcomes: RecordOutcomes) -> None:
        self._store, self._background, self._clock, self._outcomes = store, background, clock, outcomes
        self._in_doubt: _InDoubt | None = None

    def write(self, record: CheckpointRecord) -> None:
        self._background(lambda: self._store.complete(record), lambda result: self._wrote(record.checkpoint, result))

    def tick(self) -> None:
        if self._in_doubt and self._in_doubt.retry.take(self._clock.now()):
            self._ask(self._in_doubt)

    def next_wake(self) -> float | None:
        return self._in_doubt.retry.due if self._in_doubt else None

    def _wrote(self, checkpoint: CheckpointId, result: object) -> None:
        if isinstance(result, Fenced):
            self._outcomes.fenced(str(result))
        elif isinstance(result, BaseException):
            self._in_doubt = _InDoubt(checkpoint, result)
            self._ask(self._in_doubt)
        else:
            self._outcomes.record_written(checkpoint)

    def _ask(self, doubt: _InDoubt) -> None:
        self._background(
            lambda: self._store.is_complete(doubt.checkpoint), lambda answer: self._answered(doubt, answer)
        )

    def _answered(self, doubt: _InDoubt, answer: object) -> None:
        if isinstance(answer, Fenced):
            self._in_doubt = None
            self._outcomes.fenced(str(answer))
            return
        if isinstance(answer, BaseException):
            if not doubt.retry.failed(self._clock.now()):
                self._in_doubt = None
                message = f"the checkpoint store does not say whether checkpoint {doubt.checkpoint} is complete"
                self._outcomes.broke(report_of(answer, message, retriable=False))
            return
        self._in_doubt = None
        if answer:
            self._outcomes.record_written(doubt.checkpoint)
        else:
            error = f"the record could not be written: {type(doubt.error).__name__}: {doubt.error}"
            self._outcomes.record_failed(doubt.checkpoint, error)
