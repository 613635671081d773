"""Keyed state in columns (`columnmap`) as a logged state: captures of its table, laid out as those of hash maps are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import pyarrow as pa

from penstock.core.handles import KeyGroupRange
from penstock.core.ids import Cut
from penstock.state.columnmap import ColumnMap
from penstock.state.keys import KeyColumns
from penstock.state.kinds import KeyedState
from penstock.state.parts import Buffer, Encode, Piece
from penstock.state.slottable import Section
from penstock.state.tables import REMOVED_COLUMN, Rows, encode_rows


class ColumnLog:
    """Implements `LoggedState` for the map of one state."""

    def __init__(
        self, state: KeyedState, entries: ColumnMap, keys: KeyColumns, key_groups: KeyGroupRange, total_groups: int
    ) -> None:
        self.name, self.key_groups = state.name, key_groups
        self._state, self._entries, self._keys, self._total = state, entries, keys, total_groups

    @property
    def size(self) -> int:
        return self._entries.size

    def mark(self, cut: Cut, floor: Cut) -> None:
        self._entries.mark(cut, floor)

    def changed_since(self, cut: Cut) -> int | None:
        return self._entries.changed_since(cut)

    def changes(self, since: Cut) -> Encode:
        section, removals = self._entries.changes(since)
        return partial(self._encode, section, removals)

    def whole(self, portable: bool) -> Sequence[Piece]:
        return [Piece(partial(self._encode, self._entries.whole(), False))] if self.size else []

    def _encode(self, section: Section, removals: bool) -> Iterable[Buffer]:
        """On any thread."""
        state = self._state
        types = {**state.columns, REMOVED_COLUMN: pa.bool_()} if removals else state.columns
        of_rows: Callable[[Rows], Sequence[pa.Array]] = section.values if removals else _without_marks(section)
        description, keys = state.codec.description, self._keys
        return encode_rows(state.kind, state.name, description, keys, self._total, section.keys(), types, of_rows)


def _without_marks(section: Section) -> Callable[[Rows], Sequence[pa.Array]]:
    """The columns but for the last one, which says what was removed."""
    return lambda rows: section.values(rows)[:-1]
