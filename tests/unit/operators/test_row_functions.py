"""map, flat_map and map_batches: what user functions get, what becomes of what they return, and what they are told."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.base import Emitted, Operator
from penstock.operators.batches import MapBatchesOperator
from penstock.operators.conform import SchemaMismatch
from penstock.operators.rows import FlatMapOperator, MapOperator, rows_of

ORDERS = pa.record_batch({"user": ["ann", "bob", "eve"], "amount": [1, 2, 3]})
TOTALS = pa.schema([("user", pa.string()), ("total", pa.int64())])


def emitted(operator: Operator, batch: pa.RecordBatch = ORDERS) -> list[dict[str, Any]]:
    out = Emitted()
    operator.process(batch, 0, out)
    return [row for result in out.batches for row in result.to_pylist()]


def refused(operator: Operator) -> str:
    with pytest.raises(SchemaMismatch) as error:
        emitted(operator)
    return str(error.value)


# ---- rows ----
@given(st.data())
def test_rows_have_the_values_of_the_columns(data):
    kinds = {
        "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
        "float": (pa.float64(), st.floats(allow_nan=False)),
        "bool": (pa.bool_(), st.booleans()),
        "text": (pa.string(), st.text(max_size=4)),
        "bytes": (pa.binary(), st.binary(max_size=4)),
        "day": (pa.date32(), st.dates()),
        "time": (pa.timestamp("us"), st.datetimes()),
        "list": (pa.list_(pa.int64()), st.lists(st.integers(0, 9), max_size=3)),
    }
    size = data.draw(st.integers(1, 8))
    columns = {
        name: (arrow, data.draw(st.lists(st.none() | values, min_size=size, max_size=size)))
        for name, (arrow, values) in kinds.items()
    }
    batch = pa.record_batch({name: pa.array(values, arrow) for name, (arrow, values) in columns.items()})
    expected = [{name: values[row] for name, (_, values) in columns.items()} for row in range(size)]
    assert list(rows_of(batch)) == expected


def test_nanoseconds_are_cut_to_what_datetime_can_hold():
    times = pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns", "UTC"))
    batch = pa.record_batch({"ts": times, "d": pa.array([1_999, None], pa.duration("ns"))})
    first, second = rows_of(batch)
    assert first == {
        "ts": dt.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=dt.UTC),
        "d": dt.timedelta(microseconds=1),
    }
    assert type(first["ts"]) is dt.datetime
    assert second == {"ts": None, "d": None}


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array([dt.date(2024, 5, 6), None], pa.date64()), [dt.date(2024, 5, 6), None]),
        (pa.array([5, None], pa.timestamp("s")), [dt.datetime(1970, 1, 1, 0, 0, 5), None]),
        (pa.array([5, None], pa.duration("s")), [dt.timedelta(seconds=5), None]),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_times_of_any_unit_become_python_times(column, values):
    assert [row["t"] for row in rows_of(pa.record_batch({"t": column}))] == values


@pytest.mark.parametrize("unit", ["s", "us"])
def test_a_time_beyond_the_calendar_is_an_error_and_not_a_number(unit):
    with pytest.raises((OverflowError, ValueError)):
        list(rows_of(pa.record_batch({"t": pa.array([2**62], pa.timestamp(unit))})))


def test_map_gives_one_row_for_each():
    double = MapOperator(lambda row: {"total": row["amount"] * 2, "user": row["user"]}, TOTALS)
    assert emitted(double) == [{"user": "ann", "total": 2}, {"user": "bob", "total": 4}, {"user": "eve", "total": 6}]


def test_flat_map_gives_any_number_of_rows_in_order():
    def repeat(row):
        for number in range(row["amount"] - 1):
            yield {"user": row["user"], "total": number}

    assert emitted(FlatMapOperator(repeat, TOTALS)) == [
        {"user": "bob", "total": 0},
        {"user": "eve", "total": 0},
        {"user": "eve", "total": 1},
    ]


def test_flat_map_of_nothing_emits_no_batch():
    out = Emitted()
    FlatMapOperator(lambda row: [], TOTALS).process(ORDERS, 0, out)
    assert out.batches == []


def test_none_is_a_missing_value():
    assert emitted(MapOperator(lambda row: {"user": None, "total": None}, TOTALS))[0] == {"user": None, "total": None}


def test_results_take_the_declared_types():
    types = {"small": pa.int8(), "price": pa.decimal128(9, 2), "at": pa.timestamp("ms"), "tags": pa.list_(pa.string())}
    schema = pa.schema(list(types.items()))
    row = {"small": 7, "price": Decimal("1.5"), "at": dt.datetime(2024, 1, 1), "tags": ["a", None]}
    out = Emitted()
    MapOperator(lambda _: row, schema).process(ORDERS, 0, out)
    assert out.batches[0].schema == schema
    assert out.batches[0].to_pylist()[0] == {**row, "price": Decimal("1.50")}


def test_a_value_that_does_not_fit_is_named_with_row_column_type_and_value():
    bad = MapOperator(lambda row: {"user": row["user"], "total": "three" if row["amount"] == 3 else 0}, TOTALS)
    message = refused(bad)
    assert message.startswith("result 2: column 'total' is declared as int64, but got str 'three'.")
    assert "Return a value of that type, or declare another in returns={...}" in message


def test_a_number_that_overflows_the_declared_type_is_named():
    tiny = MapOperator(lambda row: {"n": row["amount"] * 100}, pa.schema([("n", pa.int8())]))
    assert "result 1: column 'n' is declared as int8, but got int 200" in refused(tiny)


@pytest.mark.parametrize(
    ("value", "data_type"),
    [
        (0.5, pa.int64()),
        (1.0, pa.int32()),
        (np.float32(0.5), pa.int64()),
        (Decimal("1.5"), pa.int64()),
        (1.5, pa.timestamp("us")),
        (dt.datetime(2024, 1, 1, 12), pa.date32()),
        ([1, 0.5], pa.list_(pa.int64())),
    ],
    ids=repr,
)
def test_a_value_that_arrow_would_cut_short_is_refused_instead(value, data_type):
    message = refused(MapOperator(lambda row: {"n": value}, pa.schema([("n", data_type)])))
    assert f"result 0: column 'n' is declared as {data_type}, but got {type(value).__name__}" in message


def test_a_missing_column_is_named():
    message = refused(MapOperator(lambda row: {"user": row["user"]}, TOTALS))
    assert "result 0 lacks the column(s) ['total']: {'user': 'ann'}" in message
    assert "use None for no value" in message


def test_an_undeclared_column_is_named():
    message = refused(MapOperator(lambda row: {**row, "total": 1}, TOTALS))
    assert "result 0 has the undeclared column(s) ['amount']" in message


def test_what_is_no_row_is_named():
    assert "result 0 is tuple ('ann', 1), but a row is a dict: return {'user': ..., 'total': ...}" in refused(
        MapOperator(lambda row: (row["user"], row["amount"]), TOTALS)
    )


@pytest.mark.parametrize("returned", [None, {"user": "ann", "total": 1}, 7])
def test_flat_map_must_return_an_iterable_of_rows(returned):
    message = refused(FlatMapOperator(lambda row: returned, TOTALS))
    assert f"flat_map must return an iterable of dicts, but returned {type(returned).__name__}" in message


@pytest.mark.parametrize("operator", [MapOperator, FlatMapOperator])
def test_an_exception_of_the_function_tells_the_row_it_was_called_with(operator):
    def fails(row):
        return [{"user": row["user"], "total": 1 // (row["amount"] - 2)}]

    with pytest.raises(ZeroDivisionError) as error:
        emitted(operator(fails, TOTALS))
    assert error.value.__notes__ == ["The function was called with the row {'user': 'bob', 'amount': 2}"]


# ---- batches ----
def test_map_batches_gets_and_returns_frames():
    operator = MapBatchesOperator(lambda frame: frame.with_columns(pl.col("amount") * 2), ORDERS.schema)
    assert emitted(operator)[0] == {"user": "ann", "amount": 2}


def test_map_batches_brings_polars_types_to_the_declared_ones():
    schema = pa.schema([("kind", pa.string()), ("n", pa.int64()), ("f", pa.float64())])
    operator = MapBatchesOperator(
        lambda frame: frame.select(
            f=pl.col("amount").cast(pl.Float32),
            kind=pl.col("user").cast(pl.Categorical),
            n=pl.col("amount").cast(pl.Int8),
        ),
        schema,
    )
    out = Emitted()
    operator.process(ORDERS, 0, out)
    assert out.batches[0].schema == schema
    assert out.batches[0].to_pylist()[0] == {"kind": "ann", "n": 1, "f": 1.0}


def test_map_batches_may_return_an_empty_frame():
    assert emitted(MapBatchesOperator(lambda frame: frame.clear(), ORDERS.schema)) == []


def test_a_frame_of_several_chunks_becomes_one_batch():
    out = Emitted()
    MapBatchesOperator(lambda frame: pl.concat([frame, frame], rechunk=False), ORDERS.schema).process(ORDERS, 0, out)
    assert [batch.num_rows for batch in out.batches] == [6]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda frame: None, "map_batches must return a polars.DataFrame, but returned NoneType"),
        (lambda frame: frame.lazy(), "map_batches must return a polars.DataFrame, but returned LazyFrame"),
        (lambda frame: frame.drop("user"), "lacks ['user']. It must have the columns ['user', 'amount']"),
        (lambda frame: frame.with_columns(x=1), "the returned frame has ['x'], which were not declared"),
        (lambda frame: frame.clear().drop("user"), "the returned frame lacks ['user']"),
        (
            lambda frame: frame.with_columns(pl.col("amount").cast(pl.String)),
            "column 'amount' is string, but int64 was declared: cast it in the function, or declare the type",
        ),
        (
            lambda frame: frame.with_columns(pl.col("amount").cast(pl.Float64)),
            "column 'amount' is double, but int64 was declared",
        ),
        (
            lambda frame: frame.with_columns(pl.lit(2**63, pl.UInt64).alias("amount")),
            "column 'amount' does not fit into the declared int64",
        ),
    ],
)  # fmt: skip
def test_a_frame_that_is_not_what_was_declared_is_refused(function, message):
    assert message in refused(MapBatchesOperator(function, ORDERS.schema))
