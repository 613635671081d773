"""From the job's end to the moment when nothing of it is under way any more.

A finished job has committed everything; it still cleans its directory and closes its committers. Every other end waits
for commits and writes that are under way, but only for a while: the next start of the job commits what is missing.
"""

from __future__ import annotations

from penstock.core.orders import JobState
from penstock.runtime.commits import Commits
from penstock.runtime.housekeeping import Housekeeping
from penstock.runtime.outcome import JobOutcome


class Ending:
    def __init__(self, outcome: JobOutcome, now: float, patience: float) -> None:
        self.outcome = outcome
        self.deadline = None if outcome.state is JobState.FINISHED else now + patience
        """When to wait no longer."""
        self._cleaned = self._closing = False

    def done(self, now: float, busy: bool, commits: Commits, housekeeping: Housekeeping | None) -> bool:
        """Takes the next step; True once there is none left. `busy`: the outcome of a write is awaited."""
        if self.deadline is not None and self.deadline <= now:
            return True
        if busy or not commits.idle:
            return False
        if housekeeping is not None:
            if not self._cleaned and housekeeping.idle:
                self._cleaned = True
                housekeeping.finish(clean=self.outcome.state is JobState.FINISHED)
            if not housekeeping.idle:
                return False
        if not self._closing:
            self._closing = True
            commits.close(lambda: None)
            return False
        return True
