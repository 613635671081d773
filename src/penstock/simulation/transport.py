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


Put = Callable[[Note], None]
Reach = Callable[[Point], None]


class Network:
    """The data channels of all runs."""

    def __init__(
        self, scheduler: Scheduler, graph: JobGraph, reach: Reach, eagerness: Callable[[], float], encoded: bool
    ) -> None:
        self._scheduler, self._graph, self._reach, self._eagerness = scheduler, graph, reach, eagerness
        self._encoded = encoded
        self._mailboxes: dict[tuple[Run, SubtaskId], Put] = {}
        self._elements: dict[tuple[Run, ChannelId], Line[Element]] = {}
        self._grants: dict[tuple[Run, ChannelId], Line[int]] = {}

    def attach(self, run: Run, subtask: SubtaskId, put: Put) -> None:
        self._mailboxes[run, subtask] = put

    def detach(self, run: Run, subtask: SubtaskId, keep: Callable[[int], int]) -> None:
        """The subtask is gone. `keep` says how much of a queue that it was sending on is under way for good."""
        self._mailboxes.pop((run, subtask), None)
        for channel in self._graph.output_channels(subtask):
            line = self._elements.get((run, channel))
            if line is not None:
                line.cut(keep(len(line)))

    def send(self, run: Run, channel: ChannelId, element: Element) -> None:
        line = self._elements.get((run, channel))
        if line is None:
            name = f"{self._graph.sender(channel)}->{self._graph.receiver(channel)}"
            line = Line(self._scheduler, name, lambda item: self._arrive(run, channel, item), self._eagerness())
            self._elements[run, channel] = line
        line.send(self._through_the_wire(channel, element) if self._encoded else element)

    def grant(self, run: Run, channel: ChannelId, limit: int) -> None:
        line = self._grants.get((run, channel))
        if line is None:
            line = Line(self._scheduler, f"grants {channel}", lambda item: self._granted(run, channel, item))
            self._grants[run, channel] = line
        line.send(limit)

    def lines(self, run: Run) -> list[Line[Element]]:
        return [line for (of, _), line in self._elements.items() if of == run]

    def _through_the_wire(self, channel: ChannelId, element: Element) -> Element:
        frame = memoryview(b"".join(wire.encode(element)))
        return wire.decode(frame, self._graph.edges[channel.edge].schema)

    def _arrive(self, run: Run, channel: ChannelId, element: Element) -> None:
        receiver = self._graph.receiver(channel)
        put = self._mailboxes.get((run, receiver))
        if put is None:
            return
        self._scheduler.story.tell(f"{channel} a{run[1]} {_short(element)}")
        if isinstance(element, Barrier):
            self._reach(Point.BARRIER)
        put(Arrived(channel, element))

    def _granted(self, run: Run, channel: ChannelId, limit: int) -> None:
        put = self._mailboxes.get((run, self._graph.sender(channel)))
        if put is not None:
            put(Granted(channel, limit))


class TaskTransport:
    """Implements `ports.Transport` for one subtask of one run."""

    def __init__(self, network: Network, run: Run) -> None:
        self._network, self._run = network, run

    def send(self, channel: ChannelId, element: Element) -> None:
        self._network.send(self._run, channel, element)

    def grant(self, channel: ChannelId, limit: int) -> None:
        self._network.grant(self._run, channel, limit)


def _short(element: Element) -> str:
    if isinstance(element, pa.RecordBatch):
        return f"{element.num_rows} rows"
    if isinstance(element, Barrier):
        return f"barrier {element.checkpoint} {element.mode}"
    return str(element)
