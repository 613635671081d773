"""How many checkpoints in a row may fail before the attempt is given up."""

from __future__ import annotations

from penstock.core.causes import Cause


class FailureCounter:
    """Counts failures in a row. Only causes that speak of trouble with checkpoints count; a success starts afresh."""

    def __init__(self, tolerable: int) -> None:
        self.tolerable = tolerable
        self.in_a_row = 0

    def failed(self, cause: Cause) -> bool:
        """True if that was one too many."""
        if cause.counts_as_failure:
            self.in_a_row += 1
        return cause.counts_as_failure and self.in_a_row > self.tolerable

    def succeeded(self) -> None:
        self.in_a_row = 0
