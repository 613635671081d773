"""What a join takes and gives: its sides, which rows it puts out, and which columns they have.

The columns are those of the left side, then those of the right side without its key: the key of both is shown once,
under the left side's names. A column of the right side that has a name of the left side gets a suffix. A row without a
match has nulls on the other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.kernels.gathering import taken
from penstock.operators.reduce import OPERATION

Numbers = npt.NDArray[np.int64]


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

    def rows_of(self, batch: pa.RecordBatch) -> Incoming:
        return Incoming(self.key_of(batch), [batch.column(name) for name in self.columns.names])


@dataclass(frozen=True, slots=True)
class Incoming:
    """Rows of one side, as they came."""

    keys: list[pa.Array]
    columns: list[pa.Array]
    """Besides the key."""

    def at(self, rows: Numbers) -> Incoming:
        return Incoming(chosen(self.keys, rows), chosen(self.columns, rows))


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


def chosen(columns: Sequence[pa.Array], rows: Numbers) -> list[pa.Array]:
    return [taken(column, rows) for column in columns]
