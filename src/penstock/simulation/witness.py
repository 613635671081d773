"""What the nodes of a simulated job saw while it ran; the first violation that any of them noticed."""

from __future__ import annotations

from collections import Counter

from penstock.core.ids import CheckpointId


class Witness:
    """`exactly_once`: whether a repeated or reordered record inside the job is a violation. `in_time`: whether a record
    behind the watermark is one (sources that go idle may be late when they come back)."""

    def __init__(self, *, exactly_once: bool, in_time: bool) -> None:
        self.exactly_once, self.in_time = exactly_once, in_time
        self.violation: str | None = None
        self.completed: set[CheckpointId] = set()
        """Checkpoints that the store has completed."""
        self.counts: Counter[str] = Counter()

    def object(self, what: str) -> None:
        if self.violation is None:
            self.violation = what
