"""Drives the source at the head of a chain: when it is polled, for how many rows, and what follows from its answers."""

from __future__ import annotations

from penstock.core.inflight import Slicer, StepSizer
from penstock.core.settings import RuntimeSettings
from penstock.core.watermarks import WatermarkCombiner
from penstock.operators.base import Clock, Polled, SourceOperator
from penstock.runtime.chain import OperatorChain
from penstock.runtime.idleness import Idleness
from penstock.runtime.outputs import Outputs
from penstock.runtime.taskcheckpoints import TaskCheckpoints

_SHORTEST_WAIT = 0.001
"""Seconds until the next poll of a source that had nothing and did not say for how long."""


class SourceDriver:
    def __init__(
        self,
        source: SourceOperator,
        chain: OperatorChain,
        outputs: Outputs,
        event_time: WatermarkCombiner,
        checkpoints: TaskCheckpoints,
        clock: Clock,
        settings: RuntimeSettings,
    ) -> None:
        self._source = source
        self._chain = chain
        self._outputs = outputs
        self._event_time = event_time
        self._checkpoints = checkpoints
        self._clock = clock
        self._size = StepSizer(Slicer(settings.step_budget, settings.source_batch_rows))
        self._idle = False
        self._idleness = Idleness(chain, outputs)
        self.rows = 0
        self.busy = 0.0
        """Seconds spent in operators."""
        self.done = False
        """No more records: the source said so, or it was told to stop."""
        self._poll_at = 0.0

    @property
    def wake_at(self) -> float | None:
        return None if self._chain.is_ahead else self._poll_at

    def stop(self) -> None:
        self.done = True

    def resume(self) -> None:
        """After a restore: nothing to say again, a source that is idle finds that out by itself."""

    def work(self) -> int:
        """Polls once, if it is time, and processes what came. Returns the rows."""
        started = self._clock.now()
        if self.done or self._checkpoints.paused or self._checkpoints.drained or started < self._poll_at:
            return 0
        if self._chain.is_ahead:  # until it hears that others have caught up
            return 0
        before = self._outputs.rows
        polled = self._chain.poll(self._source, self._size.rows(self._outputs.room))
        rows = 0 if polled.batch is None else polled.batch.num_rows
        if rows or polled.watermark is not None:
            self._idle = False
            self._idleness.rows_follow()
        self._chain.say_split(polled.split, polled.splits)
        if rows:
            self._chain.emit_polled(polled.batch)
        if polled.watermark is not None and polled.watermark > self._event_time.time:
            self._event_time.time = polled.watermark
            self._chain.advance(polled.watermark, start=1)
        self._idle |= polled.idle
        self.settle_idleness()
        ended = self._clock.now()
        self._size.observe(rows, self._outputs.rows - before, ended - started)
        self.done = polled.done
        self._poll_at = ended + _pause(polled, rows)
        self._outputs.flush(self._poll_at)  # nothing comes before the next poll that rows could linger for
        self.rows += rows
        self.busy += ended - started
        return rows

    def settle_idleness(self) -> None:
        """After the operators were called."""
        self._idleness.settle(self._idle)


def _pause(polled: Polled, rows: int) -> float:
    return polled.idle_for if rows or polled.done else max(polled.idle_for, _SHORTEST_WAIT)
