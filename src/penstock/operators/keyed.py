"""What a keyed function sees: rows, its context, timers, and the state that it declared.

class Totals(ps.KeyedFunction):
    total = ps.value(int, default=0)

    def process(self, row, ctx):
        self.total.value += row.amount
        ctx.emit(user=row.user, total=self.total.value)
"""

from __future__ import annotations

import copy
import datetime as dt
import keyword
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from penstock.operators.base import OperatorContext
from penstock.operators.rows import column_values
from penstock.runtime.elements import MAX_WATERMARK, MIN_WATERMARK
from penstock.state.declare import StateDeclaration
from penstock.state.keys import KeyColumns
from penstock.state.kinds import KeyedState
from penstock.state.timers import TimerKind, TimerQueue, Timers

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)


class Row(msgspec.Struct, frozen=True, gc=False):
    """One record: `row.amount` or `row["amount"]`; `dict(row)` for a copy that can be changed."""

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, _places(type(self))[name])
        except KeyError:
            raise KeyError(f"the row has no column {name!r}; it has {list(self.keys())}") from None

    def keys(self) -> list[str]:
        return list(_places(type(self)))

    def __iter__(self) -> Iterator[str]:
        return iter(_places(type(self)))

    def __len__(self) -> int:
        return len(_places(type(self)))


def _places(row_type: type[Row]) -> dict[str, str]:
    """The attribute of every column."""
    places: dict[str, str] = row_type.__penstock_places__  # type: ignore[attr-defined]
    return places


def row_type(schema: pa.Schema) -> type[Row]:
    """A class for the rows of a schema. A column whose name is no Python name is reached as `row["the name"]` only."""
    attributes = {
        name: name if name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("__") else f"_{place}"
        for place, name in enumerate(schema.names)
    }
    made: type[Any] = msgspec.defstruct("Row", list(attributes.values()), bases=(Row,), frozen=True, gc=False)
    made.__penstock_places__ = attributes
    return made


def rows_of(batch: pa.RecordBatch, make: type[Row]) -> list[Row]:
    """The rows of a batch, made from whole columns."""
    return list(map(make, *map(column_values, batch.columns)))


def shown(value: object, limit: int = 500) -> str:
    """A row or timer as an error shows it."""
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that fires."""

    key: Any
    time: int
    """When it was due, in milliseconds since the epoch."""
    kind: TimerKind


class KeyedContext:
    """What a function can ask and do besides its state. `key` is the key whose row or timer is at hand."""

    __slots__ = (
        "_clock",
        "_columns",
        "_raw_key",
        "_shows_raw",
        "_timers",
        "emitted",
        "parallelism",
        "subtask",
        "watermark",
    )

    def __init__(self, context: OperatorContext, columns: KeyColumns, timers: Timers) -> None:
        self.subtask, self.parallelism = context.subtask, context.parallelism
        self._clock, self._columns, self._timers = context.clock, columns, timers
        self._shows_raw = columns.shows_raw
        self._raw_key: Hashable = None
        self.watermark = MIN_WATERMARK
        """Event time so far, in milliseconds since the epoch."""
        self.emitted: list[dict[str, Any]] = []

    @property
    def key(self) -> Any:
        return self._raw_key if self._shows_raw else self._columns.shown(self._raw_key)

    @property
    def now(self) -> int:
        """Processing time: the wall clock, in milliseconds since the epoch."""
        return self._clock.wall_ms()

    def emit(self, /, **columns: Any) -> None:
        """Puts out a row with the columns that `returns` declares."""
        self.emitted.append(columns)

    def timer_at(self, time: int | dt.datetime) -> None:
        """Calls `on_timer` for this key once event time has reached `time`, a datetime or milliseconds since the epoch.
        When all input has ended, event time has reached everything: there is nothing left to wait for, and nothing is
        set (a function that always sets its next timer would otherwise never end)."""
        if self.watermark != MAX_WATERMARK:
            self._timers.event.add(self._raw_key, milliseconds(time))

    def timer_after(self, delay_ms: float) -> int:
        """Calls `on_timer` for this key after so many milliseconds of processing time. Returns the timer's time."""
        time = self.now + max(0, round(delay_ms))
        self._timers.processing.add(self._raw_key, time)
        return time

    def processing_timer_at(self, time: int | dt.datetime) -> None:
        """Calls `on_timer` for this key once the wall clock has reached `time`."""
        self._timers.processing.add(self._raw_key, milliseconds(time))

    def timers(self, kind: TimerKind = TimerKind.EVENT_TIME) -> list[int]:
        """The times of this key's timers, earliest first. Looks at all timers of the subtask."""
        return self._queue(kind).times_of(self._raw_key)

    def cancel_timer(self, time: int | dt.datetime, kind: TimerKind = TimerKind.EVENT_TIME) -> None:
        """Takes back this key's timer of that time; no error if there is none."""
        self._queue(kind).remove(self._raw_key, milliseconds(time))

    def _queue(self, kind: TimerKind) -> TimerQueue:
        return self._timers.event if kind is TimerKind.EVENT_TIME else self._timers.processing


