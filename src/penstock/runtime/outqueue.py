"""One output channel: what waits to be sent, and how much of it may be.

Two waiting places, one behind the other. Small batches *linger* for company, together with a watermark that came
after them, until they are many rows, their time is up, or something comes that must not wait. Then they go as one
batch into the *queue*, from which elements leave in order: rows only within the receiver's grant, everything else
as soon as it is at the head.
"""

from __future__ import annotations

from collections import deque

import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.core.ids import ChannelId, CheckpointId
from penstock.runtime.channel_state import replayable
from penstock.runtime.elements import Element, Watermark


class OutputChannel:
    __slots__ = ("flush_at", "id", "limit", "lingering", "lingering_rows", "lingering_watermark", "queue", "sent")

    def __init__(self, id: ChannelId) -> None:
        self.id = id
        self.queue: deque[Element] = deque()
        self.lingering: list[pa.RecordBatch] = []
        self.lingering_rows = 0
        self.lingering_watermark: Watermark | None = None
        self.flush_at = 0.0
        self.sent = 0
        """Rows sent in this attempt, recovered ones included: they are sent like any other."""
        self.limit = 0

    @property
    def room(self) -> int:
        """Rows that may still be added and sent at once."""
        return 0 if self.queue else max(0, self.limit - self.sent - self.lingering_rows)

    def linger(self, batch: pa.RecordBatch) -> None:
        self.lingering.append(batch)
        self.lingering_rows += batch.num_rows

    def settle(self) -> None:
        """Moves what lingers into the queue."""
        lingering = self.lingering
        if not lingering:
            return
        self.queue.append(lingering[0] if len(lingering) == 1 else pa.concat_batches(lingering))
        self.lingering, self.lingering_rows = [], 0
        if self.lingering_watermark is not None:
            self.queue.append(self.lingering_watermark)
            self.lingering_watermark = None

    def add_watermark(self, watermark: Watermark) -> None:
        """A later watermark says all that an earlier one says, so it takes the place of one that directly precedes
        it."""
        if self.lingering:
            self.lingering_watermark = watermark
        elif self.queue and isinstance(self.queue[-1], Watermark):
            self.queue[-1] = watermark
        else:
            self.queue.append(watermark)

    def before(self, checkpoint: CheckpointId) -> list[Element] | None:
        """Takes the barrier of `checkpoint` out of the queue and tells what it waited behind; None if it is not
        there."""
        for place, element in enumerate(self.queue):
            if isinstance(element, Barrier) and element.checkpoint == checkpoint:
                overtaken = replayable(list(self.queue)[:place])
                del self.queue[place]
                return overtaken
        return None
