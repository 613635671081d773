"""Takes what comes in through the operators: one slice of rows, or the control elements before it."""

from __future__ import annotations

import pyarrow as pa

from penstock.core.inflight import InFlightSizer, Slicer, StepSizer
from penstock.core.settings import RuntimeSettings
from penstock.core.watermarks import WatermarkCombiner
from penstock.operators.base import Clock
from penstock.runtime.chain import OperatorChain
from penstock.runtime.elements import EndOfData, Idle, Watermark
from penstock.runtime.idleness import Idleness
from penstock.runtime.inputs import InputChannel, Inputs
from penstock.runtime.outputs import Outputs
from penstock.runtime.taskcheckpoints import TaskCheckpoints


class Intake:
    def __init__(
        self,
        chain: OperatorChain,
        inputs: Inputs,
        outputs: Outputs,
        event_time: WatermarkCombiner,
        checkpoints: TaskCheckpoints,
        sizer: InFlightSizer,
        clock: Clock,
        settings: RuntimeSettings,
    ) -> None:
        self._chain = chain
        self._inputs = inputs
        self._outputs = outputs
        self._event_time = event_time
        self._checkpoints = checkpoints
        self._sizer = sizer
        self._clock = clock
        self._size = StepSizer(Slicer(settings.step_budget, settings.in_flight.max_rows))
        self._idleness = Idleness(chain, outputs)
        self.rows = 0
        self.busy = 0.0
        """Seconds spent in operators."""

    @property
    def done(self) -> bool:
        """The data of every channel has ended."""
        return self._event_time.all_ended

    @property
    def wake_at(self) -> float | None:
        """Elements come as notes, so there is no time to wake up at."""
        return None

    def stop(self) -> None:
        """Only sources stop; what they have sent still comes in."""

    def resume(self) -> None:
        """After a restore: says again that all channels are idle, if they were."""
        self.settle_idleness()

    def work(self) -> int:
        """One slice, and the control elements on the way to it. Returns its rows."""
        inputs, outputs = self._inputs, self._outputs
        while not outputs.blocked and (channel := inputs.next()) is not None:
            if channel.queue[0].__class__ is pa.RecordBatch:
                return self._process(channel)
            self._control(channel)
            self._checkpoints.settle()
            if self.done and not self._checkpoints.drained:
                break
        return 0

    def _process(self, channel: InputChannel) -> int:
        started = self._clock.now()
        before = self._outputs.rows
        batch = self._inputs.take(channel, self._size.rows(self._outputs.room))
        rows: int = batch.num_rows
        if self._sizer.wants_bytes:
            self._sizer.weigh(rows, batch.nbytes)
        self._idleness.rows_follow()
        self._chain.process(batch, channel.input)
        seconds = self._clock.now() - started
        self._size.observe(rows, self._outputs.rows - before, seconds)
        self._inputs.consumed(channel, rows)
        self._inputs.done_with(channel)
        self.settle_idleness()
        self._checkpoints.settle()
        self.rows += rows
        self.busy += seconds
        return rows

    def _control(self, channel: InputChannel) -> None:
        """The element at the head of a queue, which is neither rows nor a barrier."""
        element = channel.queue[0]
        time = self._event_time
        advanced = False
        if isinstance(element, Watermark):
            advanced = time.watermark(channel.id, element.time)
        elif isinstance(element, Idle):
            advanced = time.silence(channel.id, not element.active)
        elif isinstance(element, EndOfData):
            if self._checkpoints.must_wait(channel.id):
                return self._inputs.hold(channel.id)
            self._inputs.end(channel)
            advanced = time.end(channel.id)
        channel.queue.popleft()
        self._inputs.done_with(channel)
        if self._checkpoints.drained:
            return None
        if advanced:
            self._chain.advance(time.time)
        return self.settle_idleness()

    def settle_idleness(self) -> None:
        """After the operators were called, or the input became idle or active."""
        self._idleness.settle(self._event_time.idle)
