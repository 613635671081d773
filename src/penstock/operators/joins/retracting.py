"""Rows that are taken back: what a batch of a changelog does to what was there before, and which rows it means.

`insert` and `update_after` add a row, `update_before` and `delete` take an equal one back. A row that a batch adds and
then takes back does not count. What is left are rows to be taken out of what was there, and rows to be added.

Rows are equal if all their values are; nulls and NaNs too. They are found by a hash of their columns, and compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from penstock.kernels.hashing import hash_columns, supports
from penstock.operators.joins.rows import Mask, Numbers, RowStore
from penstock.operators.joins.shape import chosen
from penstock.state.keys import KeyColumns
from penstock.state.slottable import SlotTable

_ADDING = ("insert", "update_after")
_TAKING = ("update_before", "delete")


def is_adding(operations: pa.Array) -> Mask:
    """Which rows of a changelog add something. Raises if one does neither."""
    adding = pc.is_in(operations, pa.array(_ADDING)).to_numpy(zero_copy_only=False)
    known = adding | pc.is_in(operations, pa.array(_TAKING)).to_numpy(zero_copy_only=False)
    if not known.all():
        wrong = operations[int(np.flatnonzero(~known)[0])].as_py()
        raise ValueError(
            f"the changelog has a row whose column 'op' is {wrong!r}; it must be one of {', '.join(_ADDING + _TAKING)}"
        )
    return adding


def comparable(columns: Sequence[pa.Array]) -> list[pa.Array]:
    """Columns that are equal where these are, of types that can be hashed."""
    return [
        column if supports(column.type) else pa.array([repr(value) for value in column.to_pylist()], pa.string())
        for column in columns
        if not pat.is_null(column.type)
    ]


def hashes_of(columns: Sequence[pa.Array], rows: int) -> Numbers:
    """Of every row."""
    known = comparable(columns)
    return hash_columns(known).view(np.int64) if known else np.zeros(rows, np.int64)


def classes_of(columns: Sequence[pa.Array]) -> Numbers:
    """Equal numbers for equal rows."""
    names = [str(place) for place in range(len(columns))]
    schema = pa.schema([(name, column.type) for name, column in zip(names, columns, strict=True)])
    return SlotTable(KeyColumns(schema, names), {}).find(list(columns)).slots


def net(keys: Numbers, columns: Sequence[pa.Array], adding: Mask) -> tuple[Numbers, Numbers]:
    """The rows of a batch that take something back, and those that add something, without those that a later row of
    the batch takes back."""
    if adding.all():
        return np.empty(0, np.int64), np.arange(len(keys))
    classes = classes_of([pa.array(keys), *comparable(columns)])
    order = np.argsort(classes, kind="stable")
    signs = np.where(adding, 1, -1)[order]
    begins = np.flatnonzero(np.append([True], classes[order][1:] != classes[order][:-1]))
    lengths = np.diff(np.append(begins, [len(order)]))
    sums = np.cumsum(signs)
    levels = sums - np.repeat(sums[begins] - signs[begins], lengths)
    # As often as the level falls below what it was before, something is taken back that the batch did not add.
    taking = np.maximum(0, -np.minimum.reduceat(levels, begins))
    left = levels[begins + lengths - 1] + taking
    return np.sort(_first(order, signs < 0, begins, lengths, taking)), np.sort(
        _first(order[::-1], signs[::-1] > 0, len(order) - begins[::-1] - lengths[::-1], lengths[::-1], left[::-1])
    )


def _first(order: Numbers, wanted: Mask, begins: Numbers, lengths: Numbers, limits: Numbers) -> Numbers:
    """Of every run of `order`, so many of the first rows that are wanted."""
    counted = np.cumsum(wanted)
    ranks: Numbers = counted - np.repeat(counted[begins] - wanted[begins], lengths)
    rows: Numbers = order[wanted & (ranks <= np.repeat(limits, lengths))]
    return rows


def find_rows(store: RowStore, keys: Numbers, columns: Sequence[pa.Array]) -> Numbers:
    """For each row another one of the store that equals it, or -1. No row is given twice."""
    found, taken = store.hashed(keys, hashes_of(columns, len(keys)))
    there = np.flatnonzero(found >= 0)
    wrong = there[~_equal(store.take(found[there]), chosen(columns, there), len(there))]
    if len(wrong):  # different rows with the same hash: once in a very long time
        taken[found[wrong]] = False
        found[wrong] = -1
        for place in np.flatnonzero(found < 0).tolist():
            _, rows = store.of(keys[place : place + 1])
            rows = rows[~taken[rows]]
            wanted = chosen(columns, np.full(len(rows), place))
            equal = rows[_equal(store.take(rows), wanted, len(rows))]
            found[place] = equal[0] if len(equal) else -1
            taken[equal[:1]] = True
    return found


def _equal(first: Sequence[pa.Array], second: Sequence[pa.Array], rows: int) -> Mask:
    columns = [pa.concat_arrays(pair) for pair in zip(comparable(first), comparable(second), strict=True)]
    if not columns or not rows:
        return np.ones(rows, np.bool_)
    classes = classes_of(columns)
    return classes[:rows] == classes[rows:]
