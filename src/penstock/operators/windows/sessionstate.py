"""The state of session windows: open sessions, in columns.

A session has a slot in arrays: whose it is, its first and last time, and what the aggregates have of it. Slots of
sessions that are over are used again. The sessions of a key (mostly one) are linked: `_first` by key, `_next` by
session.

A batch is taken up without looking at rows one by one. Its rows become spans; these and the open sessions of the same
keys are united where they touch; every united span is one session, which keeps the slot of its first part.

In a checkpoint a row is a session: the key, `start` and `end` (in the ticks of the time column, `end` is a gap after
the last record) and the aggregates. A layer of changes holds all sessions of the keys that changed, and replaces what
the layers below have of these keys. Sessions that are over need not be removed: whoever restores says which are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.handles import KeyGroupRange
from penstock.core.ids import Cut, Uid
from penstock.operators.aggregation.accumulator import INITIAL_SLOTS, Accumulator, Array, grown
from penstock.operators.aggregation.declare import Aggregate
from penstock.operators.aggregation.table import described
from penstock.operators.windows.intervals import Numbers, Spans, ranks, runs_of, united
from penstock.operators.windows.panes import shown
from penstock.state.captures import Captures
from penstock.state.columns import check_header
from penstock.state.index import Slots
from penstock.state.keys import KeyColumns
from penstock.state.parts import Buffer, Encode, Piece, RestoredPart
from penstock.state.slottable import SlotTable
from penstock.state.tables import GROUP_COLUMN, Rows, encode_rows, key_columns_of, read_table

PART: Final = "windows"
_KIND: Final = "sessions"
_START, _END = "start", "end"
_TYPES: Final = {_START: pa.int64(), _END: pa.int64()}

_TIDY_FROM: Final = 4096
"""Fewer keys are not worth looking which of them have no session."""

FREE, OPEN, PENDING, FIRED = 0, 1, 2, 3
"""What a slot is: no session; one that goes on; one that has ended and is on its way out; one that was put out, but may
still change."""

Keeps = Callable[[Numbers, npt.NDArray[np.int32]], npt.NDArray[np.bool_]]
"""Of ends and key groups: which sessions are still needed."""


class Sessions:
    """Implements `LoggedState`."""

    name = PART

    def __init__(
        self,
        keys: KeyColumns,
        aggregates: Mapping[str, Aggregate],
        schema: pa.Schema,
        gap: int,
        description: Mapping[str, Any],
    ) -> None:
        self._columns, self._aggregates, self._schema, self._gap = keys, aggregates, schema, gap
        self._description = {"type": "windows", **description, "columns": described(aggregates, schema)}
        self._keys = SlotTable(keys, {})
        self._first = np.full(INITIAL_SLOTS, -1, np.int64)
        self.accumulators = self._new_accumulators()
        self._owner, self.start, self.end, self._next = (np.full(INITIAL_SLOTS, -1, np.int64) for _ in range(4))
        self.status = np.zeros(INITIAL_SLOTS, np.int8)
        self._used = 0
        self._free: list[Slots] = []
        self._captures = Captures()
        self._tidy_at = _TIDY_FROM

    def own(self, key_groups: KeyGroupRange, total_groups: int) -> None:
        """Says which keys will come; before anything else."""
        self.key_groups, self._total = key_groups, total_groups

    def _new_accumulators(self) -> dict[str, Accumulator]:
        return {name: aggregate.accumulator(self._schema) for name, aggregate in self._aggregates.items()}

    # ---- use ----
    @property
    def size(self) -> int:
        return self._used

    def take_up(self, batch: pa.RecordBatch, keys: list[pa.Array], times: Numbers) -> tuple[Slots, Slots]:
        """Adds the rows of a batch. Returns the sessions that changed, and the session of every row."""
        owners = self._find(keys)
        new, of_row = runs_of(owners, times, self._gap)
        beside = self._new_accumulators()
        for accumulator in beside.values():
            accumulator.add(batch, of_row, len(new))
        target, of_new = self._unite(new)
        for turn in _turns(of_new):
            self._merge(beside, turn, target[of_new[turn]])
        return np.unique(target[of_new]), target[of_new[of_row]]

    def _find(self, keys: list[pa.Array]) -> Slots:
        if len(self._keys) > self._tidy_at:
            self._tidy()
        slots = self._keys.find(keys).slots
        self._first = grown(self._first, len(self._keys), -1)
        return slots

    def _unite(self, new: Spans) -> tuple[Slots, Numbers]:
        """Makes room for spans among the open sessions of their owners, some of which become one. Returns the slot of
        every united span, and which of these each new one is part of."""
        slots = self.of_owners(np.unique(new.owners))
        known = Spans(self._owner[slots], self.start[slots], self.end[slots] - self._gap)
        spans, of_known, of_new = united(known, new, self._gap)
        order = np.lexsort((known.starts, of_known))
        slots, of_known = slots[order], of_known[order]
        target = np.full(len(spans), -1, np.int64)
        rank = ranks(of_known)
        target[of_known[rank == 0]] = slots[rank == 0]
        without = np.flatnonzero(target < 0)
        target[without] = self._allocate(len(without))
        if self._captures:
            self._captures.keep(np.concatenate([target, slots]))
        for turn in range(1, int(rank.max(initial=0)) + 1):
            absorbed = rank == turn
            self._merge(self.accumulators, slots[absorbed], target[of_known[absorbed]])
        self.free(slots[rank > 0])
        self._owner[target], self.start[target], self.end[target] = spans.owners, spans.starts, spans.lasts + self._gap
        self._link(target)
        return target, of_new

    def _merge(self, others: Mapping[str, Accumulator], theirs: Slots, slots: Slots) -> None:
        for name, accumulator in self.accumulators.items():
            accumulator.merge(others[name], theirs, slots, self._used)

    def _tidy(self) -> None:
        """Leaves behind the keys that have no session, if they are many."""
        there = np.flatnonzero(self.status[: self._used] != FREE)
        owners = np.unique(self._owner[there])
        if 2 * len(owners) < len(self._keys):
            self._keys, places = self._keys.only(owners)
            first, self._first = self._first, np.full(max(INITIAL_SLOTS, len(owners)), -1, np.int64)
            self._first[: len(owners)] = first[owners]
            self._owner[there] = places[self._owner[there]]
        self._tidy_at = max(_TIDY_FROM, 2 * len(self._keys))

    def of_owners(self, owners: Slots) -> Slots:
        """The linked sessions of some owners, none of whom occurs twice."""
        found, session = [np.empty(0, np.int64)], self._first[owners]
        while len(session := session[session >= 0]):
            found.append(session)
            session = self._next[session]
        return np.concatenate(found)

    def _link(self, slots: Slots) -> None:
        """These are all sessions of their owners, ordered by owner."""
        owners = self._owner[slots]
        same = np.append(owners[1:] == owners[:-1], [False])[: len(owners)]
        self._next[slots] = np.where(same, np.append(slots[1:], [-1])[: len(slots)], -1)
        begins = np.append([True], owners[1:] != owners[:-1])[: len(owners)]
        self._first[owners[begins]] = slots[begins]

    def unlink(self, slots: Slots) -> None:
        """These take no more records."""
        owners = np.unique(self._owner[slots])
        every = self.of_owners(owners)
        left = every[~np.isin(every, slots)]
        self._first[owners] = -1
        self._link(left[np.argsort(self._owner[left], kind="stable")])

    def _allocate(self, count: int) -> Slots:
        chosen = [np.empty(0, np.int64)]
        while count and self._free:
            free = self._free.pop()
            chosen.append(free[:count])
            if len(free) > count:
                self._free.append(free[count:])
            count -= len(chosen[-1])
        chosen.append(np.arange(self._used, self._used + count))
        self._used += count
        self._owner, self.start, self.end, self._next = (
            grown(array, self._used, -1) for array in (self._owner, self.start, self.end, self._next)
        )
        self.status = grown(self.status, self._used, FREE)
        slots = np.concatenate(chosen)
        for accumulator in self.accumulators.values():
            accumulator.expect(self._used)
            accumulator.reset(slots)
        self.status[slots] = OPEN
        return slots

    def free(self, slots: Slots) -> None:
        """These are no sessions any more, and not linked."""
        if len(slots):
            if self._captures:
                self._captures.keep(slots)
            self.status[slots] = FREE
            for accumulator in self.accumulators.values():
                accumulator.reset(slots)
            self._free.append(slots)

    def keys_of(self, slots: Slots) -> list[pa.Array]:
        return self._keys.keys_of(self._owner[slots])

    def results(self, slots: Slots) -> list[pa.Array]:
        return [accumulator.results(slots) for accumulator in self.accumulators.values()]

    # ---- captures ----
    def mark(self, cut: Cut, floor: Cut) -> None:
        self._keys.mark(cut, floor)

    def changed_since(self, cut: Cut) -> int | None:
        return self._keys.changed_since(cut)

    def changes(self, since: Cut) -> Encode:
        return self.captured(self.of_owners(self._keys.touched_since(since).astype(np.int64)))

    def whole(self, portable: bool) -> Sequence[Piece]:
        slots = self.of_owners(np.flatnonzero(self._first >= 0))
        return [Piece(self.captured(slots))] if len(slots) else []

    def captured(self, slots: Slots) -> Encode:
        """These sessions as they are now."""
        groups = [(len(one.arrays), one.frozen()) for one in self.accumulators.values()]
        arrays = [self.start, self.end, *(array for one in self.accumulators.values() for array in one.arrays)]
        read = self._captures.reader(arrays, slots, self._used)
        owners, keys = self._owner[slots], self._keys.keys_reader()
        return partial(self._encode, lambda: keys(owners), partial(_columns, read, groups))

    def _encode(
        self, keys: Callable[[], list[pa.Array]], of_rows: Callable[[Rows], list[pa.Array]]
    ) -> Iterable[Buffer]:
        """On any thread."""
        stored = {name + suffix: kind for name, one in self.accumulators.items() for suffix, kind in one.stored.items()}
        types = {**_TYPES, **stored}
        return encode_rows(_KIND, self.name, self._description, self._columns, self._total, keys(), types, of_rows)

    # ---- restores ----
    def restore(self, uid: Uid, parts: Sequence[RestoredPart], keeps: Keeps) -> Slots:
        """Takes up the layers of all writers, lower ones first. Returns the sessions."""
        for part in parts:
            header, batches = read_table(part, self._columns, self.key_groups)
            check_header(uid, header, _KIND, self._description, shown)
            if part.layer:
                for batch in batches:
                    owners = np.unique(self._find(key_columns_of(batch, self._columns)))
                    replaced = self.of_owners(owners)
                    self._first[owners] = -1
                    self.free(replaced)
            for batch in batches:
                self._put(batch, keeps)
        return np.flatnonzero(self.status[: self._used] == OPEN)

    def twins(self, slots: Slots) -> Slots:
        """For each of these sessions, which are not linked, the linked one of the same owner and start, or -1."""
        linked = self.of_owners(np.unique(self._owner[slots]))
        every = np.concatenate([linked, slots])
        apart = np.repeat([False, True], [len(linked), len(slots)])
        order = np.lexsort((apart, self.start[every], self._owner[every]))
        owner, start, apart = self._owner[every][order], self.start[every][order], apart[order]
        same = (owner[1:] == owner[:-1]) & (start[1:] == start[:-1]) & apart[1:] & ~apart[:-1]
        twins = np.full(len(slots), -1, np.int64)
        twins[order[1:][same] - len(linked)] = every[order[:-1][same]]
        return twins

    def put_apart(self, parts: Sequence[RestoredPart]) -> Slots:
        """Takes up sessions that were on their way out; they are not linked."""
        slots = [np.empty(0, np.int64)]
        for part in parts:
            for batch in read_table(part, self._columns, self.key_groups)[1]:
                slots.append(self._put_rows(batch))
        return np.concatenate(slots)

    def _put(self, batch: pa.RecordBatch, keeps: Keeps) -> None:
        ends, groups = batch.column(_END).to_numpy(), batch.column(GROUP_COLUMN).to_numpy()
        slots = self._put_rows(batch.filter(pa.array(keeps(ends, groups))))
        every = np.concatenate([slots, self.of_owners(np.unique(self._owner[slots]))])
        self._link(every[np.lexsort((self.start[every], self._owner[every]))])

    def _put_rows(self, batch: pa.RecordBatch) -> Slots:
        if not batch.num_rows:
            return np.empty(0, np.int64)
        slots = self._allocate(batch.num_rows)
        self._owner[slots] = self._find(key_columns_of(batch, self._columns))
        self.start[slots], self.end[slots] = (batch.column(name).to_numpy() for name in (_START, _END))
        for name, accumulator in self.accumulators.items():
            accumulator.put(slots, [batch.column(name + suffix) for suffix in accumulator.stored], self._used)
        return slots


def _turns(numbers: Numbers) -> Iterable[Numbers]:
    """Places, so that no number occurs twice in one turn, in the order of their places."""
    rank = ranks(numbers)
    return (np.flatnonzero(rank == turn) for turn in range(int(rank.max(initial=-1)) + 1))


def _columns(
    read: Callable[[Rows], list[Array]],
    groups: Sequence[tuple[int, Callable[[Sequence[Array]], list[pa.Array]]]],
    rows: Rows,
) -> list[pa.Array]:
    taken = iter(read(rows))
    bounds = [pa.array(values) for values in islice(taken, 2)]
    return bounds + [column for count, to_columns in groups for column in to_columns(list(islice(taken, count)))]
