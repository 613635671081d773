"""A point in time on both clocks, passed into every decision that needs it."""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    now: float
    """Seconds, monotonic: for durations and deadlines."""
    wall_ms: int
    """Milliseconds since the epoch: for people and records."""
