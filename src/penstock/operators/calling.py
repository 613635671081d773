"""How a keyed function is called: for the rows of a batch, key by key, and for timers, with the states of each key.

Keys come in the order in which they first occur, the rows of one key in theirs. The states of a key are read before its
first row and kept after its last one. `KeyByKey` does that for any states. `InBulk` is for functions with a single
state, one that is kept in columns, as most have: the values of all keys are read at once before the first row and
written at once after the last one, so that there is next to nothing between two calls of the function.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.operators.keyed import KeyedContext, KeyedFunction, Row, Timer, shown
from penstock.state.backend import Backend
from penstock.state.columnmap import ColumnMap
from penstock.state.keys import KeyColumns
from penstock.state.kinds import KeyedState
from penstock.state.timers import TimerKind


class KeyByKey:
    """With any states."""

    def __init__(self, function: KeyedFunction, context: KeyedContext, backend: Backend) -> None:
        self._function, self._context, self._backend = function, context, backend
        self._load = _all_of([state.load for state in backend.states])
        self._store = _all_of([state.store for state in backend.states])

    def rows(self, columns: list[pa.Array], keys: Sequence[Hashable], distinct: set[Hashable], rows: list[Row]) -> None:
        """`keys` are those of the rows, `columns` the same in columns."""
        self._backend.prefetch(distinct)
        context, load, store, process = self._context, self._load, self._store, self._function.process
        row: Row | None = None
        groups: Iterable[tuple[Hashable, Iterable[Row]]]
        groups = (
            zip(keys, zip(rows, strict=True), strict=True)
            if len(distinct) == len(keys)
            else grouped(keys, rows).items()
        )
        try:
            for key, group in groups:
                context._raw_key = key
                load(key)
                for row in group:
                    process(row, context)
                store(key)
        except Exception as error:
            _add_note(error, row)
            raise
        self._backend.write_back()

    def timers(self, due: Sequence[tuple[int, Hashable]], kind: TimerKind) -> None:
        self._backend.prefetch({key for _, key in due})
        context, load, store, on_timer = self._context, self._load, self._store, self._function.on_timer
        timer: Timer | None = None
        try:
            for time, key in due:
                context._raw_key = key
                load(key)
                timer = Timer(context.key, time, kind)
                on_timer(timer, context)
                store(key)
        except Exception as error:
            _add_note(error, timer)
            raise
        self._backend.write_back()


class InBulk(KeyByKey):
    """With a single state, which is kept in columns."""

    def __init__(
        self,
        function: KeyedFunction,
        context: KeyedContext,
        backend: Backend,
        state: KeyedState,
        entries: ColumnMap,
        keys: KeyColumns,
    ) -> None:
        super().__init__(function, context, backend)
        self._state, self._entries, self._keys = state, entries, keys

    def rows(self, columns: list[pa.Array], keys: Sequence[Hashable], distinct: set[Hashable], rows: list[Row]) -> None:
        if len(distinct) == len(keys):
            reading = self._entries.read(columns, self._state.initial)
            after = self._one_each(keys, rows, reading.values)
        else:
            groups = grouped(keys, rows)
            keys = list(groups)
            reading = self._entries.read(self._keys.to_arrow(keys), self._state.initial)
            after = self._some_each(groups, reading.values)
        changes = self._state.changes(reading.values, after)
        if changes is not None:
            self._entries.write(reading, keys, changes)

    def _one_each(self, keys: Sequence[Hashable], rows: Sequence[Row], values: Sequence[Any]) -> list[Any]:
        """Of every key one row. Returns what the function has made of the values."""
        context, state, process = self._context, self._state, self._function.process
        row: Row | None = None
        after: list[Any] = []
        keep = after.append
        try:
            for key, row, value in zip(keys, rows, values, strict=True):
                context._raw_key = key
                state.value = value
                process(row, context)
                keep(state.value)
        except Exception as error:
            _add_note(error, row)
            raise
        return after

    def _some_each(self, groups: Mapping[Hashable, Sequence[Row]], values: Sequence[Any]) -> list[Any]:
        context, state, process = self._context, self._state, self._function.process
        row: Row | None = None
        after: list[Any] = []
        try:
            for (key, group), value in zip(groups.items(), values, strict=True):
                context._raw_key = key
                state.value = value
                for row in group:
                    process(row, context)
                after.append(state.value)
        except Exception as error:
            _add_note(error, row)
            raise
        return after


def calling(function: KeyedFunction, context: KeyedContext, backend: Backend, keys: KeyColumns) -> KeyByKey:
    """The way that suits the function's states."""
    if len(backend.states) == 1:
        state = backend.states[0]
        if isinstance(state.map, ColumnMap):
            return InBulk(function, context, backend, state, state.map, keys)
    return KeyByKey(function, context, backend)


def grouped(keys: Sequence[Hashable], rows: Sequence[Row]) -> dict[Hashable, list[Row]]:
    """The rows of every key, in order."""
    groups: dict[Hashable, list[Row]] = {}
    for key, row in zip(keys, rows, strict=True):
        group = groups.get(key)
        if group is None:
            groups[key] = [row]
        else:
            group.append(row)
    return groups


def _add_note(error: Exception, called_with: Row | Timer | None) -> None:
    error.add_note(f"The function was called with {shown(called_with)}")


def _all_of(calls: Sequence[Callable[[Hashable], None]]) -> Callable[[Hashable], None]:
    """One call for all of them; that of most functions, which have one state, costs nothing extra."""
    if len(calls) == 1:
        return calls[0]

    def call_all(key: Hashable) -> None:
        for call in calls:
            call(key)

    return call_all
