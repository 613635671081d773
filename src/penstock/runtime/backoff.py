"""When to try again something outside that failed: a few times, each after a longer wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence

COMMIT_RETRIES = (0.1, 0.5, 2.0)
"""Seconds before each repetition."""
STORE_RETRIES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 10.0)

Background = Callable[[Callable[[], object], Callable[[object], None]], None]
"""`MasterPorts.background`: runs the first off the master's thread, hands its result or exception to the second on
it."""


class Retry:
    """The repetitions of one piece of work."""

    def __init__(self, delays: Sequence[float]) -> None:
        self._delays = delays
        self.failures = 0
        self.due: float | None = None
        """When to run it again; None while it runs or has not failed."""

    def failed(self, now: float) -> bool:
        """False: it was the last try."""
        if self.failures >= len(self._delays):
            return False
        self.due = now + self._delays[self.failures]
        self.failures += 1
        return True

    def take(self, now: float) -> bool:
        """True once a repetition is due."""
        if self.due is None or self.due > now:
            return False
        self.due = None
        return True
