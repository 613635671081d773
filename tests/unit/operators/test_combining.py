"""Rows that are combined before they are sent give the receiver the same results and the same state as all of them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.core.handles import KeyGroupRange
from penstock.operators.aggregation.declare import Aggregate
from penstock.operators.aggregation.table import described
from penstock.operators.base import Emitted
from penstock.operators.combining import AggregatesCombiner, Combine, combinable, combining
from penstock.operators.reduce import ReduceOperator

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("number", pa.int32()),
        ("large", pa.uint64()),
        ("fraction", pa.float32()),
        ("price", pa.decimal128(9, 2)),
        ("word", pa.string()),
        ("counts", pa.bool_()),
    ]
)
AGGREGATES: Mapping[str, Aggregate] = {
    "n": ps.count(),
    "numbers": ps.count("number"),
    "total": ps.sum("number"),
    "large_total": ps.sum("large"),
    "fractions": ps.sum("fraction"),
    "paid": ps.sum("price"),
    "lowest": ps.min("number"),
    "highest": ps.max("fraction"),
    "last_word": ps.max("word"),
    "counted": ps.count(where="counts"),
    "counted_total": ps.sum("number", where="counts"),
}

rows = st.tuples(
    st.sampled_from(["a", "b", "c", None]),
    st.none() | st.integers(-5, 5),
    st.none() | st.integers(0, 5),
    st.none() | st.sampled_from([0.25, -1.5, float("inf")]),
    st.none() | st.integers(-500, 500).map(lambda cents: Decimal(cents) / 100),
    st.none() | st.text("xyz", max_size=2),
    st.none() | st.booleans(),
)


def batch_of(records: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*records, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def reducer(aggregates: Mapping[str, Aggregate], schema: pa.Schema) -> ReduceOperator:
    made = ReduceOperator(("key",), aggregates, schema)
    made._state.own(KeyGroupRange(0, 128), 128)
    return made


def last_rows(operator: ReduceOperator, batches: list[pa.RecordBatch]) -> dict[Any, dict[str, Any]]:
    out = Emitted()
    for batch in batches:
        operator.process(batch, 0, out)
    return {row["key"]: row for made in out.batches for row in made.to_pylist()}


@given(st.lists(st.lists(rows, min_size=1, max_size=20), min_size=1, max_size=4), st.sampled_from(list(Combine)))
def test_the_results_are_those_of_all_rows(batches: list[list[tuple[Any, ...]]], when: Combine) -> None:
    made = [batch_of(records) for records in batches]
    combine = AggregatesCombiner(("key",), AGGREGATES, SCHEMA, when)
    sent = [combine(batch) for batch in made]
    own = combining(AGGREGATES)
    assert last_rows(reducer(own, sent[0].schema), sent) == last_rows(reducer(AGGREGATES, SCHEMA), made)
    assert described(own, sent[0].schema) == described(AGGREGATES, SCHEMA)  # so either takes up the other's state


def test_rows_of_the_same_key_become_one_and_only_needed_columns_are_sent() -> None:
    combine = AggregatesCombiner(("key",), {"n": ps.count(), "total": ps.sum("number")}, SCHEMA, Combine.ALWAYS)
    batch = batch_of([("a", 1, 0, 0, None, "", True), ("b", 5, 0, 0, None, "", True), ("a", 2, 0, 0, None, "", True)])
    assert combine(batch).to_pylist() == [{"key": "a", "n": 2, "total": 3}, {"key": "b", "n": 1, "total": 5}]


def numbered(keys: Any) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(keys), "value": pa.array(np.arange(len(keys)))})


def test_rows_are_combined_while_keys_repeat() -> None:
    many, few = numbered(np.arange(1000)), numbered(np.arange(1000) % 10)
    combine = AggregatesCombiner(("key",), {"n": ps.count()}, many.schema, Combine.AUTO)
    assert combine(many).num_rows == 1000
    sizes = [combine(few).num_rows for _ in range(100)]
    assert set(sizes) == {1000, 10}
    assert sizes == sorted(sizes, reverse=True)  # once it is found out, it stays so
    assert sizes.index(10) <= 40
    assert [combine(many).num_rows for _ in range(3)] == [1000] * 3
    assert combine(few).num_rows == 1000  # not tried again at once


def test_aggregates_that_need_every_row_are_not_combined() -> None:
    assert combinable({"n": ps.count(), "low": ps.min("x")})
    assert not combinable({"n": ps.count(), "all": ps.collect("x")})
    pipeline = ps.Pipeline("p", parallelism=2)
    stream = pipeline.source(ps.sources.Generator(1, numbered), uid="numbers").key_by("key")
    with pytest.raises(ps.PipelineError, match="only"):
        stream.reduce(all=ps.collect("value"), combine="always")
    with pytest.raises(ps.PipelineError, match="'auto' or 'always' or 'never'"):
        stream.reduce(n=ps.count(), combine="sometimes")


def test_explain_says_where_rows_are_combined() -> None:
    pipeline = ps.Pipeline("p", parallelism=2)
    keyed = pipeline.source(ps.sources.Generator(1, numbered), uid="numbers").key_by("key")
    keyed.reduce(n=ps.count(), uid="counts").sink(ps.sinks.Discard(), uid="end")
    assert "by hash of key, combined" in pipeline.explain()
