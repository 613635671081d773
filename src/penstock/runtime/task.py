"""One subtask: a state machine that is stepped by one thread and never waits.

Theory of operation
-------------------
`put` leaves notes in the mailbox, from any thread. `step` does one round of work and says when it wants the next one:

    1. drain the mailbox: arrivals go into the queues, barriers are announced, grants and notices are taken
    2. what is due by time: patience of barriers, lingering output
    3. one slice: rows of one input channel, or one poll of the source; unless the outputs are blocked
    4. timers of the operators
    5. the end: finish the operators when all input has ended, end the channels when a checkpoint has covered that

Barriers are taken between slices, in 1 (overtaking), 2 (patience over) and after 3 (in order), also while the
outputs are blocked: see `taskcheckpoints`.

How a task ends:

    running    all input has ended, operators have finished       -> drained
    drained    a checkpoint taken since is complete; or at once,
               in a job without checkpoints                       -> finishing
    finishing  everything is sent, the input channels have ended  -> finished
    any        an exception -> failed;  Cancel -> cancelled

A drained task says `EndOfData` and still takes part in checkpoints. A finishing one does as well, until its queues
are empty: the end of a channel is never queued, so no barrier is ever asked to go behind it. Because a task also
waits for the end of its input channels, a finished task has only finished predecessors. `EndOfData` is said again
after a restore by a task that was drained or finished; hearing it twice changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from penstock.core.barrier import Barrier, Mode, Purpose
from penstock.core.causes import Cause
from penstock.core.handles import PartKind
from penstock.core.ids import RECOVERED, Attempt, ChannelId, CheckpointId, Generation, SubtaskId, Uid
from penstock.core.inflight import InFlightSizer
from penstock.core.settings import RuntimeSettings
from penstock.core.watermarks import WatermarkCombiner
from penstock.graph.job import JobGraph, OperatorSpec
from penstock.operators.base import Clock, OperatorContext, SourceOperator
from penstock.runtime import channel_state
from penstock.runtime.chain import OperatorChain
from penstock.runtime.elements import EndOfChannel, EndOfData
from penstock.runtime.inputs import Inputs
from penstock.runtime.intake import Intake
from penstock.runtime.outputs import Outputs
from penstock.runtime.ports import (
    Abort,
    Align,
    Arrived,
    Cancel,
    Complete,
    Granted,
    Note,
    SnapshotWriter,
    StopSources,
    TaskReports,
    Transport,
    Trigger,
    WriteFailed,
    Written,
)
from penstock.runtime.replay import replayed
from penstock.runtime.restored import RestoredSubtask, TaskMemory, operator_context
from penstock.runtime.sourcing import SourceDriver
from penstock.runtime.statelog import StateLog
from penstock.runtime.taskcheckpoints import TaskCheckpoints

__all__ = ["RestoredSubtask", "Task"]

_NO_CHECKPOINT = CheckpointId(0)
"""The id under which sinks prepare their output at the end of a job without checkpoints."""


def _earlier(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return one if one <= other else other


def _nobody() -> None:
    """Notifies nobody: for a task whose driver looks at the mailbox itself."""


class Task:
    def __init__(
        self,
        *,
        graph: JobGraph,
        subtask: SubtaskId,
        transport: Transport,
        reports: TaskReports,
        snapshots: SnapshotWriter,
        clock: Clock,
        settings: RuntimeSettings,
        checkpointing: bool,
        attempt: Attempt,
        generation: Generation,
        deployed_ms: int = 0,
        restored: RestoredSubtask | None = None,
        notify: Callable[[], None] = _nobody,
    ) -> None:
        self.subtask = subtask
        self.ended = False
        """Finished, failed or cancelled."""
        self._graph = graph
        self._specs = graph.chain(subtask.chain).operators
        self._transport = transport
        self._reports = reports
        self._writer = snapshots
        self._clock = clock
        self._settings = settings
        self._checkpointing = checkpointing
        self._attempt = attempt
        self._generation = generation
        self._deployed_ms = deployed_ms
        self._restored = restored
        self._notify = notify
        self._mailbox: deque[Note] = deque()
        self._sizer = InFlightSizer(settings.in_flight)
        self._inputs = Inputs(
            [(c, graph.edges[c.edge].target_input) for c in graph.input_channels(subtask)], transport, self._sizer
        )
        self._outputs = Outputs(
            graph,
            subtask,
            transport,
            clock,
            linger=settings.linger,
            small_batch_rows=settings.small_batch_rows,
        )
        unheard = [channel for channel in self._inputs.channels if graph.edges[channel.edge].timeless]
        self._event_time = WatermarkCombiner(self._inputs.channels, unheard)
        self._chain: OperatorChain | None = None
        self._started = False
        self._finished = False
        self._worked_until: float | None = None
        """Since when there has been input that was not processed; None: there was none after the last step."""
        self._dispatch: dict[type, Callable[..., None]] = {}

    @property
    def rows_in(self) -> int:
        return 0 if self._chain is None else self._driver.rows

    @property
    def rows_out(self) -> int:
        return self._outputs.rows

    @property
    def busy(self) -> float:
        """Seconds spent in operators."""
        return 0.0 if self._chain is None else self._driver.busy

    @property
    def aligned_time(self) -> int | None:
        """The event time of a source that is to stay close to others; None if it says nothing of that."""
        return None if self._chain is None or self.ended else self._chain.aligned_time

    # ---- from outside ----
    def put(self, note: Note) -> None:
        """Leaves a note; callable from any thread."""
        self._mailbox.append(note)
        # A grant is news to a task that waits for one, and to the others when they come by. One that blocks just now
        # looks into the mailbox once more before it waits.
        if note.__class__ is not Granted or self._outputs.blocked:
            self._notify()

    def open(self) -> None:
        """Makes and restores the operators. Nothing is sent before the first step: until then, a peer may not be there.
        What goes wrong is reported, not raised."""
        try:
            if self._restored is None or not self._restored.finished:
                self._open()
        except Exception as error:
            self._fail(error)

    def step(self) -> float | None:
        """Works for about one step budget. Returns when to step again, on the clock's scale: at once if that is not
        in the future, only for a new note if it is None."""
        if self.ended:
            self._refuse_triggers()
            return None
        try:
            return self._step()
        except Exception as error:
            self._fail(error)
            return None
        finally:
            self._transport.flush()

    def validate(self) -> None:
        """Raises `AssertionError` where an invariant of the barrier handling does not hold; for tests and
        simulation."""
        if self._chain is not None:
            self._checkpoints.validate()

    def story(self) -> str:
        """What the barrier handling went through lately, for a person."""
        return "" if self._chain is None else self._checkpoints.story()

    # ---- beginning ----
    def _open(self) -> None:
        if self._restored is not None:
            self._recover(self._restored)
        self._chain = chain = OperatorChain(
            self._specs, self.subtask.index, self._outputs.emit, self._outputs.watermark
        )
        self._log = StateLog(self._settings.layers, self._writer)
        self._checkpoints = TaskCheckpoints(
            head=self._specs[0].uid,
            chain=chain,
            inputs=self._inputs,
            outputs=self._outputs,
            event_time=self._event_time,
            writer=self._writer,
            reports=self._reports,
            clock=self._clock,
            log=self._log,
        )
        self._driver = self._make_driver(chain)
        self._dispatch = self._make_dispatch()
        for recovered in self._inputs.recovered:
            self._checkpoints.ending(recovered)
        chain.open(self._context_of)
        self._keep_log_of(chain)
        restored = self._restored
        self._memory = TaskMemory()
        if restored is not None:
            self._memory = restored.memory(self._specs[0].uid, self.subtask.index)
            self._event_time.restore(self._memory.watermarks(), self._memory.time)
            self._preload(restored)

    def _make_driver(self, chain: OperatorChain) -> Intake | SourceDriver:
        head, time, checkpoints = chain.operators[0], self._event_time, self._checkpoints
        outputs, clock, settings = self._outputs, self._clock, self._settings
        if isinstance(head, SourceOperator):
            return SourceDriver(head, chain, outputs, time, checkpoints, clock, settings)
        return Intake(chain, self._inputs, outputs, time, checkpoints, self._sizer, clock, settings)

    def _make_dispatch(self) -> dict[type, Callable[..., None]]:
        checkpoints, outputs, driver, chain = self._checkpoints, self._outputs, self._driver, self._chain
        assert chain is not None
        return {
            Arrived: self._arrived,
            Granted: lambda note: outputs.granted(note.channel, note.limit),
            Trigger: lambda note: checkpoints.triggered(note.barrier),
            Abort: lambda note: checkpoints.abort(note.checkpoint),
            Complete: lambda note: checkpoints.complete(note.checkpoint),
            Written: checkpoints.written,
            WriteFailed: checkpoints.write_failed,
            Cancel: self._cancel,
            StopSources: lambda _: driver.stop(),
            Align: lambda note: chain.align(note.slowest),
        }

    def _context_of(self, spec: OperatorSpec) -> OperatorContext:
        return operator_context(
            self._graph,
            self.subtask,
            spec,
            self._restored,
            self._clock,
            self._attempt,
            self._generation,
            self._settings,
            self._deployed_ms,
        )

    def _keep_log_of(self, chain: OperatorChain) -> None:
        index, restored = self.subtask.index, self._restored
        for uid, state in chain.logged():
            stored = [] if restored is None else restored.layers(uid, state.name, index, state.key_groups)
            self._log.add(uid, state, stored, _NO_CHECKPOINT if restored is None else restored.checkpoint)

    def _recover(self, restored: RestoredSubtask) -> None:
        """Makes the recovered channels, before anything else asks which channels there are."""
        for edge, batches in replayed(self._graph, self.subtask, restored).items():
            channel = ChannelId(edge, RECOVERED, self.subtask.index)
            self._inputs.recover(channel, self._graph.edges[edge].target_input, batches)

    def _preload(self, restored: RestoredSubtask) -> None:
        for part in restored.channels:
            assert part.channel is not None, f"part {part.name} of {self.subtask} names no channel"
            if part.channel.source == RECOVERED:
                continue
            elements = channel_state.restore(part, self._graph.edges[part.channel.edge].schema)
            side = self._inputs if part.kind is PartKind.INPUT_CHANNEL else self._outputs
            side.preload(part.channel, elements)

    def _start(self) -> None:
        self._started = True
        if self._chain is None:
            self._outputs.control(EndOfData())
            return self._finish()
        self._inputs.grant_all()
        if self._memory.drained:
            # Its operators have finished, at the end of time: nothing before that may be said to them again.
            return self._end_of_data({})
        self._chain.resume(self._memory.time)
        self._driver.resume()
        return None

    # ---- one step ----
    def _step(self) -> float | None:
        begun = self._clock.now()
        if not self._started:
            self._start()
        mailbox, dispatch = self._mailbox, self._dispatch
        for _ in range(len(mailbox)):
            if self.ended:
                return None
            note = mailbox.popleft()
            dispatch[note.__class__](note)
        if self.ended:
            return None
        checkpoints, outputs = self._checkpoints, self._outputs
        checkpoints.settle()
        self._on_time(begun)
        self._transport.flush()  # the slice may take long
        rows = 0 if outputs.blocked else self._work()
        if not outputs.blocked:
            self._fire_timers()
        checkpoints.collect_overtaken(begun)
        self._finish_if_covered()
        return self._measure_and_wait(begun, rows)

    def _on_time(self, now: float) -> None:
        patience = self._checkpoints.wake_at
        if patience is not None and patience <= now:
            self._checkpoints.patience_over()
            self._checkpoints.settle()
        self._log.flush(now)
        self._outputs.flush(now)
        self._checkpoints.collect_overtaken(now)

    def _work(self) -> int:
        """One slice, and the end of all input where it comes. Returns the rows."""
        rows = self._driver.work()
        if self._driver.done and not self._checkpoints.drained and not self._checkpoints.paused:
            self._finish_operators()
        return rows

    def _fire_timers(self) -> None:
        assert self._chain is not None
        if self._chain.timed and not self._checkpoints.drained and not self._checkpoints.paused:
            due = self._chain.next_timer()
            if due is not None and due <= (now_ms := self._clock.wall_ms()):
                self._chain.fire_timers(now_ms)
                self._driver.settle_idleness()

    def _measure_and_wait(self, begun: float, rows: int) -> float | None:
        """Ends a step: what it says about the rate of work, and when to go on."""
        if self.ended:
            return None
        now = self._clock.now()
        since, runnable = self._worked_until, self._inputs.runnable
        if rows or since is not None:
            self._inputs.observe(rows, now - (begun if since is None else since))
        blocked = self._outputs.blocked
        self._worked_until = now if runnable or (blocked and self._inputs.waiting) else None
        if self._mailbox or (runnable and not blocked):
            return now
        wake = _earlier(self._outputs.wake_at, self._checkpoints.wake_at)
        if blocked or self._checkpoints.drained or self._checkpoints.paused:
            return wake
        return _earlier(_earlier(wake, self._driver.wake_at), self._timer_at(now))

    def _timer_at(self, now: float) -> float | None:
        assert self._chain is not None
        due = self._chain.next_timer() if self._chain.timed else None
        return None if due is None else now + max(0, due - self._clock.wall_ms()) / 1000.0

    # ---- notes ----
    def _arrived(self, note: Arrived) -> None:
        channel, element = note.channel, note.element
        if element.__class__ is Barrier:
            if element.mode is not Mode.UNALIGNED:
                self._inputs.put(channel, element)
            self._checkpoints.announced(channel, element)
            return
        self._inputs.put(channel, element)
        if element.__class__ is EndOfChannel:
            self._checkpoints.ending(channel)

    # ---- end ----
    def _finish_operators(self) -> None:
        assert self._chain is not None
        self._chain.finish()
        committables: dict[Uid, Sequence[bytes]] = {}
        if not self._checkpointing:
            captured = self._chain.snapshot(Barrier(_NO_CHECKPOINT, Mode.ALIGNED, Purpose.FINAL))
            committables = {uid: s.committables for uid, s in captured.items() if s.committables}
        self._end_of_data(committables)

    def _end_of_data(self, committables: Mapping[Uid, Sequence[bytes]]) -> None:
        self._checkpoints.drained = True
        self._outputs.control(EndOfData())
        self._reports.drained(committables)

    def _finish_if_covered(self) -> None:
        covered = self._checkpoints.end_covered or not self._checkpointing
        if self._checkpoints.drained and covered and self._outputs.empty and self._inputs.closed:
            self._finish()

    def _finish(self) -> None:
        self._outputs.control(EndOfChannel())
        self._finished = True
        self._end()
        self._reports.finished()

    def _cancel(self, note: Cancel) -> None:
        self._end()
        self._reports.cancelled()

    def _fail(self, error: Exception) -> None:
        self._end()
        self._reports.failed(error)

    def _end(self) -> None:
        self.ended = True
        if self._chain is not None:
            self._chain.close()

    def _refuse_triggers(self) -> None:
        """A trigger that crossed the report of the end: the coordinator starts another checkpoint without this
        subtask."""
        while self._mailbox:
            note = self._mailbox.popleft()
            if self._finished and isinstance(note, Trigger):
                self._reports.decline(note.barrier.checkpoint, Cause.SUBTASK_FINISHED, f"{self.subtask} has finished")
