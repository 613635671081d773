"""Rows of any types that are only ever added, each known by its number.

What a slot keeps of a column that is no plain number (a string, a decimal, a list) is the number of a row here. Rows
that nobody refers to any more stay until the owner moves what is alive to a new pile. The rows lie in few runs: one
that is added is joined with the last ones while they are not larger, so that a row is copied a logarithmic number of
times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.operators.aggregation.accumulator import Array

_JOINED_BYTES: Final = 1 << 28
"""Runs do not grow beyond: 32 bits of offsets must do for their strings."""


class Pile:
    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._schema = pa.schema([pa.field(str(place), type) for place, type in enumerate(types)])
        self._runs: tuple[pa.RecordBatch, ...] = ()
        """Replaced, never changed: whoever holds it has the pile as it was."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, columns: Sequence[pa.Array]) -> Array:
        """The numbers of the added rows."""
        run = pa.RecordBatch.from_arrays(list(columns), schema=self._schema)
        first, self._length = self._length, self._length + run.num_rows
        joined, runs = [run], list(self._runs)
        rows, size = run.num_rows, run.nbytes
        while runs and runs[-1].num_rows <= 2 * rows and size + runs[-1].nbytes <= _JOINED_BYTES:
            joined.insert(0, runs.pop())
            rows, size = rows + joined[0].num_rows, size + joined[0].nbytes
        if rows:
            runs.append(joined[0] if len(joined) == 1 else pa.concat_batches(joined))
        self._runs = tuple(runs)
        return np.arange(first, self._length)

    def take(self, numbers: Array) -> list[pa.Array]:
        """The columns of some rows; null for a number below 0."""
        return self.taker()(numbers)

    def taker(self) -> Callable[[Array], list[pa.Array]]:
        """`take` for the pile as it is now; to be called later, on any thread."""
        runs, schema = self._runs, self._schema
        return lambda numbers: _taken(runs, schema, numbers)


def _taken(runs: Sequence[pa.RecordBatch], schema: pa.Schema, numbers: Array) -> list[pa.Array]:
    if not runs:
        return [pa.nulls(len(numbers), field.type) for field in schema]
    if len(runs) == 1:
        return runs[0].take(_rows(numbers)).columns
    starts = np.cumsum([0, *(run.num_rows for run in runs)])
    home = np.clip(np.searchsorted(starts, numbers, side="right") - 1, 0, None)
    order = np.argsort(home, kind="stable")
    bounds = np.searchsorted(home[order], np.arange(len(runs) + 1))
    pieces = []
    for run, start, (begin, end) in zip(runs, starts, pairwise(bounds), strict=False):
        own = numbers[order[begin:end]]
        if len(own):
            pieces.append(run.take(_rows(np.where(own < 0, -1, own - start))))
    if not pieces:
        return [pa.nulls(0, field.type) for field in schema]
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return pa.concat_batches(pieces).take(pa.array(back)).columns


def _rows(numbers: Array) -> pa.Array:
    missing = numbers < 0
    return pa.array(numbers, mask=missing) if missing.any() else pa.array(numbers)
