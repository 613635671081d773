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

`Rescaling` is a part of the master, called on its thread: the master tells it what happened, and it asks the master
through `RescalingHost` for the little that is to be done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from penstock.core.barrier import Purpose
from penstock.core.ids import CheckpointId
from penstock.core.lifecycle import JobLifecycle
from penstock.core.orders import JobState, Order
from penstock.core.record import CheckpointRecord, GraphRecord
from penstock.core.redistribution import matching_edges
from penstock.core.restore import DoesNotFit, check_fits
from penstock.graph.job import JobGraph
from penstock.graph.record import graph_record, topology
from penstock.operators.base import Clock
from penstock.runtime.checkpointing import Checkpointing
from penstock.runtime.outcome import RequestOutcome

_LOG: Final = logging.getLogger(__name__)


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


class RescalingHost(Protocol):
    """What the master does for a change."""

    @property
    def lifecycle(self) -> JobLifecycle: ...

    @property
    def running_graph(self) -> GraphRecord:
        """That of the present attempt."""
        ...

    @property
    def restore_point(self) -> CheckpointRecord | None: ...

    def run_from_now_on(self, graph: JobGraph, parallelism: int) -> None:
        """The next attempt runs this graph."""
        ...

    def execute(self, orders: Iterable[Order]) -> None: ...


class Phase(Enum):
    WORKERS = auto()
    CHECKPOINT = auto()
    SWITCH = auto()
    RESTART = auto()


@dataclass
class _Change:
    """One change under way."""

    parallelism: int
    graph: JobGraph
    then: Callable[[RescaleOutcome], None]
    deadline: float
    """Until when there must be enough workers."""
    phase: Phase = Phase.WORKERS
    switched: float = 0.0
    """When the old attempt ended."""


class Rescaling:
    def __init__(self, host: RescalingHost, clock: Clock, patience: float) -> None:
        """`patience`: how many seconds new workers may take to come."""
        self._host, self._clock, self._patience = host, clock, patience
        self._change: _Change | None = None

    def begin(self, parallelism: int, graph: JobGraph, then: Callable[[RescaleOutcome], None]) -> None:
        """`graph`: the job at that parallelism. `then` hears once what became of it."""
        if self._change is not None:
            raise ValueError(f"the job is being rescaled to {self._change.parallelism} already: wait for that")
        now = self._clock.now()
        self._change = _Change(parallelism, graph, then, now + self._patience)
        self._host.execute(self._host.lifecycle.expect(now, graph.slots))

    def next_wake(self) -> float | None:
        return self._change.deadline if self._change and self._change.phase is Phase.WORKERS else None

    # ---- what happens ----
    def advance(self, checkpointing: Checkpointing) -> None:
        """Something has happened in the job: takes the next step if it has become possible."""
        change = self._change
        if change is None:
            return
        if change.phase is Phase.WORKERS:
            there, needed = len(self._host.lifecycle.workers), change.graph.slots
            if there >= needed:
                self._take_checkpoint(change, checkpointing)
            elif change.deadline <= self._clock.now():
                self._give_up(f"it needs {needed} workers, and only {there} have registered in time")
        elif change.phase is Phase.SWITCH and self._host.lifecycle.state is JobState.RUNNING:
            self._switch(change, checkpointing)

    def attempt_started(self, restored: CheckpointId | None) -> None:
        if self._change is not None and self._change.phase is Phase.RESTART:
            done, self._change = self._change, None
            done.then(RescaleOutcome(done.parallelism, restored, self._clock.now() - done.switched))

    def job_ended(self, reason: str) -> None:
        self._answer_failed(f"the job has ended: {reason}")

    # ---- the steps ----
    def _take_checkpoint(self, change: _Change, checkpointing: Checkpointing) -> None:
        change.phase = Phase.CHECKPOINT
        running = self._host.running_graph
        # Where the chains are cut otherwise, edges are others: nothing may be in flight on them.
        aligned = len(matching_edges(running, graph_record(change.graph))) < len(running.edges)
        checkpointing.trigger(Purpose.CHECKPOINT, self._checkpoint_ended, aligned=aligned)

    def _checkpoint_ended(self, outcome: RequestOutcome) -> None:
        if self._change is None:
            return
        if outcome.checkpoint is None:
            self._give_up(f"its checkpoint failed: {outcome.reason}")
        else:
            self._change.phase = Phase.SWITCH

    def _switch(self, change: _Change, checkpointing: Checkpointing) -> None:
        new = graph_record(change.graph)
        restore_point = self._host.restore_point
        assert restore_point is not None, "its checkpoint is complete"
        try:
            check_fits(restore_point, new)
        except DoesNotFit as error:
            return self._give_up(str(error))
        _LOG.info("the job goes on at parallelism %d", change.parallelism)
        change.phase, change.switched = Phase.RESTART, self._clock.now()
        self._host.run_from_now_on(change.graph, change.parallelism)
        checkpointing.rescale(topology(change.graph), new)
        self._host.execute(self._host.lifecycle.rescale(change.switched, change.graph.slots))

    def _give_up(self, reason: str) -> None:
        self._answer_failed(f"the job goes on as it was: {reason}")
        self._host.execute(self._host.lifecycle.dismiss_surplus(self._clock.now()))

    def _answer_failed(self, reason: str) -> None:
        if self._change is not None:
            given_up, self._change = self._change, None
            given_up.then(RescaleOutcome(given_up.parallelism, reason=reason))
