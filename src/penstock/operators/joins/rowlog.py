"""The rows of one side of a join as logged state.

In a checkpoint a row has its key, its `number`, what is kept of it as numbers, and its columns (`row.<name>`). A layer
of changes has rows that are new or of which a kept number has changed, and takes the place of what the layers below say
of the same key and number. Rows that are gone need not be told where whoever restores can see that they are (`keeps`),
because their time is over, for example. Those that were removed otherwise are *recorded*: the layer says which are
gone. Numbers are unique for one writer, and a key has one writer, so that key and number identify a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.handles import KeyGroupRange
from penstock.core.ids import Cut, Uid
from penstock.operators.aggregation.pile import Pile
from penstock.operators.joins.keys import JoinKeys
from penstock.operators.joins.rows import NONE, Mask, Numbers, RowStore
from penstock.state.columns import check_header
from penstock.state.parts import Buffer, Encode, Piece, RestoredPart
from penstock.state.tables import (
    GROUP_COLUMN,
    REMOVED_COLUMN,
    Rows,
    encode_rows,
    key_columns_of,
    read_table,
)

Keeps = Callable[[Mapping[str, Numbers], npt.NDArray[np.int32]], Mask]
"""Of what is kept of stored rows as numbers, and of their key groups: which rows are still needed."""

_KIND: Final = "join"
_NUMBER: Final = "number"
_COLUMN: Final = "row."


class _Logged(NamedTuple):
    """What happened up to a cut since the one before."""

    cut: Cut
    changed: Numbers
    """Numbers of rows of which something else is kept."""
    removed_keys: Numbers
    removed: Numbers
    """Numbers of recorded removals, and their keys."""


class _Captured(NamedTuple):
    """Some rows at a capture, and what is gone."""

    keys: Callable[[], list[pa.Array]]
    numbers: Numbers
    places: Numbers
    """Of what is gone, -1."""
    kept: Callable[[Rows], list[npt.NDArray[Any]]]
    pile: Callable[[Numbers], list[pa.Array]]
    tells_removals: bool


class LoggedRows(RowStore):
    """Implements `LoggedState`."""

    def __init__(self, name: str, join: str, keys: JoinKeys, columns: pa.Schema, kept: Sequence[str]) -> None:
        super().__init__(keys, columns, kept)
        self.name = name
        named = [{"name": field.name, "of": str(field.type)} for field in columns]
        self._description = {"type": "join", "join": join, "kept": list(kept), "columns": named}
        self._floor = Cut(0)
        self._begins: dict[Cut, int] = {}
        """By cut: the first number that was given out later."""
        self._begin = 0
        """That of the last cut. No layer knows of later rows, so that what becomes of them is not logged."""
        self._log: list[_Logged] = []
        self._changed: list[Numbers] = []
        self._removed: list[tuple[Numbers, Numbers]] = []
        """Both since the last cut."""

    def own(self, key_groups: KeyGroupRange, total_groups: int) -> None:
        """Says which keys will come; before anything else."""
        self.key_groups, self._total = key_groups, total_groups

    # ---- changes ----
    def remove_recorded(self, rows: Numbers) -> None:
        known = self._known(rows)
        if len(known):
            self._removed.append((self._owner[known], self._number[known]))
        self.remove(rows)

    def change(self, name: str, rows: Numbers, value: int) -> None:
        super().change(name, rows, value)
        known = self._known(rows)
        if len(known):
            self._changed.append(self._number[known])

    def _known(self, rows: Numbers) -> Numbers:
        """Those that were there at the last cut."""
        known: Numbers = rows[self._number[rows] < self._begin]
        return known

    def keys_in_use(self) -> list[Numbers]:
        """Also those of which a checkpoint will have to say that their rows are gone."""
        logged = [entry.removed_keys for entry in self._log] + [keys for keys, _ in self._removed]
        return [self._owner[self.rows()], *logged]

    def rename(self, slots: Numbers, places: Numbers) -> None:
        super().rename(slots, places)
        self._log = [entry._replace(removed_keys=places[entry.removed_keys]) for entry in self._log]
        self._removed = [(places[keys], numbers) for keys, numbers in self._removed]

    # ---- captures ----
    @property
    def size(self) -> int:
        return len(self)

    def mark(self, cut: Cut, floor: Cut) -> None:
        self._keys.settle(cut)
        removed_keys = _joined([keys for keys, _ in self._removed])
        removed = _joined([numbers for _, numbers in self._removed])
        self._log = [entry for entry in self._log if entry.cut > floor]
        self._log.append(_Logged(cut, _joined(self._changed), removed_keys, removed))
        self._begins = {known: number for known, number in self._begins.items() if known >= floor}
        self._begins[cut] = self._begin = self._next_number
        self._changed, self._removed, self._floor = [], [], floor

    def changed_since(self, cut: Cut) -> int | None:
        if cut < self._floor or cut not in self._begins:
            return None
        logged = [entry for entry in self._log if entry.cut > cut]
        return self._next_number - self._begins[cut] + sum(len(e.changed) + len(e.removed) for e in logged)

    def changes(self, since: Cut) -> Encode:
        begin = self._begins[since]
        logged = [entry for entry in self._log if entry.cut > since]
        changed = np.unique(_joined([entry.changed for entry in logged]))
        first_new = int(np.searchsorted(self._number[: self._used], begin))
        fresh = np.flatnonzero(self._there[first_new : self._used]) + first_new
        removed, removed_keys = (_joined([getattr(e, name) for e in logged]) for name in ("removed", "removed_keys"))
        known = removed < begin  # the layers below know nothing of later ones
        rows = np.concatenate([self.numbered(changed[changed < begin]), fresh])
        return self._captured(rows, removed_keys[known], removed[known])

    def whole(self, portable: bool) -> Sequence[Piece]:
        return [Piece(self._captured(self.rows(), NONE, NONE))] if len(self) else []

    def _captured(self, rows: Numbers, removed_keys: Numbers, removed: Numbers) -> Encode:
        owners, read_keys = np.concatenate([self._owner[rows], removed_keys]), self._keys.reader()
        captured = _Captured(
            lambda: read_keys(owners),
            np.concatenate([self._number[rows], removed]),
            np.concatenate([rows, np.full(len(removed), -1, np.int64)]),
            self._captures.reader(list(self._kept.values()), rows, self._used),
            (self._pile or Pile([])).taker(),
            bool(len(removed)),
        )
        return partial(self._encode, captured)

    def _encode(self, captured: _Captured) -> Iterable[Buffer]:
        """On any thread."""
        types = {_NUMBER: pa.int64(), **dict.fromkeys(self._kept, pa.int64())}
        types |= {_COLUMN + field.name: field.type for field in self._columns}
        if captured.tells_removals:
            types[REMOVED_COLUMN] = pa.bool_()
        keys = captured.keys()
        return encode_rows(
            _KIND, self.name, self._description, self._keys.columns, self._total, keys, types, partial(_rows, captured)
        )

    # ---- restores ----
    def restore(
        self, uid: Uid, parts: Sequence[RestoredPart], keeps: Keeps, *, by: str = _NUMBER, renumber: bool = False
    ) -> None:
        """Takes up the layers of all writers, lower ones first, in the order of what is kept as `by`. Rows of several
        writers are numbered anew: no layer will be built upon theirs."""
        batches = []
        for part in parts:
            header, own = read_table(part, self._keys.columns, self.key_groups)
            check_header(uid, header, _KIND, self._description, _shown)
            batches += own
        if not batches:
            return
        owners = np.concatenate([self._keys.find(key_columns_of(batch, self._keys.columns)) for batch in batches])
        numbers = _column(batches, _NUMBER)
        kept = {name: _column(batches, name) for name in self._kept}
        alive = _last_of_each(owners, numbers) & ~np.concatenate([_is_removed(batch) for batch in batches])
        groups = _column(batches, GROUP_COLUMN)
        alive[alive] = keeps({name: values[alive] for name, values in kept.items()}, groups[alive])
        rows = np.flatnonzero(alive)
        rows = rows[np.lexsort((numbers[rows], kept.get(by, numbers)[rows]))]
        stored = Pile(self._columns.types)
        for batch in batches:
            if len(self._columns):
                stored.add([batch.column(_COLUMN + name) for name in self._columns.names])
        self.add(owners[rows], stored.take(rows), {name: values[rows] for name, values in kept.items()})
        if not renumber:
            self._number[: self._used] = numbers[rows]
        self._next_number = max(self._next_number, int(numbers.max()) + 1)


def _rows(captured: _Captured, rows: Rows) -> list[pa.Array]:
    """The stored columns of some rows."""
    places, numbers = captured.places[rows], captured.numbers[rows]
    gone = places < 0
    kept = [np.zeros(len(rows), np.int64) for _ in captured.kept(rows[:0])]
    for column, values in zip(kept, captured.kept(rows[~gone]), strict=True):
        column[~gone] = values
    columns = [pa.array(numbers), *map(pa.array, kept), *captured.pile(places)]
    return [*columns, pa.array(gone)] if captured.tells_removals else columns


def _column(batches: Sequence[pa.RecordBatch], name: str) -> Any:
    return np.concatenate([batch.column(name).to_numpy() for batch in batches])


def _is_removed(batch: pa.RecordBatch) -> Mask:
    if batch.schema.get_field_index(REMOVED_COLUMN) < 0:
        return np.zeros(batch.num_rows, np.bool_)
    return batch.column(REMOVED_COLUMN).to_numpy(zero_copy_only=False)


def _last_of_each(keys: Numbers, numbers: Numbers) -> Mask:
    """Which rows are the last ones of their key and number."""
    order = np.lexsort((numbers, keys))  # stable: equal ones stay in their order
    last = np.ones(len(order), np.bool_)
    last[:-1] = (keys[order][1:] != keys[order][:-1]) | (numbers[order][1:] != numbers[order][:-1])
    chosen = np.zeros(len(order), np.bool_)
    chosen[order[last]] = True
    return chosen


def _joined(arrays: Sequence[Numbers]) -> Numbers:
    return np.concatenate(arrays) if arrays else NONE


def _shown(description: Mapping[str, Any]) -> str:
    columns = ", ".join(f"{item['name']}: {item['of']}" for item in description.get("columns", ()))
    kept = ", ".join(description.get("kept", ())) or "nothing else"
    return f"the rows ({columns}) of a {description.get('join', '')} join, of which {kept} is kept"
