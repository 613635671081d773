"""Puts the rows of a join out, in batches of bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from penstock.operators.base import Collector
from penstock.operators.joins.rows import Numbers
from penstock.operators.joins.shape import How, Incoming, JoinSide, chosen
from penstock.operators.joins.state import JoinState
from penstock.operators.reduce import OPERATION

PORTION: Final = 1 << 16
"""How many rows are put out in one batch."""
INSERT: Final = "insert"
DELETE: Final = "delete"


class Output:
    """Puts rows together. Columns of a side that is None are null."""

    def __init__(
        self, left: JoinSide, how: How, schema: pa.Schema, *, changelog: bool = False, before: int = 0
    ) -> None:
        self._schema, self._changelog = schema, changelog
        self._left_names = [name for name in left.schema.names if not (left.changelog and name == OPERATION)]
        self._left_key = left.key
        self._right = len(schema) - len(self._left_names) - before - changelog if how.pairs else 0

    def emit(
        self,
        out: Collector,
        kind: str,
        key: Sequence[pa.Array],
        left: Sequence[pa.Array] | None,
        right: Sequence[pa.Array] | None,
        before: Sequence[pa.Array] = (),
    ) -> None:
        rows = len(key[0])
        if not rows:
            return
        columns = [pa.repeat(kind, rows)] if self._changelog else []
        columns += before
        keys, others = dict(zip(self._left_key, key, strict=True)), iter(left or ())
        for name in self._left_names:
            if name in keys:
                columns.append(keys[name])
            else:
                columns.append(next(others) if left is not None else pa.nulls(rows, self._type(len(columns))))
        for place in range(self._right):
            columns.append(right[place] if right is not None else pa.nulls(rows, self._type(len(columns))))
        out.emit(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _type(self, place: int) -> pa.DataType:
        return self._schema.field(place).type


class PairOutput:
    """Puts out rows of a side, with rows that the other side keeps or without."""

    def __init__(self, output: Output, state: JoinState) -> None:
        self._output, self._state = output, state

    def alone(self, side: int, rows: Incoming, out: Collector, kind: str = INSERT) -> None:
        left, right = (rows.columns, None) if side == 0 else (None, rows.columns)
        self._output.emit(out, kind, rows.keys, left, right)

    def kept(self, side: int, rows: Numbers, out: Collector, kind: str = INSERT) -> None:
        """The same, of rows that the side itself keeps."""
        for portion in portions(len(rows)):
            self.alone(side, self._state.incoming(side, rows[portion]), out, kind)

    def pairs(
        self, side: int, rows: Incoming, places: Numbers, others: Numbers, out: Collector, kind: str = INSERT
    ) -> None:
        """Some of the rows, by their places, each with one that the other side keeps."""
        for portion in portions(len(others)):
            own, other = chosen(rows.columns, places[portion]), self._state.sides[1 - side].take(others[portion])
            left, right = (own, other) if side == 0 else (other, own)
            self._output.emit(out, kind, chosen(rows.keys, places[portion]), left, right)


def portions(rows: int) -> Sequence[slice]:
    """Some rows, cut into runs that are put out one by one."""
    return [slice(begin, begin + PORTION) for begin in range(0, rows, PORTION)]
