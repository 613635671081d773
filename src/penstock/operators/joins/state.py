"""What a join of two keyed streams keeps: the rows of both sides, by the same keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.operators.base import OperatorContext
from penstock.operators.joins.keys import JoinKeys
from penstock.operators.joins.rowlog import Keeps, LoggedRows
from penstock.operators.joins.rows import Numbers
from penstock.operators.joins.shape import Incoming, JoinSide
from penstock.state.keys import KeyColumns

PARTS: Final = ("left", "right")
_TIDY_FROM: Final = 4096
"""Fewer keys are not worth looking which of them have no rows."""


class JoinState:
    """`join` says what the rows are kept for, and `kept` what is kept of those of each side as numbers."""

    def __init__(self, join: str, sides: Sequence[JoinSide], kept: Sequence[Sequence[str]]) -> None:
        self.keys = JoinKeys(KeyColumns(sides[0].schema, sides[0].key))
        self.sides = [
            LoggedRows(name, join, self.keys, side.columns, numbers)
            for name, side, numbers in zip(PARTS, sides, kept, strict=True)
        ]
        self._tidy_at = _TIDY_FROM

    def open(self, context: OperatorContext, keeps: Sequence[Keeps], by: str = "") -> None:
        """Restores what the context has."""
        for side, needed in zip(self.sides, keeps, strict=True):
            side.own(context.key_groups, context.total_key_groups)
            parts = [part for part in context.restored if part.name == side.name]
            side.restore(context.uid, parts, needed, by=by, renumber=not context.same_share)

    def find(self, key_columns: list[pa.Array]) -> Numbers:
        """The keys of a batch. Rows that were asked for before may be others then."""
        if len(self.keys) > self._tidy_at:
            self._forget_keys()
        for side in self.sides:
            side.tidy()
        return self.keys.find(key_columns)

    def incoming(self, side: int, rows: Numbers) -> Incoming:
        """Rows that a side keeps, as they came."""
        own = self.sides[side]
        return Incoming(self.keys.of(own.owners(rows)), own.take(rows))

    def _forget_keys(self) -> None:
        """Those that have no rows any more, if they are many."""
        used = np.zeros(len(self.keys), np.bool_)
        for side in self.sides:
            for keys in side.keys_in_use():
                used[keys] = True
        slots = np.flatnonzero(used)
        if 2 * len(slots) <= len(used):
            places = self.keys.only(slots)
            for side in self.sides:
                side.rename(slots, places)
        self._tidy_at = max(_TIDY_FROM, 2 * len(self.keys))
