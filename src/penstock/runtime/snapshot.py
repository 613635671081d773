"""The snapshots that a task has taken and not yet acknowledged.

A snapshot is acknowledged when all of it is written. State is handed to the writer at once (ticket 0). What an
overtaking barrier passed is known only later: when every input channel has delivered the barrier, and, for an
adaptive one, when it has left every output queue; then it is handed over as a whole (ticket 1). Nothing is handed
over where there is nothing to write. What did not change since the checkpoint's base is named again, not written
(`layering`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.core.causes import Cause
from penstock.core.handles import PartHandle, PartKind, SnapshotFigures
from penstock.core.ids import ChannelId, CheckpointId, Uid
from penstock.runtime import channel_state
from penstock.runtime.elements import Element
from penstock.runtime.layering import Layers
from penstock.runtime.ports import SnapshotWriter, TaskReports, WriteFailed, Written
from penstock.state.parts import CapturedPart, UnchangedPart

_STATE, _CHANNELS = 0, 1
_CHANNEL_KINDS = (PartKind.INPUT_CHANNEL, PartKind.OUTPUT_CHANNEL)


@dataclass(slots=True)
class Pending:
    """One snapshot on its way."""

    checkpoint: CheckpointId
    drained: bool
    committables: Mapping[Uid, Sequence[bytes]]
    unaligned: bool
    recording: bool
    """Input channels still have to deliver the barrier; `inputs` grows."""
    forwarding: bool
    """The barrier may still overtake in the output queues."""
    inputs: Mapping[ChannelId, list[Element]]
    outputs: Mapping[ChannelId, list[Element]]
    start_delay_ms: float = 0.0
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    open_tickets: set[int] = field(default_factory=set)
    handles: list[PartHandle] = field(default_factory=list)
    """Written for this checkpoint."""
    below: list[PartHandle] = field(default_factory=list)
    """Written for earlier ones."""
    written_in: float = 0.0
    channel_rows: int = 0


class Snapshots:
    def __init__(self, head: Uid, writer: SnapshotWriter, reports: TaskReports, layers: Layers) -> None:
        self._layers = layers
        self._head = head
        self._writer = writer
        self._reports = reports
        self._pending: dict[CheckpointId, Pending] = {}

    def begin(
        self,
        pending: Pending,
        state: Mapping[Uid, Sequence[CapturedPart]],
        unchanged: Mapping[Uid, Sequence[UnchangedPart]],
    ) -> None:
        self._pending[pending.checkpoint] = pending
        parts, pending.below = self._layers.below(state, unchanged)
        if parts:
            pending.open_tickets.add(_STATE)
            self._writer.write(pending.checkpoint, _STATE, parts)
        else:
            self._writer.skip(pending.checkpoint, _STATE)
        self._proceed(pending)

    def recorded(self, checkpoint: CheckpointId) -> None:
        """All input channels have delivered the barrier."""
        pending = self._pending.get(checkpoint)
        if pending is not None and pending.recording:
            pending.recording = False
            self._proceed(pending)

    def forwarded(self, checkpoint: CheckpointId, passed: Mapping[ChannelId, list[Element]]) -> None:
        """The adaptive barrier has left all output queues, past `passed`."""
        pending = self._pending.get(checkpoint)
        if pending is not None and pending.forwarding:
            pending.forwarding = False
            pending.outputs = passed
            pending.unaligned |= bool(passed)
            self._proceed(pending)

    def written(self, note: Written) -> None:
        pending = self._pending.get(note.checkpoint)
        if pending is not None and note.ticket in pending.open_tickets:
            pending.open_tickets.discard(note.ticket)
            pending.handles.extend(note.handles)
            pending.written_in += note.seconds
            self._acknowledge_if_done(pending)

    def failed(self, note: WriteFailed) -> None:
        if self.drop(note.checkpoint):
            self._reports.decline(note.checkpoint, Cause.WRITE_FAILED, note.error)

    def drop(self, checkpoint: CheckpointId) -> bool:
        """Forgets a snapshot that will not be acknowledged; whether there was one."""
        return self._pending.pop(checkpoint, None) is not None

    def _proceed(self, pending: Pending) -> None:
        if pending.recording or pending.forwarding:
            return
        parts = [
            channel_state.capture(kind, channel, kept)
            for kind, channels in zip(_CHANNEL_KINDS, (pending.inputs, pending.outputs), strict=True)
            for channel, elements in channels.items()
            if (kept := channel_state.replayable(elements))
        ]
        if parts:
            every = [*pending.inputs.values(), *pending.outputs.values()]
            pending.channel_rows = sum(map(channel_state.count_rows, every))
            pending.open_tickets.add(_CHANNELS)
            self._writer.write(pending.checkpoint, _CHANNELS, {self._head: parts})
        else:
            self._writer.skip(pending.checkpoint, _CHANNELS)
        self._acknowledge_if_done(pending)

    def _acknowledge_if_done(self, pending: Pending) -> None:
        if pending.recording or pending.forwarding or pending.open_tickets:
            return
        del self._pending[pending.checkpoint]
        state = [handle for handle in pending.handles if handle.kind not in _CHANNEL_KINDS]
        self._layers.remember(pending.checkpoint, [*pending.below, *state])
        state_bytes = sum(handle.length for handle in state)
        every = [*pending.below, *pending.handles]
        figures = SnapshotFigures(
            start_delay_ms=pending.start_delay_ms,
            alignment_ms=pending.alignment_ms,
            sync_ms=pending.sync_ms,
            async_ms=pending.written_in * 1000.0,
            state_bytes=state_bytes,
            full_bytes=state_bytes + sum(handle.length for handle in pending.below),
            in_flight_bytes=sum(handle.length for handle in pending.handles) - state_bytes,
            in_flight_rows=pending.channel_rows,
            unaligned=pending.unaligned,
        )
        self._reports.acknowledge(pending.checkpoint, every, pending.committables, figures, pending.drained)
