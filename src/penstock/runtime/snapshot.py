"""The snapshots that a task has taken and not yet acknowledged.

A snapshot is acknowledged when all of it is durable. State is handed to the writer at once, by the state log: what this
snapshot adds to it, and what earlier ones are still writing, has to be waited for. What an overtaking barrier passed is
known only later: when every input channel has delivered the barrier, and, for an adaptive one, when it has left every
output queue; then it is handed over as a whole. Nothing is handed over where there is nothing to write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.core.barrier import Purpose
from penstock.core.causes import Cause
from penstock.core.handles import PartHandle, PartKind, SnapshotFigures
from penstock.core.ids import ChannelId, CheckpointId, Uid
from penstock.runtime import channel_state
from penstock.runtime.elements import Element
from penstock.runtime.ports import CHANNELS, SnapshotWriter, TaskReports, WriteFailed, WriteId, Written
from penstock.runtime.statelog import Captured, Progress, StateLog
from penstock.state.parts import CapturedPart

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
    state: Captured
    start_delay_ms: float = 0.0
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    writing_channels: bool = False
    channels: Sequence[PartHandle] = ()
    channels_in: float = 0.0
    """Seconds that writing them took."""
    channel_rows: int = 0


class Snapshots:
    def __init__(self, head: Uid, writer: SnapshotWriter, reports: TaskReports, log: StateLog) -> None:
        self._log = log
        self._head = head
        self._writer = writer
        self._reports = reports
        self._pending: dict[CheckpointId, Pending] = {}

    def capture(
        self, checkpoint: CheckpointId, purpose: Purpose, parts: Mapping[Uid, Sequence[CapturedPart]]
    ) -> Captured:
        """The state at the barrier: the logged part of it, and the given parts. It is being written from now on."""
        return self._log.capture(checkpoint, purpose, parts)

    def begin(self, pending: Pending) -> None:
        self._pending[pending.checkpoint] = pending
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
        if note.write.ticket == CHANNELS:
            pending = self._pending.get(note.write.checkpoint)
            if pending is not None and pending.writing_channels:
                pending.writing_channels = False
                pending.channels, pending.channels_in = note.handles, note.seconds
                self._acknowledge_if_done(pending)
            return
        self._log.written(note.write, note.handles, note.seconds)
        for pending in list(self._pending.values()):
            self._acknowledge_if_done(pending)

    def failed(self, note: WriteFailed) -> None:
        """Declines every snapshot that cannot do without what was to be written."""
        if note.write.ticket == CHANNELS:
            lost = [note.write.checkpoint]
        else:
            self._log.failed(note.write, note.error)
            failed = (pending for pending in self._pending.values() if _has_failed(pending.state))
            lost = [pending.checkpoint for pending in failed]
        for checkpoint in lost:
            if self.drop(checkpoint):
                self._reports.decline(checkpoint, Cause.WRITE_FAILED, note.error)

    def drop(self, checkpoint: CheckpointId) -> bool:
        """Forgets a snapshot that will not be acknowledged; whether there was one."""
        return self._pending.pop(checkpoint, None) is not None

    def complete(self, checkpoint: CheckpointId) -> None:
        self._log.complete(checkpoint)

    def abort(self, checkpoint: CheckpointId) -> None:
        """State that was captured for it stays in the log; records in flight are of no use any more."""
        self._writer.drop(WriteId(checkpoint, CHANNELS))
        self._log.abort(checkpoint)

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
            pending.writing_channels = True
            self._writer.write(WriteId(pending.checkpoint, CHANNELS), {self._head: parts})
        else:
            self._writer.skip(WriteId(pending.checkpoint, CHANNELS))
        self._acknowledge_if_done(pending)

    def _acknowledge_if_done(self, pending: Pending) -> None:
        writes = pending.state.writes
        if pending.recording or pending.forwarding or pending.writing_channels:
            return
        if any(write.progress is not Progress.DURABLE for write in writes):
            return
        del self._pending[pending.checkpoint]
        own = pending.state.own
        figures = SnapshotFigures(
            start_delay_ms=pending.start_delay_ms,
            alignment_ms=pending.alignment_ms,
            sync_ms=pending.sync_ms,
            async_ms=(pending.channels_in + (own.seconds if own else 0.0)) * 1000.0,
            state_bytes=sum(handle.length for handle in own.handles) if own else 0,
            full_bytes=pending.state.bytes,
            in_flight_bytes=sum(handle.length for handle in pending.channels),
            in_flight_rows=pending.channel_rows,
            unaligned=pending.unaligned,
        )
        every = [*pending.state.handles(), *pending.channels]
        self._reports.acknowledge(pending.checkpoint, every, pending.committables, figures, pending.drained)


def _has_failed(captured: Captured) -> bool:
    return any(write.progress is Progress.FAILED for write in captured.writes)
