"""Whether and when a failed job starts again.

A strategy is described by a small immutable value (what users write) and decided by the object its `strategy()`
makes. Deciders learn of failures and of progress (a completed checkpoint) and answer with a delay or with the reason
to give up.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RestartAfter:
    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


Decision = RestartAfter | GiveUp


class RestartStrategy(Protocol):
    def on_failure(self, now: float) -> Decision: ...

    def on_progress(self, now: float) -> None:
        """A checkpoint completed: what was done so far will not be done again."""
        ...


@dataclass(frozen=True, slots=True)
class NoRestart:
    """The first failure ends the job."""

    def strategy(self) -> RestartStrategy:
        return _Never()


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """At most `attempts` restarts in the job's life, each after the same delay."""

    attempts: int = 3
    delay: float = 1.0

    def strategy(self) -> RestartStrategy:
        return _FixedDelay(self)


@dataclass(frozen=True, slots=True)
class ExponentialDelay:
    """The first restart is immediate, later ones wait longer and longer. A completed checkpoint, or `reset_after`
    seconds without a failure, start the count afresh; `attempts` restarts without either end the job, so that a
    function that always raises reaches its user."""

    initial: float = 0.1
    maximum: float = 60.0
    multiplier: float = 2.0
    reset_after: float = 60.0
    attempts: int = 8

    def strategy(self) -> RestartStrategy:
        return _Exponential(self)


@dataclass(frozen=True, slots=True)
class FailureRate:
    """Restarts unless more than `failures` happen within `per` seconds."""

    failures: int = 3
    per: float = 300.0
    delay: float = 1.0

    def strategy(self) -> RestartStrategy:
        return _FailureRate(self)


RestartSettings = NoRestart | FixedDelay | ExponentialDelay | FailureRate


class _Never:
    def on_failure(self, now: float) -> Decision:
        return GiveUp("the restart strategy is: none")

    def on_progress(self, now: float) -> None:
        """Makes no difference here."""


class _FixedDelay:
    def __init__(self, settings: FixedDelay) -> None:
        self._settings = settings
        self._restarts = 0

    def on_failure(self, now: float) -> Decision:
        if self._restarts >= self._settings.attempts:
            return GiveUp(f"all {self._settings.attempts} restarts are used up")
        self._restarts += 1
        return RestartAfter(self._settings.delay)

    def on_progress(self, now: float) -> None:
        """Restarts are counted over the job's whole life."""


class _Exponential:
    def __init__(self, settings: ExponentialDelay) -> None:
        self._settings = settings
        self._restarts = 0
        self._last_failure = -math.inf

    def on_failure(self, now: float) -> Decision:
        settings = self._settings
        if now - self._last_failure >= settings.reset_after + self._delay(self._restarts - 1):
            self._restarts = 0
        self._last_failure = now
        if self._restarts >= settings.attempts:
            return GiveUp(f"{settings.attempts} restarts in a row brought no completed checkpoint")
        self._restarts += 1
        return RestartAfter(self._delay(self._restarts - 1))

    def on_progress(self, now: float) -> None:
        self._restarts = 0

    def _delay(self, restarts_before: int) -> float:
        if restarts_before <= 0:
            return 0.0
        doublings = min(restarts_before - 1, 64)
        return float(min(self._settings.maximum, self._settings.initial * self._settings.multiplier**doublings))


class _FailureRate:
    def __init__(self, settings: FailureRate) -> None:
        self._settings = settings
        self._recent: deque[float] = deque()

    def on_failure(self, now: float) -> Decision:
        self._recent.append(now)
        while self._recent[0] <= now - self._settings.per:
            self._recent.popleft()
        if len(self._recent) > self._settings.failures:
            return GiveUp(
                f"{len(self._recent)} failures within {self._settings.per:g} s, {self._settings.failures} allowed"
            )
        return RestartAfter(self._settings.delay)

    def on_progress(self, now: float) -> None:
        """Only the rate counts."""
