"""process on a stream without a key: a user's function of one row with state of its own instance.

class Dedup(ps.StreamFunction):
    seen = ps.operator_list(int)

    def process(self, row, ctx):
        ...
        ctx.emit(id=row.id)
"""

from __future__ import annotations

import copy
from typing import Any

import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.operators.keyed import Row, row_type, rows_of, shown
from penstock.operators.rows import batch_of
from penstock.state.operator_state import OperatorStates
from penstock.state.parts import OperatorSnapshot


class StreamContext:
    """What a function can ask and do besides its state."""

    __slots__ = ("_clock", "emitted", "parallelism", "subtask")

    def __init__(self, context: OperatorContext) -> None:
        self.subtask, self.parallelism, self._clock = context.subtask, context.parallelism, context.clock
        self.emitted: list[dict[str, Any]] = []

    @property
    def now(self) -> int:
        """Processing time: the wall clock, in milliseconds since the epoch."""
        return self._clock.wall_ms()

    def emit(self, /, **columns: Any) -> None:
        """Puts out a row with the columns that `returns` declares."""
        self.emitted.append(columns)


class StreamFunction:
    """Base of functions that keep state per instance. States are declared as class attributes (`ps.operator_list`,
    `ps.operator_union`, `ps.operator_broadcast`, `ps.raw`); an instance serves one subtask and is never called from
    two threads."""

    def open(self, ctx: StreamContext) -> None:
        """Called once before anything else, after state was restored."""

    def process(self, row: Any, ctx: StreamContext) -> None:
        """Called for every record."""
        raise NotImplementedError(f"{type(self).__name__} needs a method process(self, row, ctx)")

    def finish(self, ctx: StreamContext) -> None:
        """Called once when all input has ended: the last chance to emit."""

    def close(self) -> None:
        """Called once at the end, whatever happened."""


class StreamProcessOperator(Operator):
    def __init__(
        self, function: StreamFunction | type[StreamFunction], returns: pa.Schema, input_schema: pa.Schema
    ) -> None:
        self._function = function() if isinstance(function, type) else copy.deepcopy(function)
        self._returns = returns
        self._row_type = row_type(input_schema)
        self._opened = False

    def open(self, context: OperatorContext) -> None:
        self._parallelism = context.parallelism
        self._context = StreamContext(context)
        self._states = OperatorStates(self._function)
        self._states.restore(context.uid, context.restored, context.subtask, context.parallelism)
        self._function.open(self._context)
        self._opened = True

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        process, context = self._function.process, self._context
        row: Row | None = None
        try:
            for row in rows_of(batch, self._row_type):
                process(row, context)
        except Exception as error:
            error.add_note(f"The function was called with {shown(row)}")
            raise
        self._flush(out)

    def finish(self, out: Collector) -> None:
        self._function.finish(self._context)
        self._flush(out)

    def close(self) -> None:
        if self._opened:
            self._function.close()

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        return OperatorSnapshot(self._states.capture(self._parallelism))

    def _flush(self, out: Collector) -> None:
        emitted = self._context.emitted
        if emitted:
            self._context.emitted = []
            out.emit(batch_of(emitted, self._returns))
