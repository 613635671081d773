"""What one task tells the master, as control messages of its attempt."""

from __future__ import annotations

import reprlib
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence

from penstock.core.causes import Cause
from penstock.core.handles import PartHandle, SnapshotFigures
from penstock.core.ids import Attempt, CheckpointId, SubtaskId, Uid
from penstock.operators.base import OperatorError
from penstock.runtime.control.messages import (
    Acknowledge,
    Decline,
    Drained,
    ErrorReport,
    Finished,
    TaskFailed,
    ToMaster,
)
from penstock.runtime.telling import Told
from penstock.state.tables import StateMismatch
from penstock.store.errors import CorruptCheckpoint, UnknownFormat

_HOPELESS = (CorruptCheckpoint, UnknownFormat, StateMismatch)
"""What is stored stays as it is: to try again changes nothing."""


class Reports:
    """The `TaskReports` of one task. Also remembers which triggers it still owes an answer: a trigger that meets the
    task's end would otherwise keep its checkpoint waiting until it expires."""

    def __init__(
        self,
        attempt: Attempt,
        subtask: SubtaskId,
        send: Callable[[ToMaster], None],
        named: Callable[[CheckpointId, Sequence[PartHandle]], None] | None = None,
        acknowledge: Callable[[Acknowledge], None] | None = None,
    ):
        """`named` hears what an acknowledgement names before it is sent; `acknowledge` sends it, if that need not be at
        once."""
        self._attempt = attempt
        self._subtask = subtask
        self._send = send
        self._named = named
        self._acknowledge = acknowledge or send
        self._told = Told()
        self._lock = threading.Lock()
        self._owed: set[CheckpointId] = set()

    def triggered(self, checkpoint: CheckpointId) -> None:
        with self._lock:
            self._owed.add(checkpoint)

    def settled(self, checkpoint: CheckpointId) -> None:
        """Nobody waits for an answer (any more)."""
        with self._lock:
            self._owed.discard(checkpoint)

    def ended(self) -> None:
        """The task will answer nothing any more."""
        with self._lock:
            owed, self._owed = self._owed, set()
        for checkpoint in sorted(owed):
            self.decline(checkpoint, Cause.SUBTASK_FINISHED, f"{self._subtask} had ended when it was triggered")

    # ---- what the task says ----
    def acknowledge(
        self,
        checkpoint: CheckpointId,
        handles: Sequence[PartHandle],
        committables: Mapping[Uid, Sequence[bytes]],
        figures: SnapshotFigures,
        drained: bool,
    ) -> None:
        self.settled(checkpoint)
        if self._named is not None:
            self._named(checkpoint, handles)
        listed = _as_lists(committables)
        turn, kept, new = self._told.tell(handles)
        self._acknowledge(
            Acknowledge(self._attempt, self._subtask, checkpoint, new, listed, figures, drained, turn, kept)
        )

    def decline(self, checkpoint: CheckpointId, cause: Cause, reason: str) -> None:
        self.settled(checkpoint)
        self._send(Decline(self._attempt, self._subtask, checkpoint, cause, reason))

    def drained(self, committables: Mapping[Uid, Sequence[bytes]]) -> None:
        self._send(Drained(self._attempt, self._subtask, _as_lists(committables)))

    def finished(self) -> None:
        self._send(Finished(self._attempt, self._subtask))

    def failed(self, error: BaseException) -> None:
        self._send(TaskFailed(self._attempt, self._subtask, error_report(error, self._subtask)))

    def cancelled(self) -> None:
        """The worker cancels all tasks of an attempt and answers for them together."""


def error_report(error: BaseException, subtask: SubtaskId) -> ErrorReport:
    retriable = not any(isinstance(cause, _HOPELESS) for cause in _causes(error))
    if isinstance(error, OperatorError):
        return ErrorReport(
            message=str(error),
            uid=error.uid,
            operator=error.name,
            subtask=error.subtask,
            sample_row="" if error.sample_row is None else _row_text(error.sample_row),
            traceback=error.traceback,
            retriable=retriable,
        )
    return ErrorReport(
        message=f"{type(error).__name__}: {error}",
        uid=subtask.chain,
        subtask=subtask.index,
        traceback="".join(traceback.format_exception(error)),
        retriable=retriable,
    )


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    while error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__ or error
    return found


def _row_text(row: Mapping[str, object]) -> str:
    return "{" + ", ".join(f"{name}: {reprlib.repr(value)}" for name, value in row.items()) + "}"


def _as_lists(committables: Mapping[Uid, Sequence[bytes]]) -> dict[Uid, list[bytes]]:
    return {uid: list(entries) for uid, entries in committables.items()}
