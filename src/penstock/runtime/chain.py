"""The operators of one subtask, connected by plain calls: what one emits, the next processes before `emit` returns.

Whatever an operator raises leaves here as an `OperatorError` that names the operator, the subtask and a row of the
batch.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.core.ids import CheckpointId, Uid
from penstock.graph.job import MAIN, OperatorSpec
from penstock.operators.base import Operator, OperatorContext, OperatorError, Polled, SourceOperator
from penstock.operators.watermark import WatermarkOperator
from penstock.runtime.elements import MAX_WATERMARK, MIN_WATERMARK
from penstock.state.parts import LoggedState, OperatorSnapshot

_T = TypeVar("_T")
_P = ParamSpec("_P")
_SAMPLE_VALUE = 200
"""Characters of a sample row's value that an error shows."""

logger = logging.getLogger(__name__)


class _Link:
    """What an operator emits to: the next operator."""

    __slots__ = ("_chain", "_next", "_operator", "_place")

    def __init__(self, chain: OperatorChain, place: int, operator: Operator, next: _Link | _End) -> None:
        self._chain = chain
        self._place = place
        self._operator = operator
        self._next = next

    def emit(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self.process(batch, 0)

    def emit_side(self, output: str, batch: pa.RecordBatch) -> None:
        """Past all operators that follow."""
        self._next.emit_side(output, batch)

    def process(self, batch: pa.RecordBatch, input: int) -> None:
        try:
            self._operator.process(batch, input, self._next)
        except OperatorError:
            raise
        except Exception as error:
            raise self._chain.blame(self._place, error, batch) from error


class _End:
    """What the last operator emits to: the chain's outputs."""

    __slots__ = ("_emit",)

    def __init__(self, emit: Callable[[pa.RecordBatch, str], None]) -> None:
        self._emit = emit

    def emit(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._emit(batch, MAIN)

    def emit_side(self, output: str, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._emit(batch, output)


class OperatorChain:
    def __init__(
        self,
        specs: Sequence[OperatorSpec],
        subtask: int,
        emit: Callable[[pa.RecordBatch, str], None],
        emit_watermark: Callable[[int], None],
    ) -> None:
        self._specs = specs
        self._subtask = subtask
        self._emit_watermark = emit_watermark
        self.operators: list[Operator] = []
        self._make_operators()
        self._links = self._connect(_End(emit))
        self._own_times = {i: MIN_WATERMARK for i, op in enumerate(self.operators) if not op.passes_watermarks}
        self._time_ended = False
        self._aligned = [op for op in self.operators if isinstance(op, WatermarkOperator) and op.is_aligned]
        self._split: tuple[str | None, frozenset[str] | None] = None, None
        self.timed = [i for i, op in enumerate(self.operators) if type(op).next_timer is not Operator.next_timer]
        self._watermarked = [
            type(op).on_watermark is not Operator.on_watermark or not op.passes_watermarks for op in self.operators
        ]

    def _make_operators(self) -> None:
        for place, spec in enumerate(self._specs):
            try:
                self.operators.append(spec.factory())
            except Exception as error:
                self.close()
                raise self.blame(place, error, doing="was being made") from error

    def _connect(self, end: _End) -> list[_Link | _End]:
        """`links[i]` leads to operator i; the last one to the outputs."""
        links: list[_Link | _End] = [end]
        for place in range(len(self.operators) - 1, -1, -1):
            links.append(_Link(self, place, self.operators[place], links[-1]))
        return links[::-1]

    # ---- life ----
    def open(self, context_of: Callable[[OperatorSpec], OperatorContext]) -> None:
        for place, spec in enumerate(self._specs):
            self._call(place, "was opened", self.operators[place].open, context_of(spec))
        for place in self._own_times:
            self._own_times[place] = self._own_time(place)

    def close(self) -> None:
        for operator, spec in zip(self.operators, self._specs, strict=False):
            try:
                operator.close()
            except Exception:
                logger.exception("closing operator %r (%s), subtask %d, raised", spec.uid, spec.name, self._subtask)

    # ---- data ----
    def process(self, batch: pa.RecordBatch, input: int) -> None:
        head = self._links[0]
        assert isinstance(head, _Link)
        head.process(batch, input)
        if self._own_times:
            self.pass_own_watermarks()

    def poll(self, source: SourceOperator, rows: int) -> Polled:
        return self._call(0, "was polled", source.poll, rows)

    def emit_polled(self, batch: pa.RecordBatch) -> None:
        self._links[1].emit(batch)
        if self._own_times:
            self.pass_own_watermarks()

    # ---- event time ----
    def advance(self, time: int, start: int = 0) -> None:
        """A watermark goes through the operators from `start` on, as far as one that has its own time, and on to the
        outputs. The last watermark of all stops nowhere, and comes once."""
        if time == MAX_WATERMARK:
            if self._time_ended:
                return None
            self._time_ended = True
        for place in range(start, len(self.operators)):
            if self._watermarked[place]:
                handle = self.operators[place].on_watermark
                self._call(place, "got a watermark", handle, time, self._links[place + 1])
                if place in self._own_times and time != MAX_WATERMARK:
                    return self.pass_own_watermarks(place)
        return self._emit_watermark(time)

    def resume(self, time: int) -> None:
        """After a restore: event time goes on from where it was, behind those that have their own as well."""
        if time > MIN_WATERMARK:
            self.advance(time)
        for place, own in list(self._own_times.items()):
            if own > MIN_WATERMARK:
                self.advance(own, place + 1)

    def pass_own_watermarks(self, start: int = 0) -> None:
        for place, before in list(self._own_times.items()):
            if place >= start and (time := self._own_time(place)) > before:
                self._own_times[place] = time
                self.advance(time, place + 1)

    def _own_time(self, place: int) -> int:
        time = self._call(place, "was asked for its watermark", self.operators[place].emitted_watermark)
        return MIN_WATERMARK if time is None else time

    def is_idle(self, input_idle: bool) -> bool:
        """Whether the chain has nothing to say about event time, when its input has or has not."""
        for place in self._own_times:
            input_idle = self._call(place, "was asked whether it is idle", self.operators[place].is_idle, input_idle)
        return input_idle

    def say_split(self, split: str | None, splits: frozenset[str] | None) -> None:
        """Where the rows of the next poll come from."""
        if (split, splits) != self._split:
            self._split = split, splits
            for place in self._own_times:
                self._call(place, "was told of a split", self.operators[place].on_split, split, splits)

    @property
    def aligned_time(self) -> int | None:
        """How far a source has come that is to stay close to others; None if it has nothing to say of that."""
        times = [time for operator in self._aligned if (time := operator.aligned_time) is not None]
        return min(times, default=None)

    @property
    def is_ahead(self) -> bool:
        """Whether the source is to wait for slower ones."""
        return any(operator.is_ahead for operator in self._aligned)

    def align(self, slowest: int) -> None:
        for operator in self._aligned:
            operator.align(slowest)

    # ---- processing time ----
    def next_timer(self) -> int | None:
        times = [time for place in self.timed if (time := self.operators[place].next_timer()) is not None]
        return min(times) if times else None

    def fire_timers(self, now_ms: int) -> None:
        for place in self.timed:
            operator = self.operators[place]
            due = operator.next_timer()
            if due is not None and due <= now_ms:
                self._call(place, "had a timer due", operator.on_timer, now_ms, self._links[place + 1])
        if self._own_times:
            self.pass_own_watermarks()

    # ---- end of input and checkpoints ----
    def finish(self) -> None:
        """The last watermark, then every operator's last output, in order."""
        self.advance(MAX_WATERMARK)
        for place, operator in enumerate(self.operators):
            self._call(place, "finished", operator.finish, self._links[place + 1])

    def snapshot(self, barrier: Barrier) -> dict[Uid, OperatorSnapshot]:
        doing = f"took its snapshot for checkpoint {barrier.checkpoint}"
        return {
            spec.uid: self._call(place, doing, self.operators[place].snapshot, barrier)
            for place, spec in enumerate(self._specs)
        }

    def logged(self) -> list[tuple[Uid, LoggedState]]:
        """The keyed states of all operators."""
        operators = zip(self._specs, self.operators, strict=True)
        return [(spec.uid, state) for spec, operator in operators for state in operator.logged()]

    def complete(self, checkpoint: CheckpointId) -> None:
        for place, operator in enumerate(self.operators):
            self._call(place, f"was told that checkpoint {checkpoint} is complete", operator.on_complete, checkpoint)

    def abort(self, checkpoint: CheckpointId) -> None:
        for place, operator in enumerate(self.operators):
            self._call(place, f"was told that checkpoint {checkpoint} is aborted", operator.on_abort, checkpoint)

    # ---- errors ----
    def _call(self, place: int, doing: str, call: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
        try:
            return call(*args, **options)
        except OperatorError:
            raise
        except Exception as error:
            raise self.blame(place, error, doing=doing) from error

    def blame(
        self, place: int, error: Exception, batch: pa.RecordBatch | None = None, doing: str = "processed a batch"
    ) -> OperatorError:
        spec = self._specs[place]
        rows = "" if batch is None else f" of {batch.num_rows} rows"
        return OperatorError(
            f"operator {spec.uid!r} ({spec.name}), subtask {self._subtask}, raised {type(error).__name__} when it "
            f"{doing}{rows}: {error}",
            uid=spec.uid,
            name=spec.name,
            subtask=self._subtask,
            sample_row=None if batch is None else _sample(batch),
            traceback="".join(traceback.format_exception(error)),
        )


def _sample(batch: pa.RecordBatch) -> dict[str, object] | None:
    """The first row, with long values cut."""
    try:
        row: Mapping[str, object] = batch.slice(0, 1).to_pylist()[0]
    except (pa.ArrowException, ValueError, IndexError):
        return None  # a value that Python cannot hold (a date beyond year 9999): the error is told without it
    return {name: _short(value) for name, value in row.items()}


def _short(value: object) -> object:
    if isinstance(value, int | float | bool | None):
        return value
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SAMPLE_VALUE else f"{text[:_SAMPLE_VALUE]}…"
