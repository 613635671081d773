"""Windows that know no time: so many records of a key, or all of them, put out by a trigger.

A batch is cut, key by key, where a window becomes full: into a first piece that goes on with what the key has, pieces
that are whole windows, and a last one that begins the next. All pieces are added up at once, beside the state; then
the first ones are merged into it, what is full is put out, and the last ones begin anew. Where nothing begins anew (a
global window without `purge`), the pieces are merged one after another, and the state is put out after each full one.

A window's rows do not depend on how the stream is cut into batches, only on the order of a key's records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.operators.aggregation.accumulator import Array
from penstock.operators.aggregation.declare import Aggregate, count
from penstock.operators.aggregation.table import AggregateTable, described, result_fields
from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.operators.windows.declare import CountWindows, EveryCount, EveryTime, GlobalWindow
from penstock.operators.windows.keying import Keying
from penstock.operators.windows.panes import shown
from penstock.state.columns import ColumnState
from penstock.state.index import Slots
from penstock.state.parts import LoggedState

PART: Final = "windows"
_KIND: Final = "count_windows"
_COUNT: Final = "#count"


def counted_schema(schema: pa.Schema, key: Sequence[str], aggregates: Mapping[str, Aggregate]) -> pa.Schema:
    """Of the output: the key's columns, then one for each aggregate."""
    fields = [schema.field(name) for name in key]
    return pa.schema(fields + result_fields(aggregates, schema, "aggregate", key))


@dataclass(frozen=True)
class _Pieces:
    """A batch, cut where windows become full. A piece is known by its number."""

    of_row: Array
    slots: Array
    turns: Array
    """How many windows of the same key became full in the batch before the piece."""
    full: Array
    """Whether the piece makes its window full."""
    last_rows: Array
    """The last row of each piece."""


