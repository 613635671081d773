"""Keyed state in columns: a table of slots (`slottable`) of which a log is kept, as one table in the order of slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from penstock.core.handles import KeyGroupRange
from penstock.core.ids import Cut, Uid
from penstock.state.keys import KeyColumns
from penstock.state.parts import Buffer, Encode, Piece, RestoredPart
from penstock.state.slottable import Section, SlotTable
from penstock.state.tables import (
    StateHeader,
    StateMismatch,
    encode_in_turn,
    key_columns_of,
    read_table,
    table_schema,
)

Shown = Callable[[Mapping[str, Any]], str]
"""Says what a description describes, in the message to a user who has changed it."""


class ColumnState:
    """Implements `LoggedState`."""

    def __init__(
        self, name: str, kind: str, keys: KeyColumns, table: SlotTable, description: Mapping[str, Any]
    ) -> None:
        self.name, self._kind, self._keys, self._table, self._description = name, kind, keys, table, description
        self._schema = table_schema(kind, name, description, keys, table.stored)

    def own(self, key_groups: KeyGroupRange, total_groups: int) -> None:
        """Says which keys will come; before anything else."""
        self.key_groups, self._total = key_groups, total_groups

    # ---- captures ----
    @property
    def size(self) -> int:
        return len(self._table)

    def mark(self, cut: Cut, floor: Cut) -> None:
        self._table.mark(cut, floor)

    def changed_since(self, cut: Cut) -> int | None:
        return self._table.changed_since(cut)

    def changes(self, since: Cut) -> Encode:
        return partial(self._encode, self._table.changes(since))

    def whole(self, portable: bool) -> Sequence[Piece]:
        return [Piece(partial(self._encode, self._table.whole()))] if len(self._table) else []

    def _encode(self, section: Section) -> Iterable[Buffer]:
        """On any thread."""
        return encode_in_turn(self._schema, self._keys, self._total, section.rows, section.keys, section.values)

    # ---- restores ----
    def restore(self, uid: Uid, parts: Sequence[RestoredPart], shown: Callable[[Mapping[str, Any]], str]) -> None:
        """Takes up the layers of all writers, lower ones first."""
        for part in parts:
            header, batches = read_table(part, self._keys, self.key_groups)
            check_header(uid, header, self._kind, self._description, shown)
            expected = len(self._table) + sum(batch.num_rows for batch in batches)
            for batch in batches:
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                self._table.take_up(key_columns_of(batch, self._keys), columns, expected)


def check_header(uid: Uid, header: StateHeader, kind: str, description: Mapping[str, Any], shown: Shown) -> None:
    """Raises `StateMismatch` unless a file holds what the program declares."""
    if header.kind != kind or dict(header.description) != description:
        raise StateMismatch(
            f"operator {uid!r}: stored are {shown(header.description)}, but declared are {shown(description)}: declare "
            "them as they were, or give the operator another uid"
        )
