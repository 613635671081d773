"""process: a user's function per key, with state and timers.

The rows of a batch are grouped by key, in the order in which the keys first occur; the rows of one key keep their
order. For each key its states are loaded once, the function is called with the key's rows, and the states are stored
once (`calling`).

Event time. Due timers fire in bounded portions (`PORTION`), so that a watermark that many keys waited for does not hold
up a barrier. The operator therefore answers for its own watermark: it lets event time pass downstream only as far as
its timers have fired. A key whose rows come in meanwhile has its due timers fired first, so that a key never sees time
out of order. What the operator knows of event time is part of its snapshot.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.operators.calling import KeyByKey, calling
from penstock.operators.keyed import KeyedContext, KeyedFunction, bind_states, own_instance, row_type, rows_of
from penstock.operators.rows import batch_of
from penstock.runtime.elements import MAX_WATERMARK, MIN_WATERMARK
from penstock.state.backend import backend_of
from penstock.state.expiring import ExpiringState
from penstock.state.keys import KeyColumns
from penstock.state.operator_state import OperatorStates
from penstock.state.parts import CapturedPart, LoggedState, OperatorSnapshot, PartKind, RestoredPart
from penstock.state.tables import check_version
from penstock.state.timers import PART_NAME as TIMERS_PART
from penstock.state.timers import TimerKind, TimerQueue, Timers

PORTION: Final = 1000
"""How many timers fire, and how many keys are looked at for what has outlived its time, in one step."""

_DUE_NOW: Final = 0
_TIME_PART: Final = "penstock.watermark"
_TIME: Final = struct.Struct("<BIq")
"""Version, parallelism of the writer, watermark."""
_TIME_VERSION: Final = 1


class ProcessOperator(Operator):
    passes_watermarks = False

    def __init__(
        self,
        function: KeyedFunction | type[KeyedFunction],
        key: Sequence[str],
        returns: pa.Schema,
        input_schema: pa.Schema,
    ) -> None:
        self._function = own_instance(function)
        self._columns = KeyColumns(input_schema, key)
        self._returns = returns
        self._row_type = row_type(input_schema)
        self._closing: list[Callable[[], None]] = []
        """What is to be closed, in the order in which it was opened."""

    # ---- life ----
    def open(self, context: OperatorContext) -> None:
        self._parallelism = context.parallelism
        groups, total = context.key_groups, context.total_key_groups
        self._timers = Timers(self._columns, groups, total)
        self._backend = backend_of(context, self._columns)
        self._closing.append(self._backend.close)
        self.states = bind_states(self._function, context.clock.wall_ms)
        self._expiring = [state for state in self.states if isinstance(state, ExpiringState)]
        for state in self.states:
            self._backend.add(state)
        self._operator_states = OperatorStates(self._function)
        self._context = KeyedContext(context, self._columns, self._timers)
        self._calling = self._calls()
        self._restore(context)
        self._function.open(self._context)
        self._closing.append(self._function.close)

    def _calls(self) -> KeyByKey:
        return calling(self._function, self._context, self._backend, self._columns)

    def _restore(self, context: OperatorContext) -> None:
        own = {TIMERS_PART, _TIME_PART}
        states = [part for part in context.restored if part.name not in own]
        self._backend.restore([part for part in states if part.kind is PartKind.KEYED])
        operator_parts = [part for part in states if part.kind is not PartKind.KEYED]
        self._operator_states.restore(context.uid, operator_parts, context.subtask, context.parallelism)
        self._timers.restore([part for part in context.restored if part.name == TIMERS_PART])
        times = {part.subtask: part for part in context.restored if part.name == _TIME_PART}
        if times:
            self._context.watermark = _restored_watermark(times, context)

    def close(self) -> None:
        while self._closing:
            self._closing.pop()()

    # ---- rows ----
    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        self._settle()
        columns = [batch.column(name) for name in self._columns.names]
        keys = self._columns.from_arrow(columns)
        distinct = set(keys)
        if self._is_behind():
            due = self._timers.event.pop_due_of(distinct, self._context.watermark)
            self._calling.timers(due, TimerKind.EVENT_TIME)
        self._calling.rows(columns, keys, distinct, rows_of(batch, self._row_type))
        self._flush(out)

    def _flush(self, out: Collector) -> None:
        emitted = self._context.emitted
        if emitted:
            self._context.emitted = []
            out.emit(batch_of(emitted, self._returns))

    def _settle(self) -> None:
        self._backend.settle()
        self._timers.settle()

    # ---- time ----
    def on_watermark(self, time: int, out: Collector) -> None:
        self._context.watermark = max(time, self._context.watermark)
        self._fire_portion(self._timers.event, time, TimerKind.EVENT_TIME)
        if time == MAX_WATERMARK:
            # Nothing comes after the end of time: whatever waits for it has to fire now.
            while self._is_behind():
                self._fire_portion(self._timers.event, time, TimerKind.EVENT_TIME)
        self._flush(out)

    def emitted_watermark(self) -> int | None:
        watermark = self._context.watermark
        if self._is_behind():
            earliest = self._timers.event.next_time()
            watermark = watermark if earliest is None else earliest - 1
        return None if watermark == MIN_WATERMARK else watermark

    def is_idle(self, input_idle: bool) -> bool:
        return input_idle and not self._is_behind()

    def next_timer(self) -> int | None:
        if self._is_behind():
            return _DUE_NOW
        times = [self._timers.processing.next_time(), *(state.next_sweep() for state in self._expiring)]
        return min((time for time in times if time is not None), default=None)

    def on_timer(self, now_ms: int, out: Collector) -> None:
        self._settle()
        if self._is_behind():
            self._fire_portion(self._timers.event, self._context.watermark, TimerKind.EVENT_TIME)
        self._fire_portion(self._timers.processing, now_ms, TimerKind.PROCESSING_TIME)
        for state in self._expiring:
            state.sweep(PORTION)
        self._flush(out)

    def _is_behind(self) -> bool:
        """Whether event-time timers are due that did not fire yet."""
        earliest = self._timers.event.next_time()
        return earliest is not None and earliest <= self._context.watermark

    def _fire_portion(self, queue: TimerQueue, now: int, kind: TimerKind) -> None:
        left = PORTION
        while left > 0 and (due := queue.pop_due(now, left)):
            self._calling.timers(due, kind)
            left -= len(due)

    # ---- snapshots ----
    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        time = _TIME.pack(_TIME_VERSION, self._parallelism, self._context.watermark)
        watermark = CapturedPart(_TIME_PART, PartKind.UNION, lambda: (time,))
        return OperatorSnapshot((watermark, *self._operator_states.capture(self._parallelism)))

    def logged(self) -> Sequence[LoggedState]:
        return (*self._backend.logs, self._timers.log)


def _restored_watermark(parts: dict[int, RestoredPart], context: OperatorContext) -> int:
    """The subtask's own event time; where keys of several old subtasks meet, the lowest."""
    stored: dict[int, tuple[Any, ...]] = {subtask: _TIME.unpack(part.read()) for subtask, part in parts.items()}
    for subtask, (version, _, _) in stored.items():
        check_version(parts[subtask], version, _TIME_VERSION)
    own = stored.get(context.subtask)
    if own is not None and own[1] == context.parallelism and context.same_share:
        return int(own[2])
    return min(watermark for _, _, watermark in stored.values())
