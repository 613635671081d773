"""What a join puts out: which rows, and which columns they have.

The columns are those of the left side, then those of the right side without its key: the key of both is shown once,
under the left side's names. A column of the right side that has a name of the left side gets a suffix. A row without a
match has nulls on the other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.kernels.gathering import taken
from penstock.operators.base import Collector
from penstock.operators.reduce import OPERATION

Numbers = npt.NDArray[np.int64]

PORTION: Final = 1 << 16
"""How many rows are put out in one batch."""
INSERT: Final = "insert"
DELETE: Final = "delete"


class How(StrEnum):
    INNER = "inner"
    """Pairs that match."""
    LEFT = "left"
    """And rows of the left side without a match."""
    RIGHT = "right"
    """And rows of the right side without a match."""
    FULL = "full"
    """And both."""
    SEMI = "semi"
    """Rows of the left side with a match, each once."""
    ANTI = "anti"
    """Rows of the left side without a match."""

    @property
    def pairs(self) -> bool:
        return self not in (How.SEMI, How.ANTI)

    def shows_unmatched(self, side: int) -> bool:
        return self in ((How.LEFT, How.FULL, How.ANTI), (How.RIGHT, How.FULL))[side]


@dataclass(frozen=True)
class JoinSide:
    """One input of a join."""

    schema: pa.Schema
    key: tuple[str, ...]
    changelog: bool = False
    """Whether a column says of every row what it is."""

    @property
    def columns(self) -> pa.Schema:
        """What is kept of a row, besides its key."""
        left_out = {*self.key, OPERATION} if self.changelog else set(self.key)
        return pa.schema([pa.field(field.name, field.type) for field in self.schema if field.name not in left_out])

    def key_of(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [batch.column(name) for name in self.key]

    def columns_of(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [batch.column(name) for name in self.columns.names]


def joined_schema(
    left: JoinSide, right: JoinSide, how: How, suffix: str, *, changelog: bool = False, before: Sequence[pa.Field] = ()
) -> pa.Schema:
    """Of the output, `before` which there may be other columns. Raises what is wrong with the names."""
    fields = [pa.field(OPERATION, pa.string())] if changelog else []
    fields += before
    for field in left.schema:
        if left.changelog and field.name == OPERATION:
            continue
        if field.name in [known.name for known in fields]:
            raise ValueError(
                f"the result has a column {field.name!r} of its own, and the left side has one too: give that another "
                "name with select(...) first"
            )
        fields.append(pa.field(field.name, field.type))
    for field in right.columns if how.pairs else ():
        taken_names = [known.name for known in fields]
        name = field.name + suffix if field.name in taken_names else field.name
        if name in taken_names:
            raise ValueError(
                f"the right side's column {field.name!r} would be called {name!r}, which another column is called: "
                "choose another suffix=, or rename it with select(...) first"
            )
        fields.append(pa.field(name, field.type))
    return pa.schema(fields)


class Output:
    """Puts rows together. Columns of a side that is None are null."""

    def __init__(
        self, left: JoinSide, how: How, schema: pa.Schema, *, changelog: bool = False, before: int = 0
    ) -> None:
        self._schema, self._changelog, self._before = schema, changelog, before
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


def portions(rows: int) -> Sequence[slice]:
    """Some rows, cut into runs that are put out one by one."""
    return [slice(begin, begin + PORTION) for begin in range(0, rows, PORTION)]


def chosen(columns: Sequence[pa.Array], rows: Numbers) -> list[pa.Array]:
    return [taken(column, rows) for column in columns]
