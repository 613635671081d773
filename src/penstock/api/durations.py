"""Durations as people write them: "1s", "200ms", "5min", "1h30min", a number of seconds, or a timedelta."""

from __future__ import annotations

import math
import re
from datetime import timedelta

Duration = str | int | float | timedelta

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|min|h|d)\s*")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


def seconds(duration: Duration, what: str, *, positive: bool = False) -> float:
    """The duration in seconds. `what` is its name in messages.

    >>> seconds("200ms", "every")
    0.2
    >>> seconds("1h30min", "timeout")
    5400.0
    """
    value = _seconds(duration)
    if value is None:
        raise ValueError(
            f'{what}={duration!r} is no duration: write "200ms", "1s", "5min", "2h", a number of seconds, or a '
            "timedelta"
        )
    if value < 0 or (positive and value == 0):
        raise ValueError(f"{what}={duration!r} must be {'more than 0' if positive else '0 or more'}")
    return value


def signed_seconds(duration: Duration, what: str) -> float:
    """The same, but it may be negative: before rather than after.

    >>> signed_seconds("-5s", "lower")
    -5.0
    """
    negative = isinstance(duration, str) and duration.strip().startswith("-")
    value = _seconds(duration.strip()[1:] if negative and isinstance(duration, str) else duration)
    if value is None:
        raise ValueError(
            f'{what}={duration!r} is no duration: write "-5s", "200ms", "5min", a number of seconds, or a timedelta'
        )
    return -value if negative else value


def _seconds(duration: object) -> float | None:
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, bool):
        return None
    if isinstance(duration, int | float):
        return float(duration) if math.isfinite(duration) else None
    if isinstance(duration, str) and _WHOLE.fullmatch(duration.strip()):
        return math.fsum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(duration))
    return None
