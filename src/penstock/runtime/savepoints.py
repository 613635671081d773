"""Takes savepoints: a complete checkpoint, copied out once its output is committed.

A savepoint is a checkpoint like any other until it is complete: it is the job's restore point, and its output is
committed. Then it is copied, off the master's thread, to the directory that the user named; until that is done,
retention leaves it alone. A job that stops with it starts no other checkpoint after it, so that nothing is committed
that the savepoint does not know. A job that drains takes one final checkpoint with all of its state, and is not over
before that is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.barrier import Purpose
from penstock.core.ids import CheckpointId
from penstock.runtime.backoff import Background
from penstock.runtime.checkpointing import Answer, Checkpointing
from penstock.runtime.outcome import RequestOutcome

if TYPE_CHECKING:
    from penstock.store.checkpoints import CheckpointStore
    from penstock.store.files import Files


@dataclass(frozen=True)
class SavepointRequest:
    open_target: Callable[[], Files]
    """Called off the master's thread."""
    then: Answer
    aligned: bool = False
    """It shall hold no records in flight."""
    stop: bool = False
    """The job ends with it."""


class Savepoints:
    def __init__(
        self,
        store: CheckpointStore,
        checkpointing: Checkpointing,
        background: Background,
        stopped: Callable[[], None],
    ) -> None:
        """`stopped`: a job that was to end with its savepoint can."""
        self._store, self._checkpointing, self._background, self._stopped = store, checkpointing, background, stopped
        self._uncommitted: dict[CheckpointId, tuple[SavepointRequest, RequestOutcome]] = {}
        self._copying: list[SavepointRequest] = []
        self._at_end: SavepointRequest | None = None

    @property
    def busy(self) -> bool:
        """Whether something is being copied."""
        return bool(self._copying)

    def take(self, request: SavepointRequest) -> None:
        self._checkpointing.trigger(
            Purpose.SAVEPOINT, lambda outcome: self._taken(request, outcome), request.stop, request.aligned
        )

    def take_at_end(self, request: SavepointRequest) -> None:
        """The job is being drained: its final checkpoint is the savepoint."""
        self._at_end = request
        self._checkpointing.end_together()

    def committed(self, checkpoint: CheckpointId) -> None:
        if checkpoint in self._uncommitted:
            self._copy(checkpoint, *self._uncommitted.pop(checkpoint))

    def all_committed(self, newest: CheckpointId) -> None:
        """Of a job that has drained: nothing is left to do but to copy its final checkpoint."""
        if self._at_end is not None:
            request, self._at_end = self._at_end, None
            self._copy(newest, request, RequestOutcome(None, before=newest))

    def job_ended(self, reason: str) -> None:
        left = [*(request for request, _ in self._uncommitted.values()), *self._copying]
        left += [self._at_end] if self._at_end is not None else []
        self._uncommitted, self._copying, self._at_end = {}, [], None
        for request in left:
            request.then(RequestOutcome(None, f"the job has ended: {reason}"))

    def _taken(self, request: SavepointRequest, outcome: RequestOutcome) -> None:
        if outcome.checkpoint is None:
            request.then(outcome)
        else:
            self._store.hold(outcome.checkpoint)
            self._uncommitted[outcome.checkpoint] = (request, outcome)

    def _copy(self, checkpoint: CheckpointId, request: SavepointRequest, outcome: RequestOutcome) -> None:
        self._copying.append(request)

        def work() -> None:
            self._store.export(checkpoint, request.open_target())

        self._background(work, lambda result: self._copied(checkpoint, request, outcome, result))

    def _copied(
        self, checkpoint: CheckpointId, request: SavepointRequest, outcome: RequestOutcome, result: object
    ) -> None:
        self._store.release(checkpoint)
        if request not in self._copying:
            return  # the job has ended meanwhile, and who asked was told
        self._copying.remove(request)
        if isinstance(result, BaseException):
            reason = f"checkpoint {checkpoint} is complete, but could not be copied: {type(result).__name__}: {result}"
            request.then(RequestOutcome(outcome.statistics, reason))
            if request.stop:
                self._checkpointing.resume()
            return
        request.then(outcome)
        if request.stop:
            self._stopped()
