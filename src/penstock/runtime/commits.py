"""Commits what sinks prepared: off the master's thread, strictly one after another in the order asked, with a few
retries.

Commits are idempotent, so a step that failed half-way is simply done again. One that keeps failing ends the job: its
checkpoint is complete, the next start commits it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.connectors.base import Committer
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.operators.base import Clock
from penstock.runtime.backoff import COMMIT_RETRIES, Background, Retry
from penstock.runtime.control.messages import ErrorReport
from penstock.runtime.outcome import report_of


class CommitFailed(Exception):
    """Names the sink; the cause is what it raised."""

    def __init__(self, uid: Uid, doing: str) -> None:
        super().__init__(f"sink {uid!r} failed while {doing}")
        self.uid = uid


@dataclass
class _Step:
    doing: str
    calls: Mapping[Uid, Callable[[], None]]
    then: Callable[[], None]
    nothing: bool = False
    """It is a commit of nothing, as most are where checkpoints are frequent."""
    retry: Retry = field(default_factory=lambda: Retry(COMMIT_RETRIES))

    def run(self) -> None:
        for uid, call in self.calls.items():
            try:
                call()
            except Exception as error:
                raise CommitFailed(uid, self.doing) from error


class Commits:
    def __init__(
        self,
        committers: Mapping[Uid, Committer],
        background: Background,
        clock: Clock,
        failed: Callable[[ErrorReport], None],
    ) -> None:
        self._committers, self._background, self._clock, self._failed = committers, background, clock, failed
        self._steps: deque[_Step] = deque()
        """The first one runs, or waits to be repeated."""
        self._running: _Step | None = None

    @property
    def idle(self) -> bool:
        return not self._steps and self._running is None

    def commit(
        self, checkpoint: CheckpointId, committables: Mapping[Uid, Sequence[bytes]], then: Callable[[], None]
    ) -> None:
        """Of sinks that prepared nothing, the committer is not called."""
        calls = {
            uid: _call(self._committers[uid].commit, checkpoint, prepared)
            for uid, prepared in committables.items()
            if prepared
        }
        self._add(_Step(f"committing checkpoint {checkpoint}", calls, then, nothing=not calls))

    def recover(
        self,
        checkpoint: CheckpointId | None,
        committables: Mapping[Uid, Sequence[bytes]],
        generation: Generation,
        attempt: Attempt,
        then: Callable[[], None],
    ) -> None:
        """Before an attempt starts: commits the restored checkpoint again and removes what older attempts left."""
        calls = {
            uid: _call(committer.recover, checkpoint, committables.get(uid, ()), generation, attempt)
            for uid, committer in self._committers.items()
        }
        origin = "a fresh start" if checkpoint is None else f"a restore of checkpoint {checkpoint}"
        self._add(_Step(f"recovering for {origin}", calls, then))

    def check_known(self, committables: Mapping[Uid, Sequence[bytes]]) -> None:
        """Raises if a restored checkpoint holds output of sinks that the job does not have: it would be lost."""
        unknown = sorted(uid for uid, prepared in committables.items() if prepared and uid not in self._committers)
        if unknown:
            wanted, known = (", ".join(map(repr, uids)) for uids in (unknown, sorted(self._committers)))
            raise LookupError(
                f"it holds prepared output of sink {wanted}, which the job does not have (its sinks: {known}). Give "
                "the sink that should commit it this uid again."
            )

    def drop(self) -> None:
        """Nothing more is committed. What runs at this moment cannot be called back: it is waited for and forgotten."""
        self._steps.clear()

    def close(self, then: Callable[[], None]) -> None:
        self._add(_Step("closing", {uid: committer.close for uid, committer in self._committers.items()}, then))

    def tick(self) -> None:
        while self._has_nothing_to_do:
            self._steps.popleft().then()
        self._run_next()
        if self._steps and self._steps[0].retry.take(self._clock.now()):
            self._run(self._steps[0])

    def next_wake(self) -> float | None:
        if self._has_nothing_to_do:
            return 0.0
        return self._steps[0].retry.due if self._steps else None

    @property
    def _has_nothing_to_do(self) -> bool:
        """Whether the next step is a commit of nothing: the next tick is done with it, and wakes no other thread."""
        return bool(self._steps) and self._running is None and self._steps[0].nothing

    def _add(self, step: _Step) -> None:
        self._steps.append(step)
        self._run_next()

    def _run_next(self) -> None:
        """Committers are never called twice at once, not even to close them."""
        if self._has_nothing_to_do:
            return
        if self._steps and self._running is None and self._steps[0].retry.due is None:
            self._run(self._steps[0])

    def _run(self, step: _Step) -> None:
        self._running = step
        self._background(step.run, lambda result: self._ran(step, result))

    def _ran(self, step: _Step, result: object) -> None:
        self._running = None
        dropped = not self._steps or self._steps[0] is not step
        if not dropped and isinstance(result, BaseException):
            if not step.retry.failed(self._clock.now()):
                self.drop()
                self._failed(self._report(step, result))
            return
        if not dropped:
            self._steps.popleft()
            step.then()
        self._run_next()

    def _report(self, step: _Step, error: BaseException) -> ErrorReport:
        uid = error.uid if isinstance(error, CommitFailed) else ""
        cause = error.__cause__ or error
        message = (
            f"sink {uid!r} failed {step.retry.failures + 1} times while {step.doing}; a job with checkpoints "
            "loses nothing by that, its next start commits again"
        )
        return report_of(cause, message, uid, retriable=False)


def _call(function: Callable[..., None], *arguments: object) -> Callable[[], None]:
    return lambda: function(*arguments)
