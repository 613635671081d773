"""filter, select and with_columns give what plain Polars gives, in batches of the declared schema."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.graph.job import OperatorSpec
from penstock.operators.base import Emitted

BATCH = pa.record_batch(
    {
        "id": pa.array([1, 2, 3, 4, 5, None], pa.int64()),
        "small": pa.array([1, 2, 3, None, 5, 6], pa.int8()),
        "user": pa.array(["ann", "bob", None, "ann", "eve", "bob"], pa.string()),
        "wide": pa.array(["a", "b", "c", "d", None, "f"], pa.large_string()),
        "blob": pa.array([b"a", None, b"c", b"d", b"e", b"f"], pa.binary()),
        "code": pa.array([b"ab", b"cd", None, b"gh", b"ij", b"kl"], pa.binary(2)),
        "score": pa.array([0.5, float("nan"), None, -0.0, 2.5, 9.0], pa.float64()),
        "price": pa.array([Decimal("1.50"), None, Decimal("2.25"), Decimal("0.00"), Decimal("9.99"), Decimal("1.00")],
        pa.decimal128(9, 2)), "day": pa.array([dt.date(2024, 1, day) for day in range(1, 7)], pa.date32()),
        "seconds": pa.array([1, 2, None, 4, 5, 6], pa.timestamp("s")),
        "nanos": pa.array([1, 2, None, 4, 5, 6], pa.timestamp("ns", "UTC")),
        "tags": pa.array([["x"], [], None, ["y", "z"], ["x", None], []], pa.list_(pa.string())),
        "nested": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 4, "b": None}, {"a": 5, "b": "z"},
        {"a": 6, "b": "w"}]), "flag": pa.array([True, False, None, True, True, False]),
        "nothing": pa.nulls(6),
    }
)  # fmt: skip


class Table:
    bounded = True

    def __init__(self, schema: pa.Schema):
        self.schema = schema

    def operator(self):
        raise NotImplementedError


def chained(schema: pa.Schema, write) -> OperatorSpec:
    """The one operator that the written expressions become."""
    p = ps.Pipeline("job")
    write(p.source(Table(schema), uid="in")).sink(ps.sinks.Discard(), uid="out")
    _, operator, _ = p.graph().chains[0].operators
    return operator


def run(write, *batches: pa.RecordBatch) -> tuple[list[pa.RecordBatch], pa.Schema]:
    spec = chained(batches[0].schema, write)
    operator: Any = spec.factory()
    operator.open(None)
    out = Emitted()
    for batch in batches:
        operator.process(batch, 0, out)
    assert spec.schema is not None
    return out.batches, spec.schema


WRITTEN = {
    "a filter": lambda s: s.filter(pl.col("id") > 2),
    "filters": lambda s: s.filter(pl.col("id") > 1, pl.col("flag")).filter(pl.col("user") == "ann"),
    "a filter by equality": lambda s: s.filter(user="bob"),
    "a filter of literals": lambda s: s.filter(pl.lit(True)),
    "a filter that keeps nothing": lambda s: s.filter(pl.lit(False)),
    "a filter of selected columns": lambda s: s.filter(pl.all_horizontal(cs.integer() > 2)),
    "a selection": lambda s: s.select("user", "wide", "tags", "nested"),
    "a selection of a list of names": lambda s: s.select(["user", "id"]),
    "a selection of everything": lambda s: s.select(pl.all()),
    "an exclusion": lambda s: s.select(pl.exclude("blob")),
    "computed columns": lambda s: s.select(twice=pl.col("id") * 2, name=pl.col("user").str.to_uppercase(), one=1,
    nil=None), "added columns": lambda s: s.with_columns(pl.col("small") + 1, total=pl.col("price") * 2,
    hour=pl.col("nanos").dt.hour()), "categories": lambda s: s.select(kind=pl.col("user").cast(pl.Categorical)),
    "structures": lambda s: s.select(pl.struct("id", "user").alias("both"), pl.concat_list("id",
    "small").alias("list")), "a chain": lambda s: s.with_columns(n=pl.col("id") % 3).filter(pl.col("n") ==
    1).select("n", "wide").filter(pl.col("wide") != "zz"),
}  # fmt: skip


@pytest.mark.parametrize("write", WRITTEN.values(), ids=WRITTEN)
def test_the_result_is_that_of_polars_in_exactly_the_declared_schema(write):
    class Plain:
        """Runs the same calls on a plain Polars frame."""

        def __init__(self, frame: pl.DataFrame):
            self.frame = frame

        def __getattr__(self, method: str):
            return lambda *args, **named: Plain(getattr(self.frame, method)(*args, **named))

    expected = write(Plain(pl.from_arrow(BATCH))).frame
    batches, schema = run(write, BATCH)
    assert all(batch.schema == schema for batch in batches)
    result = pl.from_arrow(pa.Table.from_batches(batches, schema))
    strings = cs.categorical() | cs.enum()
    assert result.equals(expected.with_columns(strings.cast(pl.String)), null_equal=True)


def test_a_filter_keeps_the_schema_exactly_also_of_types_that_polars_lacks():
    batches, schema = run(lambda s: s.filter(pl.col("id") > 4), BATCH)
    assert schema == BATCH.schema
    assert batches == [BATCH.slice(4, 1)]


def test_a_filter_that_keeps_all_hands_on_the_very_batch():
    batches, _ = run(lambda s: s.filter(pl.col("day") > dt.date(2000, 1, 1)), BATCH)
    assert batches[0] is BATCH


def test_a_filter_looks_only_at_the_columns_it_names():
    spec = chained(BATCH.schema, lambda s: s.filter((pl.col("id") > 2) & pl.col("flag")))
    (step,) = spec.factory.args[0]  # type: ignore[attr-defined]
    assert step.columns == ("id", "flag")


def test_a_second_filter_never_sees_what_the_first_took_away():
    """A strict cast raises on 'x': after the filter there is none left."""
    batch = pa.record_batch({"text": ["1", "x", "3"]})
    digits = pl.col("text").str.contains(r"^\d+$")
    batches, _ = run(lambda s: s.filter(digits).filter(pl.col("text").cast(pl.Int64) > 1), batch)
    assert pa.Table.from_batches(batches).to_pylist() == [{"text": "3"}]


def test_streams_carry_plain_types_whatever_polars_makes():
    _, schema = run(lambda s: s.select(pl.col("user").cast(pl.Categorical), "wide", "tags", "nested"), BATCH)
    assert [str(field.type) for field in schema] == [
        "string",
        "string",
        "list<item: string>",
        "struct<a: int64, b: string>",
    ]


def test_a_batch_that_was_sliced_without_a_copy_is_read_from_its_offset():
    batches, _ = run(lambda s: s.select("id", "user", "tags"), BATCH.slice(3, 2))
    assert pa.Table.from_batches(batches) == pa.table(BATCH.slice(3, 2).select(["id", "user", "tags"]))


@given(
    st.lists(st.tuples(st.none() | st.integers(-5, 5), st.none() | st.text(max_size=3)), min_size=1, max_size=30),
    st.integers(1, 5),
)
def test_how_the_stream_is_cut_into_batches_makes_no_difference(rows, size):
    whole = pa.record_batch(
        {"n": pa.array([n for n, _ in rows], pa.int64()), "t": pa.array([t for _, t in rows], pa.string())}
    )
    cut = [whole.slice(start, size) for start in range(0, len(rows), size)]

    def write(stream: ps.Stream) -> ps.Stream:
        return (
            stream.filter(pl.col("n") > 0)
            .with_columns(m=pl.col("n") * 2, u=pl.col("t").str.len_chars())
            .select("m", "t", "u")
        )

    (once, schema), (pieces, _) = run(write, whole), run(write, *cut)
    assert (
        pa.Table.from_batches(once, schema).combine_chunks() == pa.Table.from_batches(pieces, schema).combine_chunks()
    )
