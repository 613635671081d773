"""A task's part in checkpoints: tells the barrier handler what happens and does what it answers.

A snapshot is one atomic move between two slices: the barrier goes into or past the output queues, then the operators
capture their state, then the rows that the barrier passed are listed. What is captured is written by others;
`Snapshots` waits for it.
"""

from __future__ import annotations

from penstock.core.alignment import (
    Aborted,
    Announced,
    BarrierHandler,
    Completed,
    Ended,
    Ending,
    Event,
    Hold,
    Instruction,
    PatienceOver,
    PauseSource,
    Reached,
    Recorded,
    RecordingComplete,
    Release,
    ResumeSource,
    Snapshot,
    Superseded,
    Triggered,
)
from penstock.core.barrier import Barrier, Mode
from penstock.core.causes import Cause
from penstock.core.ids import ChannelId, CheckpointId, Uid
from penstock.core.watermarks import NO_TIME, WatermarkCombiner
from penstock.operators.base import Clock, OperatorError
from penstock.runtime.chain import OperatorChain
from penstock.runtime.elements import Element
from penstock.runtime.inputs import InputChannel, Inputs
from penstock.runtime.outputs import Outputs
from penstock.runtime.ports import SnapshotWriter, TaskReports, WriteFailed, Written
from penstock.runtime.restored import TaskMemory
from penstock.runtime.snapshot import Pending, Snapshots
from penstock.runtime.statelog import StateLog
from penstock.state.parts import CapturedPart