class CountWindowOperator(Operator):
    def __init__(
        self,
        windows: CountWindows | GlobalWindow,
        key: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        input_schema: pa.Schema,
    ) -> None:
        trigger = EveryCount(windows.count) if isinstance(windows, CountWindows) else windows.trigger
        self._every = trigger.count if isinstance(trigger, EveryCount) else None
        self._interval = trigger.ms if isinstance(trigger, EveryTime) else 0
        self._purge = isinstance(windows, CountWindows) or windows.purge
        self._keying = Keying(key, input_schema)
        self._schema = counted_schema(input_schema, key, aggregates)
        self._aggregates, self._input = {_COUNT: count(), **aggregates}, input_schema
        self._table = self._new_table()
        description = {"type": "windows", "windows": str(windows), "columns": described(aggregates, input_schema)}
        self._state = ColumnState(PART, _KIND, self._keying.columns, self._table, description)
        self._changed: list[Slots] = []
        """Since the last output, where processing time triggers it."""
        self._at: int | None = None

    def _new_table(self) -> AggregateTable:
        return AggregateTable(self._keying.columns, self._aggregates, self._input)

    def open(self, context: OperatorContext) -> None:
        self._clock = context.clock
        self._state.own(context.key_groups, context.total_key_groups)
        self._state.restore(context.uid, context.restored, shown)
        if self._every is None and len(self._table):
            self._note(np.arange(len(self._table)))  # which of them were put out is not known: at worst again

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        found = self._table.find(self._keying.of(batch))
        if self._every is None:
            self._table.add(batch, found.slots)
            self._note(found.slots[found.first_rows])
        else:
            self._count(batch, found.slots, self._every, out)

    # ---- by count ----
    def _counts(self, slots: Slots) -> Array:
        counts: Array = self._table.accumulators[_COUNT].results(slots).to_numpy()
        return counts

    def _count(self, batch: pa.RecordBatch, slots: Slots, every: int, out: Collector) -> None:
        self._table.expect(len(self._table))  # keys that are new have no count yet
        pieces = self._cut(slots, self._counts(slots), every)
        beside = self._new_table()
        beside.expect(len(pieces.slots))  # of no keys: nothing else makes room
        for accumulator in beside.accumulators.values():
            accumulator.add(batch, pieces.of_row, len(pieces.slots))
        results: list[tuple[Array, list[pa.Array]]] = []
        turns = range(int(pieces.turns.max()) + 1) if not self._purge else (0,)
        for turn in turns:
            results += self._merged(beside, pieces, pieces.turns == turn)
        if self._purge:
            results += self._begun_anew(beside, pieces)
        self._put_out(results, out)

    def _cut(self, slots: Slots, before: Array, every: int) -> _Pieces:
        order = np.argsort(slots, kind="stable")
        ordered = slots[order]
        begins = np.append([True], ordered[1:] != ordered[:-1])
        firsts = np.flatnonzero(begins)
        rank = np.arange(len(order)) - np.repeat(firsts, np.diff(np.append(firsts, [len(order)])))
        had = before[order]
        turn = (had + rank) // every - had // every
        cut = begins | np.append([True], turn[1:] != turn[:-1])
        starts = np.flatnonzero(cut)
        ends = np.append(starts[1:], [len(order)]) - 1
        of_row = np.empty(len(order), np.int64)
        of_row[order] = np.cumsum(cut) - 1
        full = (had[ends] + rank[ends] + 1) % every == 0
        return _Pieces(of_row, ordered[starts], turn[starts], full, order[ends])

    def _merged(self, beside: AggregateTable, pieces: _Pieces, chosen: Array) -> list[tuple[Array, list[pa.Array]]]:
        """Merges pieces, of each key one, into the state, and gives the rows of windows that are full."""
        numbers = np.flatnonzero(chosen)
        self._table.merge(beside, numbers, pieces.slots[numbers])
        full = numbers[pieces.full[numbers]]
        if not len(full):
            return []
        slots = pieces.slots[full]
        rows = self._keying.shown(self._table.keys_of(slots)) + self._table.results(slots)[1:]
        if self._purge:
            self._table.reset(slots)
        return [(pieces.last_rows[full], rows)]

    def _begun_anew(self, beside: AggregateTable, pieces: _Pieces) -> list[tuple[Array, list[pa.Array]]]:
        """Gives the windows that begin and end within the batch, and begins those that do not end in it."""
        later = pieces.turns > 0
        begun = np.flatnonzero(later & ~pieces.full)
        if len(begun):
            self._table.merge(beside, begun, pieces.slots[begun])
        whole = np.flatnonzero(later & pieces.full)
        if not len(whole):
            return []
        keys = self._keying.shown(self._table.keys_of(pieces.slots[whole]))
        return [(pieces.last_rows[whole], keys + beside.results(whole)[1:])]

    def _put_out(self, results: list[tuple[Array, list[pa.Array]]], out: Collector) -> None:
        """In the order in which the windows became full."""
        if results:
            order = pa.array(np.argsort(np.concatenate([rows for rows, _ in results]), kind="stable"))
            columns = [pa.concat_arrays(column).take(order) for column in zip(*(c for _, c in results), strict=True)]
            out.emit(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    # ---- by processing time ----
    def _note(self, slots: Slots) -> None:
        self._changed.append(slots)
        if self._at is None:
            self._at = self._clock.wall_ms() + self._interval

    def next_timer(self) -> int | None:
        return self._at

    def on_timer(self, now_ms: int, out: Collector) -> None:
        self._put_out_changed(out)

    def finish(self, out: Collector) -> None:
        self._put_out_changed(out)

    def _put_out_changed(self, out: Collector) -> None:
        if not self._changed:
            return
        slots = np.unique(np.concatenate(self._changed))
        slots = slots[self._counts(slots) > 0]
        self._changed, self._at = [], None
        columns = self._keying.shown(self._table.keys_of(slots)) + self._table.results(slots)[1:]
        if self._purge:
            self._table.touch(slots)
            self._table.reset(slots)
        out.emit(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def logged(self) -> Sequence[LoggedState]:
        return (self._state,)
