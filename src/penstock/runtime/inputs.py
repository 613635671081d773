"""The input side of a task: a queue for each channel, whose turn it is, and how much the senders may send.

Grants. A receiver tells the sender of a channel up to which row, counted from the channel's start in this attempt,
it may send:

    limit = rows processed + share - rows recovered

so that at most `share` rows (the subtask's capacity divided by its open channels) are on their way or queued.
Recovered rows were preloaded into the queue from a checkpoint and are no rows of this attempt's sender. They are
counted in `processed` when they are, and taken off here: as long as they lie in the queue they use up the channel's
share, and once they are gone the accounts are as if they had never been. A channel with more recovered rows than
its share gets its first grant when enough of them are processed, which needs nobody's help, so nothing can lock up.
A new limit is announced when it is at least half the share above the last one: every announcement wakes the sender,
and what it may send in one piece is worked on in one go. When the sender has used up its limit and all its rows are
processed, it is a whole share above.

Recovered channels hold what was in flight on former channels, at another parallelism. They are here from the start,
with all that they will ever hold, go before all others, and end like any channel: until then no other channel is
worked on, and an aligned barrier waits for them.

Order. Channels with something to do stand in a ring. A barrier, or the end of a channel, is never left at the head
of a queue that is not held: whoever changes a head lists the channel as `unsettled`, and the task takes the barrier
from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.core.ids import RECOVERED, ChannelId, CheckpointId
from penstock.core.inflight import InFlightSizer
from penstock.runtime.channel_state import count_rows, replayable
from penstock.runtime.elements import Element, EndOfChannel
from penstock.runtime.ports import Transport

_COALESCE_BELOW = 1024
"""A batch of fewer rows is joined with those that follow it: operators cost more for each call than for each row
there."""


class InputChannel:
    """One queue. `offset` is how many rows of the batch at its head are processed already."""

    __slots__ = (
        "closed",
        "consumed",
        "ended",
        "granted",
        "held",
        "id",
        "in_ring",
        "input",
        "offset",
        "queue",
        "recording",
        "recovered",
    )

    def __init__(self, id: ChannelId, input: int) -> None:
        self.id = id
        self.input = input
        self.queue: deque[Element] = deque()
        self.offset = 0
        self.held = False
        self.in_ring = False
        self.ended = False
        """No more rows will come: it needs no more grants."""
        self.closed = False
        """Nothing at all will come."""
        self.consumed = 0
        self.granted = 0
        self.recovered = 0
        self.recording: list[Element] | None = None
        """Arrivals that belong to a snapshot that overtook them."""

    @property
    def at_end(self) -> bool:
        return isinstance(self.queue[0], EndOfChannel)

    def waiting(self, checkpoint: CheckpointId) -> list[Element]:
        """What lies in the queue before the barrier of `checkpoint`, or all of it."""
        elements: list[Element] = []
        for element in self.queue:
            if isinstance(element, Barrier) and element.checkpoint == checkpoint:
                break
            elements.append(element)
        if self.offset and elements:
            elements[0] = elements[0].slice(self.offset)
        return replayable(elements)


class Inputs:
    def __init__(self, channels: Iterable[tuple[ChannelId, int]], transport: Transport, sizer: InFlightSizer) -> None:
        self.channels = {id: InputChannel(id, input) for id, input in channels}
        self.unsettled: deque[InputChannel] = deque()
        self._ring: deque[InputChannel] = deque()
        self._recovered_ring: deque[InputChannel] = deque()
        self._recovering = 0
        """How many recovered channels have not ended."""
        self._transport = transport
        self._sizer = sizer
        self._share = 1
        self._resize()

    # ---- what comes in ----
    def preload(self, id: ChannelId, elements: Sequence[Element]) -> None:
        """Elements recovered from a checkpoint, before anything new."""
        channel = self.channels[id]
        channel.recovered += count_rows(elements)
        channel.queue.extend(elements)
        self._wake(channel)

    def recover(self, id: ChannelId, input: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Adds a recovered channel with its content."""
        channel = self.channels[id] = InputChannel(id, input)
        channel.ended = True
        channel.queue.extend(batches)
        channel.queue.append(EndOfChannel())
        self._recovering += 1
        self._wake(channel)

    @property
    def recovered(self) -> list[ChannelId]:
        return [id for id in self.channels if id.source == RECOVERED]

    def put(self, id: ChannelId, element: Element) -> None:
        channel = self.channels[id]
        if channel.recording is not None:
            channel.recording.append(element)
        channel.queue.append(element)
        if not channel.in_ring:
            self._wake(channel)

    def _wake(self, channel: InputChannel) -> None:
        if channel.held or channel.in_ring or not channel.queue:
            return
        if isinstance(channel.queue[0], Barrier | EndOfChannel):
            self.unsettled.append(channel)
        else:
            channel.in_ring = True
            (self._recovered_ring if channel.id.source == RECOVERED else self._ring).append(channel)

    # ---- whose turn it is ----
    @property
    def runnable(self) -> bool:
        return bool(self._recovered_ring if self._recovering else self._ring)

    @property
    def closed(self) -> bool:
        return all(channel.closed for channel in self.channels.values())

    @property
    def waiting(self) -> bool:
        """Whether there is anything to process, held or not."""
        return any(channel.queue for channel in self.channels.values())

    def next(self) -> InputChannel | None:
        """Takes the next channel out of the ring; `done_with` puts it back at its end."""
        ring = self._recovered_ring if self._recovering else self._ring
        if not ring:
            return None
        channel = ring.popleft()
        channel.in_ring = False
        return channel

    def done_with(self, channel: InputChannel) -> None:
        self._wake(channel)

    def hold(self, id: ChannelId) -> None:
        channel = self.channels[id]
        channel.held = True
        if channel.in_ring:
            channel.in_ring = False
            self._ring.remove(channel)

    def release(self, ids: Iterable[ChannelId]) -> None:
        for id in ids:
            channel = self.channels[id]
            channel.held = False
            self._wake(channel)

    # ---- rows ----
    def take(self, channel: InputChannel, rows: int) -> pa.RecordBatch:
        """At most `rows` rows from the batch at the head, and from those behind it where they are small."""
        queue, offset = channel.queue, channel.offset
        head = queue[0]
        left = head.num_rows - offset
        if left > rows:
            channel.offset = offset + rows
            return head.slice(offset, rows)
        queue.popleft()
        channel.offset = 0
        batch = head.slice(offset) if offset else head
        if left >= _COALESCE_BELOW or not queue or queue[0].__class__ is not pa.RecordBatch:
            return batch
        joined = [batch]
        while queue and queue[0].__class__ is pa.RecordBatch and left + queue[0].num_rows <= rows:
            left += queue[0].num_rows
            joined.append(queue.popleft())
        return pa.concat_batches(joined) if len(joined) > 1 else batch

    def consumed(self, channel: InputChannel, rows: int) -> None:
        channel.consumed += rows
        self._grant(channel)

    def observe(self, rows: int, seconds: float) -> None:
        """Passes on what was measured; a changed capacity is announced at once."""
        if self._sizer.observe(rows, seconds):
            self._resize()
            self.grant_all()

    def end(self, channel: InputChannel) -> None:
        """No more rows will come: the channel's share goes to the others."""
        if not channel.ended:
            channel.ended = True
            self._resize()

    def close(self, channel: InputChannel) -> None:
        """Nothing at all will come."""
        channel.closed = True
        self._recovering -= channel.id.source == RECOVERED
        self.end(channel)

    def grant_all(self) -> None:
        for channel in self.channels.values():
            self._grant(channel)

    def _grant(self, channel: InputChannel) -> None:
        limit = channel.consumed - channel.recovered + self._share
        if not channel.ended and limit - channel.granted >= max(1, self._share // 2):
            channel.granted = limit
            self._transport.grant(channel.id, limit)

    def _resize(self) -> None:
        open_channels = sum(not channel.ended for channel in self.channels.values())
        self._share = max(1, self._sizer.capacity // max(1, open_channels))

    # ---- channel state ----
    def record(
        self, checkpoint: CheckpointId, recording: Sequence[ChannelId], behind: Sequence[ChannelId]
    ) -> dict[ChannelId, list[Element]]:
        """What an overtaking barrier passed. The lists of the channels in `recording` go on growing with what comes in;
        those in `behind` are past the barrier already."""
        self.stop_recording()
        recorded = {id: channel.waiting(checkpoint) for id, channel in self.channels.items() if id not in behind}
        for id in recording:
            self.channels[id].recording = recorded[id]
        return recorded

    def stop_recording(self, id: ChannelId | None = None) -> None:
        for channel in self.channels.values() if id is None else (self.channels[id],):
            channel.recording = None