def milliseconds(time: int | dt.datetime) -> int:
    """Since the epoch, rounded up; a datetime without a time zone is taken as UTC."""
    if isinstance(time, dt.datetime):
        aware = time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)
        return -((_EPOCH - aware) // _MILLISECOND)
    return time


class KeyedFunction:
    """Base of functions that keep state per key. States are declared as class attributes (`ps.value`, `ps.list`,
    `ps.map`, `ps.reducing`, `ps.aggregating`); within `process` and `on_timer` they are those of the key at hand. The
    rows of one key come in order; an instance serves one subtask and is never called from two threads."""

    def open(self, ctx: KeyedContext) -> None:
        """Called once before anything else, after state was restored; no key is at hand."""

    def process(self, row: Any, ctx: KeyedContext) -> None:
        """Called for every record."""
        raise NotImplementedError(f"{type(self).__name__} needs a method process(self, row, ctx)")

    def on_timer(self, timer: Timer, ctx: KeyedContext) -> None:
        """Called when a timer fires that `process` or `on_timer` has set for this key."""
        raise NotImplementedError(f"{type(self).__name__} sets timers and needs a method on_timer(self, timer, ctx)")

    def close(self) -> None:
        """Called once at the end, whatever happened."""


class PlainFunction(KeyedFunction):
    """A function `f(row, state, ctx)` with one state."""

    def __init__(self, function: Callable[[Any, Any, KeyedContext], None], state: StateDeclaration[Any]) -> None:
        self._function, self.declaration = function, state
        self.declaration.name = self.declaration.name or "state"

    def process(self, row: Any, ctx: KeyedContext) -> None:
        self._function(row, self.__dict__[self.declaration.name], ctx)


def own_instance(function: KeyedFunction | type[KeyedFunction]) -> KeyedFunction:
    """An instance for one subtask alone: subtasks of one process run in different threads."""
    return function() if isinstance(function, type) else copy.deepcopy(function)


def declarations_of(cls: type[KeyedFunction]) -> list[StateDeclaration[Any]]:
    """The states that a class of functions declares, base classes first."""
    found: dict[str, StateDeclaration[Any]] = {}
    for base in reversed(cls.__mro__):
        for name, attribute in vars(base).items():
            found.pop(name, None)
            if isinstance(attribute, StateDeclaration):
                found[name] = attribute
    return list(found.values())


def bind_states(function: KeyedFunction, now: Callable[[], int]) -> list[KeyedState]:
    """Makes the declared states and puts them on the instance. `now` is processing time."""
    states: list[KeyedState] = []
    declared = [function.declaration] if isinstance(function, PlainFunction) else declarations_of(type(function))
    for declaration in declared:
        state = declaration.make(now)
        function.__dict__[declaration.name] = state
        states.append(state)
    return states
