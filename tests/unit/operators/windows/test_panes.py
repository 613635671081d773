"""Tables of panes that are over are used again, unless somebody may still read them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.core.handles import KeyGroupRange
from penstock.operators.aggregation.table import AggregateTable
from penstock.operators.windows.panes import Panes
from penstock.state.keys import KeyColumns

SCHEMA = pa.schema([("key", pa.int64()), ("word", pa.string()), ("value", pa.int64())])
ROWS = 2_000
AGGREGATES = {"n": ps.count(), "total": ps.sum("value"), "least": ps.min("value"), "most": ps.max("value")}


def panes(**more: ps.Aggregate) -> Panes:
    made = Panes(KeyColumns(SCHEMA, ("key", "word")), {**AGGREGATES, **more}, SCHEMA, "some windows")
    made.own(KeyGroupRange(0, 8), 8)
    return made


def add(table: AggregateTable, first: int, value: int, nulls: bool = False) -> None:
    keys = np.arange(first, first + ROWS)
    values = [None if nulls and key % 2 else value for key in keys.tolist()]
    words = [f"word {key}" for key in keys.tolist()]
    batch = pa.record_batch([pa.array(keys), pa.array(words), pa.array(values, pa.int64())], schema=SCHEMA)
    table.find_and_add(batch, batch.columns[:2])


def rows(table: AggregateTable) -> list[tuple[object, ...]]:
    everything = slice(0, len(table))
    columns = [*table.keys_of(everything), *table.results(everything)]
    return sorted(zip(*(column.to_pylist() for column in columns), strict=True))


def over(panes: Panes) -> None:
    panes.drop_until(10**6, lambda start: start)


@pytest.mark.parametrize("nulls", [False, True])
def test_nothing_of_a_pane_that_is_over_is_in_the_one_that_has_its_table(nulls: bool) -> None:
    used, fresh = panes(), panes()
    old = used.pane(0)
    add(old, first=500, value=7, nulls=nulls)
    over(used)
    assert used.pane(100) is old
    assert not len(old)
    for made in (used, fresh):
        add(made.pane(100), first=0, value=40)
        add(made.pane(100), first=0, value=50)
    assert rows(used.pane(100)) == rows(fresh.pane(100))
    assert rows(old)[0] == (0, "word 0", 2, 90, 40, 50)


def test_what_was_captured_stays_as_it_was() -> None:
    used = panes()
    old = used.pane(0)
    add(old, first=0, value=7)
    (piece,) = used.whole(False)
    over(used)
    assert used.pane(100) is not old
    add(used.pane(100), first=0, value=50)
    expected = panes()
    add(expected.pane(0), first=0, value=7)
    (other,) = expected.whole(False)
    assert b"".join(piece.encode()) == b"".join(other.encode())


def test_a_pane_of_aggregates_that_cannot_be_cleared_gets_a_new_table() -> None:
    used = panes(all=ps.collect("value"))
    old = used.pane(0)
    add(old, first=0, value=7)
    over(used)
    assert used.pane(100) is not old
