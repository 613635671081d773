"""One real task between senders and receivers that are only names: a test says what comes in and sees what goes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from tests.unit.runtime.task.harness import (
    SETTINGS,
    Job,
    Numbers,
    Pass,
    Reports,
    Writer,
    chain,
    channel,
    graph,
    pairs,
    subtask,
)

from penstock.core.barrier import Barrier, Mode
from penstock.core.causes import Cause
from penstock.core.ids import ChannelId, CheckpointId
from penstock.core.settings import RuntimeSettings
from penstock.graph.job import Partitioning
from penstock.operators.base import Operator
from penstock.runtime.elements import Element
from penstock.runtime.ports import Abort, Arrived, Complete, Granted, Note, Trigger
from penstock.runtime.task import RestoredSubtask, Task

IN = [channel(0, 0, 0), channel(0, 1, 0)]
OUT = [channel(1, 0, 0), channel(1, 0, 1)]
PLENTY = 1_000_000


def barrier(id: int, mode: Mode = Mode.ALIGNED, patience_ms: float = 0.0) -> Barrier:
    return Barrier(CheckpointId(id), mode, patience_ms=patience_ms)


class Lone:
    """A task with the given operators."""

    def __init__(
        self,
        *operators: Callable[[], Operator],
        settings: RuntimeSettings = SETTINGS,
        out: Partitioning = Partitioning.BROADCAST,
        grant: int = PLENTY,
        checkpointing: bool = True,
        restored: RestoredSubtask | None = None,
        source: bool = False,
    ) -> None:
        middle = chain("middle", operators, 1)
        sources = [] if source else [chain("source", [lambda: Numbers(0)], 2)]
        edges = [] if source else [("source", "middle", Partitioning.REBALANCE)]
        edges.append(("middle", "sink", out))
        self.out = [channel(len(edges) - 1, 0, target) for target in range(2)]
        shape = graph([*sources, middle, chain("sink", [Pass], 2)], edges)
        self.job = Job(
            shape,
            settings=settings,
            checkpointing=checkpointing,
            restored={} if restored is None else {subtask("middle"): restored},
        )
        self.clock = self.job.clock
        self.task: Task = self.job.tasks[subtask("middle")]
        self.reports: Reports = self.job.reports[subtask("middle")]
        self.writer: Writer = self.job.writers[subtask("middle")]
        self.network = self.job.network
        if grant:
            for each in self.out:
                self.grant(each, grant)

    # ---- in ----
    def put(self, *notes: Note) -> Lone:
        for note in notes:
            self.task.put(note)
        return self

    def arrives(self, where: ChannelId, *elements: Element) -> Lone:
        return self.put(*(Arrived(where, element) for element in elements))

    def grant(self, where: ChannelId, limit: int) -> Lone:
        self.network.limits[where] = max(limit, self.network.limits[where])
        return self.put(Granted(where, limit))

    def trigger(self, id: int, mode: Mode = Mode.ALIGNED, patience_ms: float = 0.0) -> Lone:
        return self.put(Trigger(barrier(id, mode, patience_ms)))

    def abort(self, id: int) -> Lone:
        return self.put(Abort(CheckpointId(id), Cause.EXPIRED))

    def complete(self, id: int) -> Lone:
        return self.put(Complete(CheckpointId(id)))

    def step(self, seconds: float = 0.0) -> float | None:
        self.clock.advance(seconds)
        return self.job.step(subtask("middle"))

    def run(self) -> Lone:
        """Steps until the task wants to wait, and finishes its writes."""
        for _ in range(1000):
            wake = self.step()
            if self.writer.queue:
                self.writer.finish_one()
            elif wake is None or wake > self.clock.now():
                return self
        raise AssertionError("the task does not come to rest")

    # ---- out ----
    def sent(self, where: ChannelId | None = None) -> list[object]:
        """What went out since the last look, rows as lists of pairs."""
        queue = self.network.channels.get(where or self.out[0])
        found = [] if queue is None else list(queue)
        if queue is not None:
            queue.clear()
        return [pairs(element) if isinstance(element, pa.RecordBatch) else element for element in found]

    def granted(self, where: ChannelId) -> list[int]:
        grants = list(self.network.grants.get(where, ()))
        self.network.grants.pop(where, None)
        return grants

    def restored(self, id: int) -> RestoredSubtask:
        others = {s for s in self.job.reports if s != subtask("middle")}
        for other in others:
            self.job.reports[other].events.append("finished")
        return self.job.restore(id)[subtask("middle")]

    @property
    def operator(self) -> Operator:
        return self.job.operator("middle")

    @property
    def acknowledged(self) -> list[int]:
        return list(self.reports.acks)

    @property
    def declined(self) -> Sequence[tuple[int, Cause]]:
        return [(id, cause) for id, cause, _ in self.reports.declines]
