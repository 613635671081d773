"""PySpark's `StatefulProcessor` as a keyed operator, unchanged.

A processor is written against a handle that gives it value, list and map state and timers. Here that handle stands on
Penstock's keyed state and timers. `init` is called twice: on a copy of the processor with a handle that only takes down
what is declared (so that checkpoints name the processor's states, and a program that cannot read them is refused before
it starts), and on each worker's own copy with the real one.

Rows come as `pyspark.sql.Row`, as in `transformWithState`: one call for all rows of a key in a batch. Where batches end
is no part of Spark's contract, and neither is it here. Times to live are Spark's: from the last write, never seen
after.
`handleInitialState` is called when the operator starts without any state of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues
from pyspark.sql.types import Row, StructType

from penstock.kernels.hashing import hash_columns, key_groups_of_hashes
from penstock.operators import rows as plain_rows
from penstock.operators.base import OperatorContext
from penstock.operators.calling import KeyByKey, grouped
from penstock.operators.keyed import KeyedContext, KeyedFunction, Timer, shown
from penstock.operators.process import ProcessOperator
from penstock.runtime.elements import MIN_WATERMARK
from penstock.spark.types import record_type, schema_of
from penstock.state import declare
from penstock.state.declare import StateDeclaration
from penstock.state.timers import TimerKind


class TimeMode(StrEnum):
    """By which time timers fire; named as in Spark."""

    NONE = "none"
    PROCESSING_TIME = "processingtime"
    EVENT_TIME = "eventtime"


# ---- states with Spark's methods ----
class _State:
    def __init__(self, state: Any, record: Callable[[Iterable[Any]], Any]) -> None:
        self._state, self._record = state, record

    def clear(self) -> None:
        self._state.clear()


class _Value(_State):
    def exists(self) -> bool:
        return self._state.value is not None

    def get(self) -> Any:
        return self._state.value

    def update(self, newValue: Iterable[Any]) -> None:
        self._state.value = self._record(newValue)


class _List(_State):
    def exists(self) -> bool:
        return len(self._state) > 0

    def get(self) -> Iterator[Any]:
        return iter(list(self._state))

    def put(self, newState: Iterable[Iterable[Any]]) -> None:
        self._state.set(map(self._record, newState))

    def appendValue(self, newState: Iterable[Any]) -> None:
        self._state.append(self._record(newState))

    def appendList(self, newState: Iterable[Iterable[Any]]) -> None:
        self._state.extend(map(self._record, newState))


class _Map(_State):
    """Keys are tuples; equal ones are one, whatever class of tuple they are."""

    def exists(self) -> bool:
        return len(self._state) > 0

    def getValue(self, key: Iterable[Any]) -> Any:
        return self._state.get(tuple(key))

    def containsKey(self, key: Iterable[Any]) -> bool:
        return tuple(key) in self._state

    def updateValue(self, key: Iterable[Any], value: Iterable[Any]) -> None:
        self._state[tuple(key)] = self._record(value)

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        return iter(list(self._state.items()))

    def keys(self) -> Iterator[Any]:
        return iter(list(self._state.keys()))

    def values(self) -> Iterator[Any]:
        return iter(list(self._state.values()))

    def removeKey(self, key: Iterable[Any]) -> None:
        self._state.pop(tuple(key))


# ---- handles ----
class _Recorder:
    """Takes down what a processor declares."""

    def __init__(self) -> None:
        self.declared: dict[str, StateDeclaration[Any]] = {}

    def getValueState(self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None) -> Any:
        self.declared[stateName] = declare.value(record_type(schema_of(schema)), ttl=_ttl(ttlDurationMs))

    def getListState(self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None) -> Any:
        self.declared[stateName] = declare.list(record_type(schema_of(schema)), ttl=_ttl(ttlDurationMs))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> Any:
        key, value = record_type(schema_of(userKeySchema)), record_type(schema_of(valueSchema))
        self.declared[stateName] = declare.map(key, value, ttl=_ttl(ttlDurationMs))

    def deleteIfExists(self, stateName: str) -> None:
        """State is dropped by starting with `allow_dropped_state=True`."""
        self.declared.pop(stateName, None)


def _ttl(duration_ms: int | None) -> float | None:
    return None if duration_ms is None else duration_ms / 1000


class _Handle:
    """What a processor works with."""

    def __init__(self, function: ProcessorFunction, context: KeyedContext, mode: TimeMode) -> None:
        self._function, self._context, self._mode = function, context, mode

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> _Value:
        return _Value(*self._bound(stateName))

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> _List:
        return _List(*self._bound(stateName))

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> _Map:
        return _Map(*self._bound(stateName))

    def _bound(self, name: str) -> tuple[Any, Callable[[Iterable[Any]], Any]]:
        declaration = vars(type(self._function))[name]
        return self._function.__dict__[name], declaration.type._make

    def registerTimer(self, expiryTimestampMs: int) -> None:
        if self._mode is TimeMode.EVENT_TIME:
            self._context.timer_at(expiryTimestampMs)
        elif self._mode is TimeMode.PROCESSING_TIME:
            self._context.processing_timer_at(expiryTimestampMs)
        else:
            raise ValueError('a processor that sets timers needs time_mode="eventtime" or "processingtime"')

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._context.cancel_timer(expiryTimestampMs, self._mode_kind())

    def listTimers(self) -> Iterator[int]:
        return iter(self._context.timers(self._mode_kind()))

    def deleteIfExists(self, stateName: str) -> None:
        """See `_Recorder`."""

    def _mode_kind(self) -> TimerKind:
        return TimerKind.PROCESSING_TIME if self._mode is TimeMode.PROCESSING_TIME else TimerKind.EVENT_TIME


# ---- the function and its operator ----
class ProcessorFunction(KeyedFunction):
    """A processor as a keyed function. Subclassed for each processor, with its states as attributes."""

    def __init__(
        self, processor: StatefulProcessor, mode: TimeMode, columns: Sequence[str], out: Sequence[str]
    ) -> None:
        self._processor, self._mode, self._out = processor, mode, tuple(out)
        self._row = Row(*columns)

    def open(self, ctx: KeyedContext) -> None:
        self._processor.init(_Handle(self, ctx, self._mode))  # type: ignore[arg-type]

    def close(self) -> None:
        self._processor.close()

    def process_rows(self, rows: Sequence[Any], ctx: KeyedContext) -> None:
        """All rows of a key at once."""
        spark_rows = (self._row(*(row[name] for name in row)) for row in rows)
        self._emit(self._processor.handleInputRows(_key(ctx), spark_rows, self._times(ctx)), ctx)

    def on_timer(self, timer: Timer, ctx: KeyedContext) -> None:
        info = ExpiredTimerInfo(timer.time)
        self._emit(self._processor.handleExpiredTimer(_key(ctx), self._times(ctx), info), ctx)

    def take_up(self, row: Mapping[str, Any], ctx: KeyedContext) -> None:
        """A row of the initial state."""
        self._processor.handleInitialState(_key(ctx), Row(**row), self._times(ctx))

    def _times(self, ctx: KeyedContext) -> TimerValues:
        watermark = -1 if self._mode is not TimeMode.EVENT_TIME or ctx.watermark == MIN_WATERMARK else ctx.watermark
        return TimerValues(-1 if self._mode is TimeMode.NONE else ctx.now, watermark)

    def _emit(self, rows: Iterable[Any] | None, ctx: KeyedContext) -> None:
        for row in rows or ():
            named = hasattr(row, "__fields__")
            ctx.emit(**(row.asDict() if named else dict(zip(self._out, row, strict=True))))


def _key(ctx: KeyedContext) -> tuple[Any, ...]:
    return ctx.key if isinstance(ctx.key, tuple) else (ctx.key,)


def states_of(processor: StatefulProcessor) -> dict[str, StateDeclaration[Any]]:
    """What the processor declares, by name."""
    recorder = _Recorder()
    copy.deepcopy(processor).init(recorder)  # type: ignore[arg-type]
    for name, declaration in recorder.declared.items():
        declaration.name = name
    return recorder.declared


class StatefulProcessorOperator(ProcessOperator):
    def __init__(
        self,
        processor: StatefulProcessor,
        mode: TimeMode,
        key: Sequence[str],
        returns: pa.Schema,
        input_schema: pa.Schema,
        initial: pa.Table | None = None,
    ) -> None:
        super().__init__(KeyedFunction, key, returns, input_schema)
        cls = type("ProcessorFunction", (ProcessorFunction,), dict(states_of(processor)))
        self._function: ProcessorFunction = cls(copy.deepcopy(processor), mode, input_schema.names, returns.names)
        self._initial = initial

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        if self._initial is not None and not context.restored:
            self._take_up_initial(self._initial, context)

    def _take_up_initial(self, initial: pa.Table, context: OperatorContext) -> None:
        for batch in initial.to_batches():
            columns = [batch.column(name) for name in self._columns.names]
            groups = key_groups_of_hashes(hash_columns(columns), context.total_key_groups)
            rows = zip(self._columns.of(batch), groups, plain_rows.rows_of(batch), strict=True)
            self._processor_calls().initial(
                [(key, row) for key, group, row in rows if int(group) in context.key_groups]
            )

    def _calls(self) -> KeyByKey:
        return self._processor_calls()

    def _processor_calls(self) -> _ProcessorCalls:
        return _ProcessorCalls(self._function, self._context, self._backend)


class _ProcessorCalls(KeyByKey):
    """All rows of a key at once."""

    _function: ProcessorFunction

    def rows(self, columns: list[pa.Array], keys: Sequence[Hashable], distinct: set[Hashable], rows: list[Any]) -> None:
        self._backend.prefetch(distinct)
        for key, group in grouped(keys, rows).items():
            self._context._raw_key = key
            self._load(key)
            try:
                self._function.process_rows(group, self._context)
            except Exception as error:
                error.add_note(f"The processor was called with {len(group)} rows, the first being {shown(group[0])}")
                raise
            self._store(key)
        self._backend.write_back()

    def initial(self, rows: Sequence[tuple[Hashable, Mapping[str, Any]]]) -> None:
        """Rows of the initial state, with their keys."""
        self._backend.prefetch({key for key, _ in rows})
        for key, row in rows:
            self._context._raw_key = key
            self._load(key)
            self._function.take_up(row, self._context)
            self._store(key)
        self._backend.write_back()
