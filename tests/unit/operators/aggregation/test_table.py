"""Tables of aggregates, as objects."""

from __future__ import annotations

import gc
import weakref

import pyarrow as pa

from penstock.operators.aggregation.declare import count
from penstock.operators.aggregation.table import AggregateTable
from penstock.state.keys import KeyColumns


def test_a_table_is_freed_as_soon_as_it_is_dropped() -> None:
    schema = pa.schema([("key", pa.int64())])
    table = AggregateTable(KeyColumns(schema, ["key"]), {"n": count()}, schema)
    numbers = pa.record_batch({"key": pa.array(range(2_000))})
    table.find_and_add(numbers, [numbers.column(0)])
    gone = weakref.ref(table)
    gc.disable()  # nothing refers to itself
    try:
        del table
        assert gone() is None
    finally:
        gc.enable()
