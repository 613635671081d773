"""Channels and connections: queues that deliver one thing at a time, in order, whenever the schedule says so.

Data channels belong to one run of the graph (generation and attempt): what a task of another run sends finds no
receiver. Elements between workers go through the production wire format. A connection joins a worker and a driver; it
can be cut, and what was under way then is lost from some place on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.core.ids import Attempt, ChannelId, Generation, SubtaskId
from penstock.graph.job import JobGraph
from penstock.runtime import wire
from penstock.runtime.elements import Element
from penstock.runtime.ports import Arrived, Granted, Note
from penstock.simulation.faults import Point
from penstock.simulation.scheduler import Actor, Scheduler

T = TypeVar("T")
Run = tuple[Generation, Attempt]


class Line(Actor, Generic[T]):
    """First in, first out; acts by delivering the next."""

    def __init__(self, scheduler: Scheduler, name: str, deliver: Callable[[T], None], eagerness: float = 1.0) -> None:
        self._scheduler, self.name, self._deliver, self.eagerness = scheduler, name, deliver, eagerness
        self._queue: deque[T] = deque()
        self.closed = False
        self._stalled = False

    def send(self, item: T) -> None:
        if not self.closed:
            self._queue.append(item)
            if not self._stalled:
                self._scheduler.wake(self)

    def act(self) -> None:
        self._stalled = False
        if self._queue:
            self._deliver(self._queue.popleft())
        if not self._queue:
            self._scheduler.rest(self)

    def stall(self, seconds: float) -> None:
        """Delivers nothing for a while."""
        self._stalled = True
        self._scheduler.rest(self)
        self._scheduler.at(self._scheduler.clock.now() + seconds, self)

    def cut(self, keep: int = 0) -> None:
        """Takes nothing more; of what is under way only the first `keep` still arrive."""
        self.closed = True
        while len(self._queue) > keep:
            self._queue.pop()
        if not self._queue:
            self._scheduler.retire(self)

    def drop_last(self) -> None:
        self._queue.pop()

    def __len__(self) -> int:
        return len(self._queue)

    def __bool__(self) -> bool:
        """A line is there, also when nothing is under way on it."""
        return True


Put = Callable[[Note], None]


class Network:
    """The data channels of all runs."""

    def __init__(
        self,
        scheduler: Scheduler,
        reach: Callable[[Point], None],
        eagerness: Callable[[], float],
        encoded: bool,
    ) -> None:
        self.scheduler, self.reach, self.eagerness = scheduler, reach, eagerness
        self.encoded = encoded
        self._runs: dict[Run, RunNetwork] = {}

    def join(self, run: Run, graph: JobGraph) -> RunNetwork:
        """`graph`: as it is deployed in this run; at another parallelism it may have other edges."""
        return self._runs.setdefault(run, RunNetwork(self, run, graph))

    def of(self, run: Run) -> RunNetwork:
        return self._runs[run]


class RunNetwork:
    """The data channels of one run. Implements `ports.Transport` for all of its tasks."""

    def __init__(self, network: Network, run: Run, graph: JobGraph) -> None:
        self._network, self._attempt, self._graph = network, run[1], graph
        self._mailboxes: dict[SubtaskId, Put] = {}
        self._elements: dict[ChannelId, Line[Element]] = {}
        self._grants: dict[ChannelId, Line[int]] = {}

    def attach(self, subtask: SubtaskId, put: Put) -> None:
        self._mailboxes[subtask] = put

    def detach(self, subtask: SubtaskId, keep: Callable[[int], int]) -> None:
        """The subtask is gone. `keep` says how much of a queue that it was sending on is under way for good."""
        self._mailboxes.pop(subtask, None)
        for channel, line in self._elements.items():
            if self._graph.sender(channel) == subtask:
                line.cut(keep(len(line)))

    def send(self, channel: ChannelId, element: Element) -> None:
        line = self._elements.get(channel) or self._open(channel)
        if self._network.encoded:
            element = self._through_the_wire(channel, element)
        line.send(element)

    def grant(self, channel: ChannelId, limit: int) -> None:
        line = self._grants.get(channel)
        if line is None:
            sender, mailboxes = self._graph.sender(channel), self._mailboxes

            def deliver(limit: int) -> None:
                put = mailboxes.get(sender)
                if put is not None:
                    put(Granted(channel, limit))

            line = self._grants[channel] = Line(self._network.scheduler, f"grants of {channel}", deliver)
        line.send(limit)

    def flush(self) -> None:
        """What is sent is on its way."""

    def lines(self) -> list[Line[Element]]:
        return list(self._elements.values())

    def _open(self, channel: ChannelId) -> Line[Element]:
        network, mailboxes = self._network, self._mailboxes
        receiver = self._graph.receiver(channel)
        name = f"{self._graph.sender(channel)}->{receiver} a{self._attempt}"

        def deliver(element: Element) -> None:
            put = mailboxes.get(receiver)
            if put is not None:
                network.scheduler.story.tell(f"{name} {_short(element)}")
                if element.__class__ is Barrier:
                    network.reach(Point.BARRIER)
                put(Arrived(channel, element))

        line: Line[Element] = Line(network.scheduler, name, deliver, network.eagerness())
        self._elements[channel] = line
        return line

    def _through_the_wire(self, channel: ChannelId, element: Element) -> Element:
        frame = memoryview(b"".join(wire.encode(element)))
        return wire.decode(frame, self._graph.edges[channel.edge].schema)


def _short(element: Element) -> str:
    if isinstance(element, pa.RecordBatch):
        return f"{element.num_rows} rows"
    if isinstance(element, Barrier):
        return f"barrier {element.checkpoint} {element.mode}"
    return str(element)
