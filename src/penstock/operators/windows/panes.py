"""The state of windows of event time: a table of aggregates for every pane.

A *pane* is a slice of time that no window begins or ends within; every window consists of whole panes. A record is kept
once, in its pane, whatever the number of windows that it is in. A pane is dropped as a whole when the last window that
it is part of is over: no key is ever removed.

In a checkpoint all panes are one table, of the key, the `pane` (its start, in milliseconds) and the aggregates. Rows of
panes that are over may still be there, in layers from before they were: whoever restores says which are (`keeps`).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.handles import KeyGroupRange
from penstock.core.ids import Cut, Uid
from penstock.kernels.gathering import taken
from penstock.operators.aggregation.declare import Aggregate
from penstock.operators.aggregation.table import AggregateTable, described
from penstock.state.columns import check_header
from penstock.state.keys import KeyColumns
from penstock.state.parts import Buffer, Encode, Piece, RestoredPart
from penstock.state.slottable import Section
from penstock.state.tables import GROUP_COLUMN, Rows, encode_rows, key_columns_of, read_table

PART: Final = "windows"
_KIND: Final = "windows"
_PANE: Final = "pane"
_SPARE: Final = 16

Keeps = Callable[[npt.NDArray[np.int64], npt.NDArray[np.int32]], npt.NDArray[np.bool_]]
"""Of starts of panes and key groups: which are still needed."""


class Panes:
    """Implements `LoggedState`. Panes are known by their starts."""

    name = PART

    def __init__(self, keys: KeyColumns, aggregates: Mapping[str, Aggregate], schema: pa.Schema, windows: str) -> None:
        self._keys, self._aggregates, self._schema = keys, aggregates, schema
        self._description = {"type": "windows", "windows": windows, "columns": described(aggregates, schema)}
        self._tables: dict[int, AggregateTable] = {}
        self._starts: list[int] = []
        """In their order: what comes next, and what is over, is found without looking at all panes."""
        self._last_size = 0
        """Of the pane that was dropped last: about what a new one will need."""
        self._spare: list[AggregateTable] = []
        """Of panes that were dropped, to be used again: short windows come by the hundred in a second."""

    def own(self, key_groups: KeyGroupRange, total_groups: int) -> None:
        """Says which keys will come; before anything else."""
        self.key_groups, self._total = key_groups, total_groups

    # ---- use ----
    def __iter__(self) -> Iterator[int]:
        """In the order of their starts."""
        return iter(self._starts)

    def __len__(self) -> int:
        return len(self._tables)

    def get(self, start: int) -> AggregateTable | None:
        return self._tables.get(start)

    def pane(self, start: int) -> AggregateTable:
        """A new one, if there is none."""
        table = self._tables.get(start)
        if table is None:
            table = self._tables[start] = self._spare.pop() if self._spare else self._new_table()
            insort(self._starts, start)
            if self._last_size > 0:
                table.expect(self._last_size)
        return table

    def _new_table(self) -> AggregateTable:
        return AggregateTable(self._keys, self._aggregates, self._schema)

    def first(self, beyond: int, by: Callable[[int], int]) -> int | None:
        """The first pane of those for which `by`, which rises with the start, gives more than `beyond`."""
        place = bisect_right(self._starts, beyond, key=by)
        return self._starts[place] if place < len(self._starts) else None

    def drop_until(self, last: int, by: Callable[[int], int]) -> list[int]:
        """Drops those for which `by`, which rises with the start, gives no more than `last`. Returns which."""
        place = bisect_right(self._starts, last, key=by)
        dropped, self._starts = self._starts[:place], self._starts[place:]
        for start in dropped:
            table = self._tables.pop(start)
            self._last_size = len(table)
            if len(self._spare) < _SPARE and table.clear():
                self._spare.append(table)
        return dropped

    def merged(self, starts: Iterable[int]) -> AggregateTable:
        """Some panes as one, the earlier ones first."""
        tables = [table for start in starts if (table := self._tables.get(start)) is not None]
        merged = self._new_table()
        merged.expect(max(map(len, tables), default=0))
        for table in tables:
            slots = merged.find(table.keys_of(slice(0, len(table)))).slots
            merged.merge(table, np.arange(len(table)), slots)
        return merged

    def merged_keys(self, starts: Iterable[int], keys: list[pa.Array]) -> AggregateTable:
        """The same, of these keys alone."""
        merged = self._new_table()
        for table in (self._tables[start] for start in starts if start in self._tables):
            theirs = table.look_up(keys)
            there = theirs >= 0
            if there.any():
                slots = merged.find([column.filter(pa.array(there)) for column in keys]).slots
                merged.merge(table, theirs[there], slots)
        return merged

    # ---- captures ----
    @property
    def size(self) -> int:
        return sum(map(len, self._tables.values()))

    def mark(self, cut: Cut, floor: Cut) -> None:
        for table in self._tables.values():
            table.mark(cut, floor)

    def changed_since(self, cut: Cut) -> int | None:
        counts = [table.changed_since(cut) for table in self._tables.values()]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def changes(self, since: Cut) -> Encode:
        return self._captured([(start, table.changes(since)) for start, table in self._tables.items()])

    def whole(self, portable: bool) -> Sequence[Piece]:
        sections = [(start, table.whole()) for start, table in self._tables.items() if len(table)]
        return [Piece(self._captured(sections))] if sections else []

    def _captured(self, sections: Sequence[tuple[int, Section]]) -> Encode:
        return partial(self._encode, [(start, section) for start, section in sections if section.rows])

    def _encode(self, sections: Sequence[tuple[int, Section]]) -> Iterable[Buffer]:
        """On any thread."""
        types = {_PANE: pa.int64(), **self._new_table().stored}
        keys = [section.keys() for _, section in sections]
        key_columns = [pa.concat_arrays(columns) for columns in zip(*keys, strict=True)]
        if not sections:
            key_columns = [pa.nulls(0, kind) for kind in self._keys.types]
        of_rows = partial(_rows_of, [section for _, section in sections], [start for start, _ in sections])
        return encode_rows(_KIND, self.name, self._description, self._keys, self._total, key_columns, types, of_rows)

    # ---- restores ----
    def restore(self, uid: Uid, parts: Sequence[RestoredPart], keeps: Keeps) -> None:
        """Takes up the layers of all writers, lower ones first."""
        for part in parts:
            header, batches = read_table(part, self._keys, self.key_groups)
            check_header(uid, header, _KIND, self._description, shown)
            for batch in batches:
                starts, groups = batch.column(_PANE).to_numpy(), batch.column(GROUP_COLUMN).to_numpy()
                needed = keeps(starts, groups)
                for start in np.unique(starts[needed]).tolist():
                    self._take_up(start, batch.filter(pa.array(needed & (starts == start))))

    def _take_up(self, start: int, batch: pa.RecordBatch) -> None:
        columns = {name: batch.column(name) for name in batch.schema.names}
        self.pane(start).take_up(key_columns_of(batch, self._keys), columns)


def _rows_of(sections: Sequence[Section], starts: Sequence[int], rows: Rows) -> list[pa.Array]:
    """The columns of rows that are numbered through all sections."""
    bounds = np.cumsum([0, *(section.rows for section in sections)])
    home = np.searchsorted(bounds, rows, side="right") - 1
    involved: list[int] = np.unique(home).tolist()
    if len(involved) == 1:
        (place,) = involved
        columns = sections[place].values(rows - np.int32(bounds[place]))
    else:
        order = np.argsort(home, kind="stable")
        own = rows[order] - bounds[home[order]].astype(np.int32)
        ends = np.searchsorted(home[order], involved, side="right")
        shares = np.split(own, ends[:-1])
        pieces = [sections[place].values(share) for place, share in zip(involved, shares, strict=True)]
        back = np.empty(len(rows), np.int64)
        back[order] = np.arange(len(rows))
        columns = [taken(pa.concat_arrays(piece), back) for piece in zip(*pieces, strict=True)]
    return [pa.array(np.asarray(starts, np.int64)[home]), *columns]


def shown(description: Mapping[str, Any]) -> str:
    columns = ", ".join(f"{item['name']}={item['is']}: {item['of']}" for item in description.get("columns", ()))
    return f"{description.get('windows', 'no windows')} of {columns}"
