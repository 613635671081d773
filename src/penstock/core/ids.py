"""The names of things that cross module borders. No bare int or string does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

CheckpointId = NewType("CheckpointId", int)
"""Rises by one for every checkpoint or savepoint that a driver triggers. Another driver may use the number of one that
never completed again; generations tell the two apart."""

Attempt = NewType("Attempt", int)
"""One run of the whole graph between two failures. Every message and file of a run carries it, so that what a dead
run still sends is recognised."""

Generation = NewType("Generation", int)
"""One driver's claim on a job directory. A higher generation fences all lower ones."""

Uid = NewType("Uid", str)
"""The stable name of an operator, under which its state is found again."""

ChainId = NewType("ChainId", str)
"""A chain of operators that runs as one task: the uid of its first operator."""

WorkerId = NewType("WorkerId", str)
"""One worker process; a replaced process is another worker."""

EdgeId = NewType("EdgeId", int)
"""An edge between two chains, by its place in the job graph."""

KeyGroup = NewType("KeyGroup", int)

Cut = NewType("Cut", int)
"""A moment in the life of one subtask's state, between two batches, at which it was captured. Rises from capture to
capture; what a subtask was restored from is cut 0."""


@dataclass(frozen=True, slots=True, order=True)
class SubtaskId:
    """One parallel instance of a chain."""

    chain: ChainId
    index: int

    def __str__(self) -> str:
        return f"{self.chain}[{self.index}]"


@dataclass(frozen=True, slots=True, order=True)
class ChannelId:
    """The connection between two subtasks along one edge: subtask `source` of the edge's origin to subtask
    `target` of its goal."""

    edge: EdgeId
    source: int
    target: int

    def __str__(self) -> str:
        return f"edge {self.edge}: {self.source}->{self.target}"


RECOVERED = -1
"""In the place of a channel's source: records that were in flight on former channels of the edge, which another
parallelism has replaced, and that the target replays before any new input."""
