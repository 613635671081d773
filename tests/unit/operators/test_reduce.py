"""Running aggregates against Polars: every batch's updates, every final value, over restores at any parallelism."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.state.harness import Job, written

from penstock.kernels import compiled
from penstock.operators.aggregation import declare as ps
from penstock.operators.aggregation import numbers as numbers_module
from penstock.operators.aggregation.declare import Aggregate
from penstock.operators.base import Operator
from penstock.operators.conform import SchemaMismatch
from penstock.operators.fold import FoldOperator
from penstock.operators.reduce import Output, ReduceOperator, reduced_schema
from penstock.state import index as index_module
from penstock.state.tables import StateMismatch

pytestmark = pytest.mark.usefixtures("every_backend")

SCHEMA = pa.schema([("user", pa.string()), ("amount", pa.int64()), ("price", pa.float64()), ("day", pa.date32())])
AGGREGATES = {
    "n": ps.count(),
    "known": ps.count("amount"),
    "total": ps.sum("amount"),
    "low": ps.min("amount"),
    "high": ps.max("amount"),
    "spent": ps.sum("price"),
    "cheapest": ps.min("price"),
    "dearest": ps.max("price"),
    "first_day": ps.min("day"),
    "last_day": ps.max("day"),
}

Row = tuple[Any, int | None, float | None, dt.date | None]


def rows(key: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Row]]:
    """Prices are multiples of a quarter: their sums are exact in any order."""
    price = st.integers(-40, 40).map(lambda quarters: quarters / 4)
    day = st.dates(dt.date(1960, 1, 1), dt.date(2030, 1, 1))
    row = st.tuples(key, st.none() | st.integers(-1000, 1000), st.none() | price, st.none() | day)
    return st.lists(row, min_size=1, max_size=15)


STRING = pa.string()


def batch(records: list[Row], key: pa.DataType = STRING) -> pa.RecordBatch:
    schema = SCHEMA.set(0, pa.field("user", key))
    return pa.record_batch([list(column) for column in zip(*records, strict=True)], schema=schema)


def job(
    parallelism: int = 1, aggregates: Mapping[str, Aggregate] = AGGREGATES, schema: pa.Schema = SCHEMA, **more: Any
) -> Job:
    return Job(lambda: ReduceOperator(("user",), aggregates, schema), ("user",), parallelism, **more)


def expected(records: list[Row], key: pa.DataType) -> dict[Any, dict[str, Any]]:
    """What Polars makes of all rows so far."""
    frame = (
        pl.DataFrame(batch(records, key))
        .group_by("user")
        .agg(
            n=pl.len().cast(pl.Int64),
            known=pl.col("amount").count().cast(pl.Int64),
            total=pl.when(pl.col("amount").count() > 0).then(pl.col("amount").sum()),
            low=pl.col("amount").min(),
            high=pl.col("amount").max(),
            spent=pl.when(pl.col("price").count() > 0).then(pl.col("price").sum()),
            cheapest=pl.col("price").min(),
            dearest=pl.col("price").max(),
            first_day=pl.col("day").min(),
            last_day=pl.col("day").max(),
        )
    )
    return {row["user"]: row for row in frame.to_dicts()}


@pytest.fixture(params=["numpy", "compiled"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, request.param == "compiled")


def use(patch: pytest.MonkeyPatch, use_compiled: bool) -> None:
    for module in (numbers_module, index_module):
        patch.setattr(module, "compiled", lambda _rows: compiled if use_compiled else None)


KEYS = [
    (pa.string(), st.sampled_from(["a", "b", "c", None])),
    (pa.int64(), st.integers(-2, 2)),
    (pa.int16(), st.none() | st.integers(-2, 2)),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.sampled_from([dt.date(2024, 1, 1), dt.date(1950, 1, 1)])),
]


@given(st.data(), st.sampled_from(KEYS), st.booleans(), st.integers(1, 3), st.integers(1, 3))
def test_every_update_and_every_restore_agrees_with_polars(
    data: st.DataObject, keys: tuple[pa.DataType, st.SearchStrategy[Any]], use_compiled: bool, before: int, after: int
) -> None:
    kind, values = keys
    schema = SCHEMA.set(0, pa.field("user", kind))
    batches = data.draw(st.lists(rows(values), min_size=1, max_size=5))
    cut = data.draw(st.integers(0, len(batches)))
    with pytest.MonkeyPatch.context() as patch:
        use(patch, use_compiled)
        current, so_far = job(before, schema=schema), list[Row]()
        for number, records in enumerate(batches):
            if number == cut:
                current = job(after, schema=schema, restored=current.snapshot())
            so_far += records
            wanted = expected(so_far, kind)
            updates = current.feed(batch(records, kind)).taken()
            assert {row["user"]: row for row in updates} == {record[0]: wanted[record[0]] for record in records}
            assert len(updates) == len({record[0] for record in records})


@given(st.lists(rows(st.sampled_from(["a", "b", None])), min_size=1, max_size=4), st.integers(1, 3))
def test_a_changelog_says_what_a_row_was_and_what_it_became(batches: list[list[Row]], parallelism: int) -> None:
    def changelog() -> Operator:
        return ReduceOperator(("user",), AGGREGATES, SCHEMA, Output.CHANGELOG)

    current = Job(changelog, ("user",), parallelism)
    known: dict[Any, dict[str, Any]] = {}
    for records in batches:
        changes = current.feed(batch(records)).taken()
        for place, change in enumerate(changes):
            kind = change.pop("op")
            if kind == "update_before":
                assert change == known.pop(change["user"])
                assert (changes[place + 1]["op"], changes[place + 1]["user"]) == ("update_after", change["user"])
            else:
                assert change["user"] not in known
                known[change["user"]] = change
        assert {change["user"] for change in changes} == {record[0] for record in records}
    assert known == expected([record for records in batches for record in records], pa.string())


@pytest.mark.usefixtures("path")
def test_updates_come_in_the_order_in_which_keys_first_occur() -> None:
    records: list[Row] = [(key, 1, 1.0, None) for key in "bacab"]
    current = job()
    for _ in range(2):
        assert [row["user"] for row in current.feed(batch(records)).taken()] == ["b", "a", "c"]


@pytest.mark.usefixtures("path")
def test_nan_counts_as_higher_than_all_numbers() -> None:
    records: list[Row] = [
        ("a", 1, float("nan"), None),
        ("b", 1, 2.0, None),
        ("b", 1, float("nan"), None),
        ("b", 1, 1.0, None),
    ]
    found = {
        row["user"]: row
        for row in job(aggregates={"low": ps.min("price"), "high": ps.max("price")}).feed(batch(records)).taken()
    }
    assert np.isnan([found["a"]["low"], found["a"]["high"], found["b"]["high"]]).all()
    assert found["b"]["low"] == 1.0


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint8(), pa.uint64(), pa.float32(), pa.float16(), pa.timestamp("ns", "UTC")]
)
def test_columns_of_every_width_are_aggregated_in_their_own_type(kind: pa.DataType) -> None:
    schema = pa.schema([("user", pa.string()), ("x", kind)])
    wanted = {"low": ps.min("x"), "high": ps.max("x")}
    values = (
        pa.array([3, 1, 2], pa.int64()).cast(kind)
        if kind != pa.float16()
        else pa.array(np.array([3, 1, 2], np.float16))
    )
    current = Job(lambda: ReduceOperator(("user",), wanted, schema), ("user",))
    current.feed(pa.record_batch([pa.array(["a"] * 3), values], schema=schema))
    (out,) = current.out[0].batches
    assert out.schema == pa.schema([("user", pa.string()), ("low", kind), ("high", kind)])
    assert (out.column("low")[0], out.column("high")[0]) == (values[1], values[0])


@given(st.lists(rows(st.sampled_from(["a", "b", None])), min_size=2, max_size=5), st.booleans())
def test_what_happens_after_a_capture_never_leaks_into_it(batches: list[list[Row]], use_compiled: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        use(patch, use_compiled)
        current = job().feed(batch(batches[0]))
        at_once = [bytes(part.read()) for part in current.snapshot()]
        captured = current.capture()
        current.feed(*map(batch, batches[1:]))
        assert [bytes(part.read()) for part in written(captured)] == at_once


def test_an_unsuitable_aggregate_is_refused_with_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"sum\(user\): a column of type string has no sum"):
        reduced_schema(SCHEMA, ("user",), {"x": ps.sum("user")})
    with pytest.raises(TypeError, match=r"min\(tags\): a column of type list<item: string> has no order"):
        reduced_schema(SCHEMA.append(pa.field("tags", pa.list_(pa.string()))), ("user",), {"x": ps.min("tags")})
    with pytest.raises(ValueError, match=r"max\(none\): there is no column 'none'; the stream has \['user', "):
        reduced_schema(SCHEMA, ("user",), {"x": ps.max("none")})
    with pytest.raises(ValueError, match="the aggregate 'user' has the name of another column"):
        reduced_schema(SCHEMA, ("user",), {"user": ps.count()})
    with pytest.raises(ValueError, match="needs at least one aggregate"):
        reduced_schema(SCHEMA, ("user",), {})
    with pytest.raises(ValueError, match="a changelog has a column 'op' of its own"):
        reduced_schema(pa.schema([("op", pa.int64())]), ("op",), {"n": ps.count()}, Output.CHANGELOG)


def test_state_of_other_aggregates_is_refused_naming_both() -> None:
    stored = job(aggregates={"x": ps.sum("amount")}).feed(batch([("a", 1, 1.0, None)])).snapshot()
    with pytest.raises(
        StateMismatch, match=r"x=sum\(amount\): int64, but declared are the aggregates x=max\(amount\): int64"
    ):
        job(aggregates={"x": ps.max("amount")}, restored=stored)


# ---- a function of two rows ----
def longest(result: Any, row: Any) -> Any:
    return {
        "user": row.user,
        "amount": result.amount + row.amount,
        "price": max(result.price, row.price),
        "day": row.day,
    }


def fold(parallelism: int = 1, function: Any = longest, **more: Any) -> Job:
    def make() -> Operator:
        return FoldOperator(function, ("user",), SCHEMA)

    return Job(make, ("user",), parallelism, **more)


@given(
    st.lists(rows(st.sampled_from(["a", "b", None])), min_size=1, max_size=5),
    st.integers(1, 3),
    st.integers(1, 3),
    st.data(),
)
def test_a_function_of_two_rows_folds_all_rows_of_a_key(
    batches: list[list[Row]], before: int, after: int, data: st.DataObject
) -> None:
    batches = [[(key, amount or 0, price or 0.0, day) for key, amount, price, day in records] for records in batches]
    cut = data.draw(st.integers(0, len(batches)))
    current, results = fold(before), dict[Any, Row]()
    for number, records in enumerate(batches):
        if number == cut:
            captured = current.capture()
            current.feed(batch(records))
            current = fold(after, restored=written(captured))
        for key, amount, price, day in records:
            old = results.get(key)
            results[key] = (key, amount, price, day) if old is None else (key, old[1] + amount, max(old[2], price), day)  # type: ignore[operator, type-var]
        updates = current.feed(batch(records)).taken()
        assert {row["user"]: tuple(row.values()) for row in updates} == {
            record[0]: results[record[0]] for record in records
        }


def test_a_fold_may_return_one_of_its_rows() -> None:
    records: list[Row] = [("a", 1, 1.0, None), ("a", 9, 2.0, None), ("a", 5, 3.0, None)]
    current = fold(function=lambda result, row: max(result, row, key=lambda one: one.amount))
    assert [row["amount"] for row in current.feed(batch(records)).taken()] == [9]


def test_a_fold_that_returns_no_row_of_the_stream_is_refused() -> None:
    records: list[Row] = [("a", 1, 1.0, None), ("a", 9, 2.0, None)]
    with pytest.raises(SchemaMismatch, match="price"):
        fold(function=lambda result, row: {"user": "a", "amount": 1}).feed(batch(records))


def test_an_error_in_a_fold_names_both_rows() -> None:
    def fails(result: Any, row: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        fold(function=fails).feed(batch([("a", 1, 1.0, None), ("a", 9, 2.0, None)]))
    assert "amount=1" in caught.value.__notes__[0]
    assert "amount=9" in caught.value.__notes__[0]
