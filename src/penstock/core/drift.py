"""Keeps sources together in event time: how far the slowest of those that are to stay together has come.

Workers say now and then what time each aligned source has reached; those that are idle, have ended or know no time
yet say nothing, and nobody waits for them. Whoever is further ahead of the slowest than it may be pauses until it
hears that the slowest has moved on.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.ids import Attempt, WorkerId


class SourceAlignment:
    def __init__(self) -> None:
        self._attempt: Attempt | None = None
        self._times: dict[WorkerId, Mapping[str, int]] = {}
        self._slowest: int | None = None

    def report(self, attempt: Attempt, worker: WorkerId, times: Mapping[str, int]) -> int | None:
        """What a worker says of all its sources. Returns the time of the slowest one of all, if that is another now."""
        if attempt != self._attempt:
            self._attempt, self._times, self._slowest = attempt, {}, None
        self._times[worker] = times
        slowest = min((time for own in self._times.values() for time in own.values()), default=None)
        if slowest == self._slowest:
            return None
        self._slowest = slowest
        return slowest
