"""What a job does after a failure: `Pipeline(..., restart=ps.restart.fixed_delay("2s", attempts=5))`."""

from __future__ import annotations

from penstock.api.durations import Duration, seconds
from penstock.core.restarts import ExponentialDelay, FailureRate, FixedDelay, NoRestart
from penstock.graph.errors import PipelineError

__all__ = ["exponential", "failure_rate", "fixed_delay", "none"]


def none() -> NoRestart:
    """The first failure ends the job."""
    return NoRestart()


def fixed_delay(delay: Duration = "1s", *, attempts: int = 3) -> FixedDelay:
    """At most `attempts` restarts in the job's life, each after the same delay."""
    return FixedDelay(attempts=_count(attempts, "attempts"), delay=_seconds(delay, "delay"))


def exponential(
    initial: Duration = "100ms",
    maximum: Duration = "60s",
    *,
    multiplier: float = 2.0,
    reset_after: Duration = "60s",
    attempts: int = 8,
) -> ExponentialDelay:
    """The default. The first restart is immediate, later ones wait longer and longer; a completed checkpoint, or
    `reset_after` without a failure, starts the count afresh."""
    if not multiplier >= 1:
        raise PipelineError(f"restart: multiplier={multiplier!r} must be at least 1")
    return ExponentialDelay(
        initial=_seconds(initial, "initial"),
        maximum=_seconds(maximum, "maximum"),
        multiplier=multiplier,
        reset_after=_seconds(reset_after, "reset_after"),
        attempts=_count(attempts, "attempts"),
    )


def failure_rate(failures: int = 3, *, per: Duration = "5min", delay: Duration = "1s") -> FailureRate:
    """Restarts unless more than `failures` happen within `per`."""
    return FailureRate(
        failures=_count(failures, "failures"), per=_seconds(per, "per", positive=True), delay=_seconds(delay, "delay")
    )


def _seconds(duration: Duration, what: str, *, positive: bool = False) -> float:
    try:
        return seconds(duration, what, positive=positive)
    except ValueError as error:
        raise PipelineError(f"restart: {error}") from None


def _count(value: int, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise PipelineError(f"restart: {what}={value!r} must be a whole number of at least 1")
    return value