class TaskCheckpoints:
    def __init__(
        self,
        *,
        head: Uid,
        chain: OperatorChain,
        inputs: Inputs,
        outputs: Outputs,
        event_time: WatermarkCombiner,
        writer: SnapshotWriter,
        reports: TaskReports,
        clock: Clock,
        log: StateLog,
    ) -> None:
        self._head = head
        self._chain = chain
        self._inputs = inputs
        self._outputs = outputs
        self._event_time = event_time
        self._reports = reports
        self._clock = clock
        self._handler = BarrierHandler(inputs.channels)
        self._snapshots = Snapshots(head, writer, reports, log)
        self._taken: dict[CheckpointId, bool] = {}
        """Snapshots whose checkpoint's end is not known, and whether the input had ended before."""
        self._recording_for: CheckpointId | None = None
        self.paused = False
        """The source must not be polled."""
        self.drained = False
        """All input has ended and the operators have finished."""
        self.end_covered = False
        """A complete checkpoint has a snapshot that was taken after that."""

    # ---- what happens ----
    @property
    def wake_at(self) -> float | None:
        return self._handler.wake_at

    def must_wait(self, channel: ChannelId) -> bool:
        return self._handler.must_wait(channel)

    def announced(self, channel: ChannelId, barrier: Barrier) -> None:
        self._tell(Announced(channel, barrier))

    def ending(self, channel: ChannelId) -> None:
        self._tell(Ending(channel))

    def triggered(self, barrier: Barrier) -> None:
        self._tell(Triggered(barrier))

    def patience_over(self) -> None:
        self._tell(PatienceOver())

    def settle(self) -> None:
        """Takes barriers and ends of channels from the heads of queues, until there is none left."""
        unsettled = self._inputs.unsettled
        while unsettled:
            channel = unsettled.popleft()
            if channel.held or channel.in_ring or not channel.queue:
                continue
            head = channel.queue[0]
            if isinstance(head, Barrier):
                channel.queue.popleft()
                self._tell(Reached(channel.id, head))
            elif channel.at_end:
                self._end(channel)
            self._inputs.done_with(channel)

    def _end(self, channel: InputChannel) -> None:
        channel.queue.popleft()
        self._inputs.close(channel)
        self._tell(Ended(channel.id))

    def complete(self, checkpoint: CheckpointId) -> None:
        drained = self._taken.pop(checkpoint, None)
        if drained is not None:
            self._chain.complete(checkpoint)
            self._snapshots.complete(checkpoint)
            self.end_covered |= drained
        self._tell(Completed(checkpoint))

    def abort(self, checkpoint: CheckpointId) -> None:
        self._forget(checkpoint)
        self._outputs.abort(checkpoint)
        if self._taken.pop(checkpoint, None) is not None:
            self._snapshots.abort(checkpoint)
            self._chain.abort(checkpoint)
        self._tell(Aborted(checkpoint))

    def written(self, note: Written) -> None:
        self._snapshots.written(note)

    def write_failed(self, note: WriteFailed) -> None:
        self._snapshots.failed(note)

    def collect_overtaken(self, now: float) -> None:
        """Takes over what adaptive barriers passed in the output queues."""
        for news in self._outputs.overtake(now):
            self._snapshots.forwarded(news.checkpoint, news.elements)

    # ---- what is done about it ----
    def _tell(self, event: Event) -> None:
        for instruction in self._handler.handle(event, self._clock.now()):
            self._obey(instruction)

    def _obey(self, instruction: Instruction) -> None:
        match instruction:
            case Hold(channel):
                self._inputs.hold(channel)
            case Release(channels):
                self._inputs.release(channels)
            case Snapshot():
                self._take(instruction)
            case Recorded(_, channel):
                self._inputs.stop_recording(channel)
            case RecordingComplete(checkpoint):
                self._recording_for = None
                self._snapshots.recorded(checkpoint)
            case Superseded(checkpoint):
                self._forget(checkpoint)
                self._reports.decline(checkpoint, Cause.SUPERSEDED, "a newer checkpoint took its place at this subtask")
            case PauseSource():
                self.paused = True
            case ResumeSource():
                self.paused = False

    def _take(self, order: Snapshot) -> None:
        started = self._clock.now()
        barrier, checkpoint = order.barrier, order.barrier.checkpoint
        outputs: dict[ChannelId, list[Element]] = {}
        if order.overtaking:
            outputs = self._outputs.forward_overtaking(barrier)
        else:
            self._outputs.forward(barrier, order.deadline)
        self._taken[checkpoint] = self.drained
        try:
            captured = self._chain.snapshot(barrier)
        except OperatorError as error:
            self._reports.decline(checkpoint, Cause.DECLINED, f"{error}\n{error.traceback}")
            return
        parts: dict[Uid, list[CapturedPart]] = {uid: list(snapshot.parts) for uid, snapshot in captured.items()}
        parts[self._head] += self._memory(barrier.mode).capture()
        state = self._snapshots.capture(checkpoint, barrier.purpose, parts)
        inputs: dict[ChannelId, list[Element]] = {}
        if order.overtaking:
            inputs = self._inputs.record(checkpoint, order.recording, order.behind)
            self._recording_for = checkpoint
        pending = Pending(
            checkpoint,
            drained=self.drained,
            committables={uid: s.committables for uid, s in captured.items() if s.committables},
            unaligned=order.overtaking,
            recording=order.overtaking,
            forwarding=order.deadline is not None,
            inputs=inputs,
            outputs=outputs,
            state=state,
            start_delay_ms=max(0.0, order.reached_at - order.announced_at) * 1000.0,
            alignment_ms=max(0.0, started - order.reached_at) * 1000.0,
            sync_ms=(self._clock.now() - started) * 1000.0,
        )
        self._snapshots.begin(pending)
        self.collect_overtaken(started)

    def _memory(self, mode: Mode) -> TaskMemory:
        """Without alignment, time may have run ahead of the barrier, and with it stored the rows that a restore replays
        would all be late: at-least-once starts again without a time."""
        if mode is Mode.AT_LEAST_ONCE:
            return TaskMemory.of(self.drained, NO_TIME, {})
        return TaskMemory.of(self.drained, self._event_time.time, self._event_time.capture())

    def _forget(self, checkpoint: CheckpointId) -> None:
        self._snapshots.drop(checkpoint)
        if self._recording_for == checkpoint:
            self._recording_for = None
            self._inputs.stop_recording()

    def validate(self) -> None:
        self._handler.validate()

    def story(self) -> str:
        return self._handler.story()
