"""Changes the parallelism of the running job.

Theory of operation
-------------------
::

    WORKERS --enough have registered--> CHECKPOINT --complete--> SWITCH --the attempt ends--> RESTART --all run--> done
       |                                    |                       |
       +-- not in time --+-- it failed -----+-- it does not fit ----+--> given up: the job goes on as it was

Whatever takes long happens while the job runs: new workers are started, and wait; a fresh checkpoint is taken. Only
then the attempt ends: survivors are reset in place, surplus workers leave, and all start again from the checkpoint in
the new graph. The outage is the time in between. A failure before the switch restarts the job as it was, and the
change goes on; one after it restarts the job as it is to be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from penstock.core.ids import CheckpointId
from penstock.graph.job import JobGraph


@dataclass(frozen=True, slots=True)
class RescaleOutcome:
    """What became of `Master.rescale`."""

    parallelism: int
    checkpoint: CheckpointId | None = None
    """From which the job started again."""
    outage: float = 0.0
    """Seconds from the end of the old attempt until every subtask of the new one was told to run."""
    reason: str = ""
    """Why it did not happen; empty if it did."""


class Phase(Enum):
    WORKERS = auto()
    CHECKPOINT = auto()
    SWITCH = auto()
    RESTART = auto()


@dataclass
class Rescaling:
    """One change under way."""

    parallelism: int
    graph: JobGraph
    then: Callable[[RescaleOutcome], None]
    deadline: float
    """Until when there must be enough workers."""
    phase: Phase = Phase.WORKERS
    switched: float = 0.0
    """When the old attempt ended."""

    @property
    def waits_for_workers(self) -> bool:
        return self.phase is Phase.WORKERS

    def done(self, now: float, checkpoint: CheckpointId | None) -> None:
        self.then(RescaleOutcome(self.parallelism, checkpoint, now - self.switched))

    def failed(self, reason: str) -> None:
        self.then(RescaleOutcome(self.parallelism, reason=reason))
