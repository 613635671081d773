"""The output side of a task: routes batches to channels, sends within the grants, and lets barriers through or past.

A task whose channels hold something that may not be sent yet is *blocked*: it takes no more input. It still
forwards barriers:

  * An aligned barrier goes to the end of the queue.
  * An overtaking one is sent at once; what waits in the queue is part of the sender's snapshot and stays where it is.
  * An adaptive one goes to the end of the queue and is watched until its deadline: then it overtakes what is still
    before it, channel by channel, and what it overtook becomes part of the snapshot that was taken with it. A
    barrier that leaves in time carries on what is left of its patience.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.core.ids import ChannelId, CheckpointId, SubtaskId
from penstock.graph.job import MAIN, JobGraph
from penstock.operators.base import Clock
from penstock.runtime.channel_state import replayable
from penstock.runtime.elements import Element, Watermark
from penstock.runtime.outqueue import OutputChannel
from penstock.runtime.ports import Transport
from penstock.runtime.routing import Router, router


@dataclass(slots=True)
class _Watched:
    """An adaptive barrier that waits in the queues of `channels`."""

    barrier: Barrier
    deadline: float
    channels: dict[ChannelId, OutputChannel]


@dataclass(frozen=True, slots=True)
class Overtaken:
    """A watched barrier has left every queue. `elements` are what it passed to do so."""

    checkpoint: CheckpointId
    elements: Mapping[ChannelId, list[Element]]


class Outputs:
    def __init__(
        self,
        graph: JobGraph,
        subtask: SubtaskId,
        transport: Transport,
        clock: Clock,
        *,
        linger: float,
        small_batch_rows: int,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._linger = linger
        self._small = small_batch_rows
        self.channels = {id: OutputChannel(id) for id in graph.output_channels(subtask)}
        self._routes: dict[str, list[Router]] = {MAIN: []}
        """By the output that they lead on."""
        for edge in graph.outputs(subtask.chain):
            channels = [channel for channel in self.channels.values() if channel.id.edge == edge.id]
            self._routes.setdefault(edge.output, []).append(router(graph, edge, channels, subtask.index))
        self._waiting: dict[ChannelId, OutputChannel] = {}
        self._lingering: dict[ChannelId, OutputChannel] = {}
        """In the order of their times to flush, which is that of their first batch: all linger equally long."""
        self._watched: dict[CheckpointId, _Watched] = {}
        self._departed: list[CheckpointId] = []
        self.rows = 0

    # ---- state ----
    @property
    def blocked(self) -> bool:
        return bool(self._waiting)

    @property
    def empty(self) -> bool:
        return not self._waiting and not self._lingering

    @property
    def room(self) -> int | None:
        """Rows that a step may put out without waiting for a grant; None if there are no outputs."""
        return min((route.room for route in self._routes[MAIN]), default=None)

    @property
    def wake_at(self) -> float | None:
        """When something that lingers is to be sent, or a watched barrier's patience ends."""
        flush_at = next(iter(self._lingering.values())).flush_at if self._lingering else None
        if not self._watched:
            return flush_at
        deadline = min(watched.deadline for watched in self._watched.values())
        return deadline if flush_at is None else min(deadline, flush_at)

    # ---- what goes out ----
    def preload(self, id: ChannelId, elements: Sequence[Element]) -> None:
        """Elements recovered from a checkpoint, to be sent before anything new."""
        if elements:
            self.channels[id].queue.extend(elements)
            self._waiting[id] = self.channels[id]

    def emit(self, batch: pa.RecordBatch, output: str = MAIN) -> None:
        self.rows += batch.num_rows
        for route in self._routes.get(output, ()):
            for channel, share in route(batch):
                self._add(channel, share)

    def _add(self, channel: OutputChannel, batch: pa.RecordBatch) -> None:
        rows = batch.num_rows
        if rows >= self._small and not channel.lingering:
            if not channel.queue and rows <= channel.limit - channel.sent:
                channel.sent += rows
                self._transport.send(channel.id, batch)
                return
            channel.queue.append(batch)
            self._pump(channel)
            return
        if not channel.lingering:
            channel.flush_at = self._clock.now() + self._linger
            self._lingering[channel.id] = channel
        channel.linger(batch)
        if channel.lingering_rows >= self._small:
            self._settle(channel)

    def _settle(self, channel: OutputChannel) -> None:
        if self._lingering.pop(channel.id, None) is not None:
            channel.settle()
            self._pump(channel)

    def watermark(self, time: int) -> None:
        watermark = Watermark(time)
        for channel in self.channels.values():
            channel.add_watermark(watermark)
            if not channel.lingering:
                self._pump(channel)

    def control(self, element: Element) -> None:
        """Anything that is neither rows nor a watermark: in order, and nothing before it lingers any longer."""
        for channel in self.channels.values():
            self._settle(channel)
            channel.queue.append(element)
            self._pump(channel)

    def granted(self, id: ChannelId, limit: int) -> None:
        channel = self.channels[id]
        if limit > channel.limit:
            channel.limit = limit
            if channel.queue:
                self._pump(channel)

    def flush(self, now: float) -> None:
        """Sends what has lingered long enough."""
        while self._lingering:
            channel = next(iter(self._lingering.values()))
            if channel.flush_at > now:
                break
            self._settle(channel)

    def _pump(self, channel: OutputChannel) -> None:
        queue, send, id = channel.queue, self._transport.send, channel.id
        while queue:
            head = queue[0]
            if head.__class__ is pa.RecordBatch:
                room, rows = channel.limit - channel.sent, head.num_rows
                if room < rows:
                    if room > 0:
                        channel.sent += room
                        queue[0] = head.slice(room)
                        send(id, head.slice(0, room))
                    break
                channel.sent += rows
            elif head.__class__ is Barrier and head.checkpoint in self._watched:
                head = self._depart(channel, head)
            queue.popleft()
            send(id, head)
        if queue:
            self._waiting[id] = channel
        else:
            self._waiting.pop(id, None)

    # ---- barriers ----
    def forward(self, barrier: Barrier, deadline: float | None) -> None:
        """A barrier that goes in order. With a deadline it may overtake later: see `overtake`."""
        if deadline is not None and self.channels:
            self._watched[barrier.checkpoint] = _Watched(barrier, deadline, dict(self.channels))
        elif deadline is not None:
            self._departed.append(barrier.checkpoint)
        self.control(barrier)

    def forward_overtaking(self, barrier: Barrier) -> dict[ChannelId, list[Element]]:
        """A barrier that goes first. Returns what it passed."""
        passed: dict[ChannelId, list[Element]] = {}
        for id, channel in self.channels.items():
            self._settle(channel)
            self._transport.send(id, barrier)
            if channel.queue:
                passed[id] = replayable(channel.queue)
        return passed

    def overtake(self, now: float) -> list[Overtaken]:
        """Lets adaptive barriers whose patience has ended pass what they wait behind, and tells of those that have
        left."""
        if not self._departed and not self._watched:
            return []
        news = [Overtaken(checkpoint, {}) for checkpoint in self._departed]
        self._departed.clear()
        for checkpoint, watched in list(self._watched.items()):
            if watched.deadline <= now:
                del self._watched[checkpoint]
                news.append(Overtaken(checkpoint, self._pass_queues(watched)))
        return news

    def _pass_queues(self, watched: _Watched) -> dict[ChannelId, list[Element]]:
        passed: dict[ChannelId, list[Element]] = {}
        for id, channel in watched.channels.items():
            overtaken = channel.before(watched.barrier.checkpoint)
            if overtaken is not None:
                self._transport.send(id, watched.barrier.overtaking())
                passed[id] = overtaken
        return passed

    def _depart(self, channel: OutputChannel, barrier: Barrier) -> Barrier:
        watched = self._watched[barrier.checkpoint]
        watched.channels.pop(channel.id, None)
        if not watched.channels:
            del self._watched[barrier.checkpoint]
            self._departed.append(barrier.checkpoint)
        return barrier.with_patience((watched.deadline - self._clock.now()) * 1000.0)

    def abort(self, checkpoint: CheckpointId) -> None:
        """Takes the barriers of an aborted checkpoint out of the queues, so that they disturb nobody downstream."""
        self._watched.pop(checkpoint, None)
        for channel in list(self._waiting.values()):
            channel.before(checkpoint)
            self._pump(channel)
