"""What `returns=` can be, and the schema of every stream while the pipeline is written."""

from __future__ import annotations

import datetime as dt

import polars as pl
import pyarrow as pa
import pytest

import penstock as ps


def numbers() -> ps.Stream:
    return ps.Pipeline("job").source(ps.sources.Generator(10, {"id": lambda i: i, "half": lambda i: i / 2}), uid="in")


def declared(returns) -> pa.Schema:
    return numbers().map(lambda row: row, returns=returns).schema


@pytest.mark.parametrize(
    ("written", "arrow"),
    [
        (bool, pa.bool_()), (int, pa.int64()), (float, pa.float64()), (str, pa.string()), (bytes, pa.binary()),
        (dt.datetime, pa.timestamp("us")), (dt.date, pa.date32()), (dt.time, pa.time64("us")),
        (dt.timedelta, pa.duration("us")), (list[int], pa.list_(pa.int64())),
        (list[list[str]], pa.list_(pa.list_(pa.string()))),
        (pl.Int8, pa.int8()), (pl.String, pa.string()), (pl.Categorical, pa.string()),
        (pl.Datetime, pa.timestamp("us")),
        (pl.Datetime("ns", "UTC"), pa.timestamp("ns", "UTC")), (pl.List(pl.String), pa.list_(pa.string())),
        (pl.Decimal(9, 2), pa.decimal128(9, 2)), (pl.Struct({"a": pl.String}), pa.struct([("a", pa.string())])),
        (pa.int16(), pa.int16()), (pa.large_string(), pa.string()),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.decimal128(18, 2), pa.decimal128(18, 2)),
    ],
    ids=str,
)  # fmt: skip
def test_a_column_is_declared_by_python_polars_or_arrow_type(written, arrow):
    assert declared({"column": written}) == pa.schema([("column", arrow)])


def test_a_whole_schema_can_be_given_in_arrow_or_polars():
    assert declared(pa.schema([("a", pa.int8()), ("b", pa.large_string())])) == pa.schema(
        [("a", pa.int8()), ("b", pa.string())]
    )
    assert declared(pl.Schema({"a": pl.Int8, "b": pl.String})) == pa.schema([("a", pa.int8()), ("b", pa.string())])


def test_streams_know_their_schema_as_soon_as_they_are_written():
    stream = numbers()
    assert stream.schema == pa.schema([("id", pa.int64()), ("half", pa.float64())])
    assert stream.with_columns(name=pl.col("id").cast(pl.String)).columns == ["id", "half", "name"]
    assert stream.filter(pl.col("id") > 1).rebalance().union(stream).schema == stream.schema
    assert stream.map_batches(lambda frame: frame).schema == stream.schema
    assert stream.map_batches(lambda frame: frame, returns={"x": int}).columns == ["x"]
    assert stream.key_by("id").schema == stream.schema


def test_a_stream_shows_where_it_comes_from_and_what_it_has():
    assert repr(numbers()).startswith("<Stream of source(Generator) 'in' (test_schemas.py:")
    assert repr(numbers()).endswith("): id: int64, half: double>")
    assert repr(numbers().key_by("id")) == "<KeyedStream by id>"


def test_an_option_of_the_operator_is_not_taken_for_a_column():
    stream = numbers().with_columns(pl.col("id").alias("uid"), uid="named")
    assert stream.columns == ["id", "half", "uid"]
    assert "'named'" in repr(stream)
