"""deduplicate: the first record of each key, or the first in a while.

Without a time, a key is remembered for ever. *Within* a time, a record is a repetition if one with the same key was let
through less than that time before or after it, by event time or, where a stream has none, by the clock.

What is remembered of a key is the time of the record that was let through, in the pane of that time. Panes are as long
as that time: so there is at most one per key in a pane, a record can only repeat one of its own pane or of the two
beside it, and a pane is dropped as a whole when no record can repeat anything in it any more. A record that comes after
that is neither let through nor taken for a repetition: it goes to the side output `late`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.kernels.hashing import hash_columns, key_groups_of_hashes
from penstock.operators.aggregation.declare import max
from penstock.operators.aggregation.table import AggregateTable
from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.operators.windows import panes as panes_module
from penstock.operators.windows import progress as progress_module
from penstock.operators.windows.panes import Panes, shown
from penstock.operators.windows.progress import Progress
from penstock.operators.windows.timed import LATE
from penstock.operators.windows.times import EventTime, TimeColumn
from penstock.runtime.elements import MIN_WATERMARK
from penstock.state.columns import ColumnState
from penstock.state.keys import KeyColumns
from penstock.state.parts import LoggedState, OperatorSnapshot

_TIME: Final = "#time"
_KIND: Final = "keys"
_Times = npt.NDArray[np.int64]


class DeduplicateOperator(Operator):
    """For ever."""

    def __init__(self, key: Sequence[str], schema: pa.Schema) -> None:
        self._columns = KeyColumns(schema, key)
        self._table = AggregateTable(self._columns, {}, schema)
        description = {"windows": "deduplicate for ever"}
        self._state = ColumnState(panes_module.PART, _KIND, self._columns, self._table, description)

    def open(self, context: OperatorContext) -> None:
        self._state.own(context.key_groups, context.total_key_groups)
        self._state.restore(context.uid, context.restored, shown)

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        known = len(self._table)
        found = self._table.find([batch.column(name) for name in self._columns.names])
        is_new = found.slots[found.first_rows] >= known
        out.emit(batch.take(pa.array(found.first_rows[is_new])))

    def logged(self) -> Sequence[LoggedState]:
        return (self._state,)


class DeduplicateWithinOperator(Operator):
    """Within some milliseconds of event time, or of processing time if there is no column of it."""

    def __init__(self, key: Sequence[str], schema: pa.Schema, within: int, time: EventTime | None) -> None:
        self._columns, self._within = KeyColumns(schema, key), within
        self._time = None if time is None else TimeColumn(time, schema)
        self._kept = pa.schema([*(schema.field(name) for name in key), pa.field(_TIME, pa.int64())])
        clock = "" if time is not None else " of processing time"
        self._panes = Panes(self._columns, {"time": max(_TIME)}, self._kept, f"deduplicate within {within}ms{clock}")

    def open(self, context: OperatorContext) -> None:
        self._clock, self._total = context.clock, context.total_key_groups
        self._progress = Progress(context.key_groups, context.total_key_groups)
        self._panes.own(context.key_groups, context.total_key_groups)
        times = [part for part in context.restored if part.name == progress_module.PART]
        if times:
            self._progress.restore(times)
        self._panes.restore(
            context.uid,
            [part for part in context.restored if part.name == panes_module.PART],
            lambda starts, groups: self._over(starts) > self._progress.watermarks_of(groups),
        )

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        times, late = self._times_of(batch)
        if late is not None and late.any():
            out.emit_side(LATE, batch.filter(pa.array(late)))
            batch, times = batch.filter(pa.array(~late)), times[~late]
        if batch.num_rows:
            out.emit(batch.take(pa.array(self._first_rows(batch, times))))

    def _times_of(self, batch: pa.RecordBatch) -> tuple[_Times, npt.NDArray[np.bool_] | None]:
        """In milliseconds; and which rows are too late to tell, None for none."""
        if self._time is None:
            self._advance(self._clock.wall_ms() - 1)
            return np.full(batch.num_rows, self._clock.wall_ms()), None
        ticks, valid = self._time.of(batch)
        times: _Times = ticks // self._time.ticks
        late = None if valid is None else ~valid
        if self._progress.watermark > MIN_WATERMARK or self._progress.differs:
            groups = key_groups_of_hashes(hash_columns(self._keys_of(batch)), self._total)
            over = times + self._within - 1 <= self._progress.watermarks_of(groups)
            late = over if late is None else late | over
        return times, late

    def _keys_of(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [batch.column(name) for name in self._columns.names]

    def _first_rows(self, batch: pa.RecordBatch, times: _Times) -> npt.NDArray[np.int64]:
        """The rows to let through, in order. Looks at one row of each key at a time, the earliest that is not decided;
        all others that are as near to what it repeats, or to itself, are repetitions too."""
        keys = self._keys_of(batch)
        found = AggregateTable(self._columns, {}, self._kept).find(keys)
        ids = found.slots
        first_of = [column.take(pa.array(found.first_rows)) for column in keys]
        rows, chosen = np.arange(batch.num_rows), list[npt.NDArray[np.int64]]()
        while len(rows):
            heads = rows[np.unique(ids[rows], return_index=True)[1]]
            near = self._near([column.take(pa.array(ids[heads])) for column in first_of], times[heads])
            is_new = near == MIN_WATERMARK
            self._remember([column.take(pa.array(heads[is_new])) for column in keys], times[heads[is_new]])
            chosen.append(heads[is_new])
            time_of = np.zeros(len(found.first_rows), np.int64)
            time_of[ids[heads]] = np.where(is_new, times[heads], near)
            rows = rows[np.abs(times[rows] - time_of[ids[rows]]) >= self._within]
        return np.sort(np.concatenate(chosen))

    def _near(self, keys: list[pa.Array], times: _Times) -> _Times:
        """Of each key the time of a record that was let through and is so near that this one repeats it; else
        the lowest number."""
        near = np.full(len(times), MIN_WATERMARK, np.int64)
        panes = times // self._within * self._within
        for start in np.unique(panes[:, None] + [-self._within, 0, self._within]).tolist():
            if (table := self._panes.get(start)) is not None:
                rows = np.flatnonzero(np.abs(panes - start) <= self._within)
                slots = table.look_up([column.take(pa.array(rows)) for column in keys])
                rows, slots = rows[slots >= 0], slots[slots >= 0]
                known = table.results(slots)[0].to_numpy()
                repeats = np.abs(times[rows] - known) < self._within
                near[rows[repeats]] = known[repeats]
        return near

    def _remember(self, keys: list[pa.Array], times: _Times) -> None:
        panes = times // self._within * self._within
        batch = pa.RecordBatch.from_arrays([*keys, pa.array(times)], schema=self._kept)
        for start in np.unique(panes).tolist():
            own = batch.filter(pa.array(panes == start))
            table = self._panes.pane(start)
            table.add(own, table.find(self._keys_of(own)).slots)

    # ---- time ----
    def on_watermark(self, time: int, out: Collector) -> None:
        if self._time is not None:
            self._advance(time)

    def _advance(self, time: int) -> None:
        self._progress.advance(time)
        self._panes.drop_until(self._progress.watermark, self._over)

    def _over(self, start: Any) -> Any:
        """When all records that could repeat one in the pane are late: its last moment, plus twice the time, less one
        for each bound that is not included."""
        return start + 3 * self._within - 3

    # ---- snapshots ----
    def logged(self) -> Sequence[LoggedState]:
        return (self._panes,)

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        return OperatorSnapshot((self._progress.capture(),))
