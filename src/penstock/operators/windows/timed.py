"""Tumbling and sliding windows of event time.

Theory of operation. The rows of a batch are split by pane, each pane's table finds their slots and adds them up. When
the watermark passes the end of a window, its panes are merged (a tumbling window is its only pane) and one row per key
is put out, in portions: a barrier can come in between. The operator answers for its own watermark, which stays before
the end of a window until all of it is out.

Records of a window that is over go to the side output `late`, and so do those without a time. With an allowed
lateness a window is not over at its end: a late record is added, and its key's row is put out again, at once. An
early trigger puts out rows of windows that have not ended yet, of the keys that had new records.

What is stored: the panes' tables; how far event time has come (`progress`); and, if the snapshot came in the middle
of a firing, the keys whose rows are out (`fired`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.kernels.hashing import hash_columns, key_groups_of_hashes
from penstock.operators.aggregation.declare import Aggregate
from penstock.operators.aggregation.table import AggregateTable, result_fields
from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.operators.windows import panes as panes_module
from penstock.operators.windows import progress as progress_module
from penstock.operators.windows.assigner import Assigner
from penstock.operators.windows.declare import EveryCount, EveryTime, TimeWindows, Trigger
from penstock.operators.windows.early import EarlyByCount, EarlyByTime
from penstock.operators.windows.fired import FiredKeys
from penstock.operators.windows.firing import Firing
from penstock.operators.windows.keying import Keying
from penstock.operators.windows.panes import Panes
from penstock.operators.windows.progress import Progress
from penstock.operators.windows.splitting import split_by_pane
from penstock.operators.windows.times import EventTime, TimeColumn
from penstock.runtime.elements import MAX_WATERMARK, MIN_WATERMARK
from penstock.state.index import Slots
from penstock.state.parts import LoggedState, OperatorSnapshot

PORTION: Final = 1 << 16
"""How many rows of windows are put out in one step."""
ROWS_OF_A_PANE: Final = 512
"""What a pane costs when it is put out, besides its rows, is as much as that of so many rows."""
LATE: Final = "late"
WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"

_DUE_NOW: Final = 0

Rows = tuple[int, AggregateTable, Slots | slice]
"""Of a window, by its end: some slots of the table that has its rows."""


def windowed_schema(
    schema: pa.Schema, key: Sequence[str], aggregates: Mapping[str, Aggregate], bound: pa.DataType
) -> pa.Schema:
    """Of the output: the key's columns, the window's bounds, then one for each aggregate."""
    bounds = [pa.field(WINDOW_START, bound), pa.field(WINDOW_END, bound)]
    fields = [*(schema.field(name) for name in key), *bounds]
    return pa.schema(fields + result_fields(aggregates, schema, "aggregate", [field.name for field in fields]))


class TimeWindowOperator(Operator):
    passes_watermarks = False

    def __init__(
        self,
        windows: TimeWindows,
        key: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        input_schema: pa.Schema,
        time: EventTime,
        lateness: int = 0,
        early: Trigger | None = None,
    ) -> None:
        self._keying, self._aggregates = Keying(key, input_schema), aggregates
        self._time = TimeColumn(time, input_schema)
        self._schema = windowed_schema(input_schema, key, aggregates, self._time.bound_type)
        self._read = sorted(
            {*key, time.column, *(name for aggregate in aggregates.values() for name in aggregate.reads)}
        )
        self._assigner = Assigner(windows, lateness)
        self._panes = Panes(self._keying.columns, aggregates, input_schema, str(windows))
        self._fired_keys = FiredKeys(self._keying.columns)
        self._firing: Firing | None = None
        self._next_end: int | None = None
        """The end of the next window to fire, once event time is there; kept up to date with panes and `fired`."""
        self._by_count = EarlyByCount(early.count) if isinstance(early, EveryCount) else None
        self._by_time = EarlyByTime(early.ms) if isinstance(early, EveryTime) else None

    def open(self, context: OperatorContext) -> None:
        self._clock, self._own, self._total = context.clock, context.key_groups, context.total_key_groups
        self._progress = Progress(context.key_groups, context.total_key_groups)
        self._panes.own(context.key_groups, context.total_key_groups)
        parts = {name: [part for part in context.restored if part.name == name] for name in _PARTS}
        if parts[progress_module.PART]:
            self._progress.restore(parts[progress_module.PART])
        self._panes.restore(context.uid, parts[panes_module.PART], self._is_needed)
        self._fired_keys.restore(parts[FiredKeys.PART], context.key_groups)
        self._find_next_end()

    def _is_needed(self, starts: npt.NDArray[np.int64], groups: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Of stored rows: whether a window of their pane is still to fire, or may still change."""
        end = self._assigner.last_end(starts)
        needed: npt.NDArray[np.bool_] = end > self._progress.fired_of(groups)
        return needed | ~self._assigner.is_over(end, self._progress.watermarks_of(groups))

    # ---- rows ----
    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        ticks, valid = self._time.of(batch)
        if valid is not None:
            batch, ticks = self._without(batch, ticks, ~valid, out)
        if len(ticks) and (late := self._late_rows(batch, ticks)) is not None:
            batch, ticks = self._without(batch, ticks, late, out)
        if len(ticks):
            self._settle_before(ticks, out)
            unit = self._time.ticks
            rows, origin, length = batch.select(self._read), self._assigner.origin * unit, self._assigner.pane * unit
            for start, own in split_by_pane(rows, ticks, origin, length):
                self._add(start // unit, own, out)

    def _without(
        self, batch: pa.RecordBatch, ticks: npt.NDArray[np.int64], late: npt.NDArray[np.bool_], out: Collector
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        if not late.any():
            return batch, ticks
        out.emit_side(LATE, batch.filter(pa.array(late)))
        return batch.filter(pa.array(~late)), ticks[~late]

    def _late_rows(self, batch: pa.RecordBatch, ticks: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
        """Which rows are in no window that still takes records; None if none is."""
        if self._progress.differs:
            groups = key_groups_of_hashes(hash_columns(self._keying.of(batch)), self._total)
            return ticks // self._time.ticks < self._assigner.first_live(self._progress.watermarks_of(groups))
        if self._progress.watermark == MIN_WATERMARK:
            return None
        first = self._assigner.first_live(self._progress.watermark) * self._time.ticks
        return ticks < first if int(ticks.min()) < first else None

    def _settle_before(self, ticks: npt.NDArray[np.int64], out: Collector) -> None:
        """Of several panes, some may be in windows that have ended and are still to be put out, as well as in windows
        that take records: what comes for these must not be in those."""
        if (
            self._assigner.overlaps
            and self._is_behind()
            and ticks.min() // self._time.ticks <= self._progress.watermark
        ):
            while self._is_behind():
                self._fire_portion(out)

    def _add(self, start: int, rows: pa.RecordBatch, out: Collector) -> None:
        """Rows of one pane."""
        if (table := self._panes.get(start)) is None:
            table = self._panes.pane(start)
            self._find_next_end()
        keys = self._keying.of(rows)
        found = table.find_and_add(rows, keys)
        if self._assigner.lateness and self._may_be_out(start):
            self._put_out_again(start, keys, found.first_rows, out)
        if self._by_time is not None:
            self._by_time.note(start, found.slots[found.first_rows], self._clock.wall_ms())
        if self._by_count is not None and self._progress.watermark < start + self._assigner.pane - 1:
            due = self._by_count.due(start, found.slots, len(table))
            if len(due):
                out.emit(self._rows([(start + self._assigner.pane, table, due)]))

    # ---- what is late but allowed ----
    def _may_be_out(self, start: int) -> bool:
        return self._progress.differs or self._progress.watermark >= self._assigner.first_end(start) - 1

    def _put_out_again(self, start: int, keys: list[pa.Array], first_rows: Slots, out: Collector) -> None:
        """The changed rows of windows that have been put out already."""
        changed = [column.take(pa.array(first_rows)) for column in keys]
        for end in self._assigner.ends(start):
            if end - 1 > self._progress.watermark and not self._progress.differs:
                break
            again = self._already_out(end, changed)
            if again.any():
                chosen = [column.filter(pa.array(again)) for column in changed]
                table = self._panes.merged_keys(self._assigner.panes(end), chosen)
                out.emit(self._rows([(end, table, slice(0, len(table)))]))

    def _already_out(self, end: int, changed: list[pa.Array]) -> npt.NDArray[np.bool_]:
        """For which of the changed keys the window was put out, and may be again."""
        groups = key_groups_of_hashes(hash_columns(changed), self._total)
        again: npt.NDArray[np.bool_] = self._progress.fired_of(groups) >= end
        if self._firing is not None and self._firing.end == end:
            again |= self._firing.is_out(self._firing.table.look_up(changed))
        return again & ~self._assigner.is_over(end, self._progress.watermarks_of(groups))

    # ---- time ----
    def on_watermark(self, time: int, out: Collector) -> None:
        self._progress.advance(time)
        self._pass_empty_windows()
        if self._is_behind():
            self._fire_portion(out)
        while time == MAX_WATERMARK and self._is_behind():
            self._fire_portion(out)  # nothing comes after the end of time: whatever waits for it has to go out now
        self._drop_panes()

    def emitted_watermark(self) -> int | None:
        watermark = self._progress.watermark
        if self._is_behind() and self._next_end is not None:
            watermark = min(watermark, self._next_end - 2)  # what is put out happened before the window's end
        return None if watermark == MIN_WATERMARK else watermark

    def is_idle(self, input_idle: bool) -> bool:
        return input_idle and not self._is_behind()

    def next_timer(self) -> int | None:
        if self._is_behind():
            return _DUE_NOW
        return None if self._by_time is None else self._by_time.at

    def on_timer(self, now_ms: int, out: Collector) -> None:
        if self._is_behind():
            self._fire_portion(out)
            self._drop_panes()
        if self._by_time is not None and self._by_time.at is not None and self._by_time.at <= now_ms:
            self._put_out_early(self._by_time.take(), out)

    def _is_behind(self) -> bool:
        """Whether a window has ended that was not put out yet."""
        return self._next_end is not None and self._next_end - 1 <= self._progress.watermark

    def _find_next_end(self) -> None:
        """After a pane has come or gone, or a window was put out."""
        fired = self._progress.fired
        start = self._panes.first(fired, self._assigner.last_end)  # no other is in an earlier window that is to come
        self._next_end = None if start is None else self._assigner.next_end(start, fired)

    def _fire_portion(self, out: Collector) -> None:
        """Puts out rows of the windows that have ended, of as many as make a portion: one batch for all of them."""
        pieces: list[Rows] = []
        left = PORTION
        while left > 0 and self._is_behind():
            assert self._next_end is not None
            if self._firing is None:
                self._firing = self._begin(self._next_end)
            firing = self._firing
            slots = firing.next(left)
            pieces.append((firing.end, firing.table, slots))
            left -= _count(slots) + ROWS_OF_A_PANE * len(self._assigner.panes(firing.end))
            if firing.done:
                self._progress.fire(firing.end)
                self._fired_keys.forget(firing.end)
                self._firing = None
                self._find_next_end()
                self._pass_empty_windows()
        out.emit(self._rows(pieces))

    def _pass_empty_windows(self) -> None:
        """Those that ended without any record, up to the next one that is to be put out, count as put out."""
        watermark = self._progress.watermark
        if self._next_end is not None and self._next_end - 1 <= watermark:
            self._progress.fire(self._next_end - 1)
        else:
            self._progress.fire(min(watermark, MAX_WATERMARK - 1) + 1)

    def _begin(self, end: int) -> Firing:
        panes = self._assigner.panes(end)
        table = self._panes.merged(panes) if self._assigner.overlaps else self._panes.pane(panes[0])
        skipped = self._fired_keys.mask(end, table)
        if self._progress.differs:
            groups = key_groups_of_hashes(hash_columns(table.keys_of(slice(0, len(table)))), self._total)
            ahead = self._progress.fired_of(groups) >= end
            skipped = ahead if skipped is None else ahead | skipped
        return Firing(end, table, skipped)

    def _drop_panes(self) -> None:
        last = self._progress.watermark + 1 - self._assigner.lateness
        over = self._panes.drop_until(
            min(last, self._progress.fired) if self._is_behind() else last, self._assigner.last_end
        )
        if over:
            self._find_next_end()
            for early in (self._by_time, self._by_count):
                if early is not None:
                    early.drop(over)

    # ---- output ----
    def _put_out_early(self, changed: Mapping[int, Slots], out: Collector) -> None:
        keys: dict[int, list[list[pa.Array]]] = {}
        for start, slots in changed.items():
            if (table := self._panes.get(start)) is not None:
                for end in self._assigner.ends(start):
                    if end - 1 > self._progress.watermark:
                        keys.setdefault(end, []).append(table.keys_of(slots))
        for end, columns in sorted(keys.items()):
            every = [pa.concat_arrays(column) for column in zip(*columns, strict=True)]
            table = self._panes.merged_keys(self._assigner.panes(end), every)
            out.emit(self._rows([(end, table, slice(0, len(table)))]))

    def _rows(self, pieces: Sequence[Rows]) -> pa.RecordBatch:
        """One batch of rows of some windows, in their order."""
        ends = np.repeat([end for end, _, _ in pieces], [_count(slots) for _, _, slots in pieces])
        bounds = [self._time.bounds(times) for times in (self._assigner.start(ends), ends)]
        columns = [[*self._keying.shown(table.keys_of(slots)), *table.results(slots)] for _, table, slots in pieces]
        joined = columns[0] if len(columns) == 1 else list(map(pa.concat_arrays, zip(*columns, strict=True)))
        keys = len(self._schema) - len(bounds) - len(self._aggregates)
        return pa.RecordBatch.from_arrays([*joined[:keys], *bounds, *joined[keys:]], schema=self._schema)

    # ---- snapshots ----
    def logged(self) -> Sequence[LoggedState]:
        return (self._panes,)

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        fired = self._fired_keys.capture(self._firing, self._own, self._total)
        return OperatorSnapshot((self._progress.capture(), *fired))


_PARTS: Final = (panes_module.PART, progress_module.PART, FiredKeys.PART)


def _count(slots: Slots | slice) -> int:
    return slots.stop - slots.start if isinstance(slots, slice) else len(slots)
