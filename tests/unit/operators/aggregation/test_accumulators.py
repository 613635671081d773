"""Every accumulator against Polars: rows added, accumulators merged, slots reset and taken through a checkpoint, in any
order, by NumPy and by the compiled kernels."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels import compiled
from penstock.operators.aggregation import chains, declare, distinct, moments, numbers
from penstock.operators.aggregation.accumulator import Accumulator
from penstock.operators.aggregation.declare import Aggregate
from penstock.state import index as index_module

SCHEMA = pa.schema(
    [
        ("i", pa.int32()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("d", pa.decimal128(12, 2)),
        ("t", pa.timestamp("us", "UTC")),
        ("b", pa.bool_()),
    ]
)
Row = tuple[Any, ...]
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-50, 50),
        st.none() | st.integers(-40, 40).map(lambda quarters: quarters / 4),
        st.none() | st.sampled_from(["", "a", "ab", "b", "ä", "z"]),
        st.none() | st.decimals(Decimal("-9999999999.99"), Decimal("9999999999.99"), places=2),
        st.none()
        | st.datetimes(dt.datetime(1950, 1, 1), dt.datetime(2050, 1, 1)).map(lambda t: t.replace(tzinfo=dt.UTC)),
        st.none() | st.booleans(),
    ),
    max_size=12,
)


def frame(rows: list[Row]) -> pl.DataFrame:
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    return pl.DataFrame(
        pa.table([pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=True)], schema=SCHEMA)
    )


def known(rows: list[Row], column: str) -> list[Any]:
    place = SCHEMA.get_field_index(column)
    return [row[place] for row in rows if row[place] is not None]


def exact_sum(rows: list[Row]) -> Decimal | None:
    return sum(known(rows, "d"), Decimal(0)) if known(rows, "d") else None


def median(rows: list[Row]) -> float | None:
    """The lower one."""
    values = sorted(known(rows, "f"))
    return values[(len(values) - 1) // 2] if values else None


def tally(counts: dict[str, int], pairs: list[Any]) -> dict[str, int]:
    for pair in pairs:
        counts[str(pair)] = counts.get(str(pair), 0) + 1
    return counts


def tallied(counts: dict[str, int], later: dict[str, int]) -> dict[str, int]:
    for pair, count in later.items():
        counts[pair] = counts.get(pair, 0) + count
    return counts


def single(expression: pl.Expr) -> Callable[[list[Row]], Any]:
    return lambda rows: frame(rows).select(expression.alias("x"))["x"].to_list()[0]


def total(column: str) -> pl.Expr:
    return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum())


def by(order: str, value: str, *, lowest: bool) -> Callable[[list[Row]], Any]:
    """The value of the row with the lowest (the earliest of equals) or highest (the latest of equals) order."""

    def of(rows: list[Row]) -> Any:
        ranked = frame(rows).drop_nulls([order, value]).with_row_index("place").sort([order, "place"])
        return None if ranked.is_empty() else ranked[value].to_list()[0 if lowest else -1]

    return of


def top(n: int, value: str, *order: str) -> Callable[[list[Row]], Any]:
    def of(rows: list[Row]) -> Any:
        there = frame(rows).drop_nulls(list({*order, value})).with_row_index("place")
        return there.sort([*order, "place"], descending=[True] * len(order) + [False])[value].to_list()[:n]

    return of


def where(answer: Callable[[list[Row]], Any]) -> Callable[[list[Row]], Any]:
    """The same of the rows in which `b` is true."""
    return lambda rows: answer([row for row in rows if row[-1]])


CASES: dict[str, tuple[Aggregate, Callable[[list[Row]], Any]]] = {
    "count": (declare.count(), len),
    "count of a column": (declare.count("s"), single(pl.col("s").count())),
    "sum": (declare.sum("i"), single(total("i").cast(pl.Int64))),
    "sum of floats": (declare.sum("f"), single(total("f"))),
    "sum of decimals": (declare.sum("d"), exact_sum),
    "min": (declare.min("i"), single(pl.col("i").min())),
    "max of floats": (declare.max("f"), single(pl.col("f").max())),
    "min of times": (declare.min("t"), single(pl.col("t").min())),
    "min of strings": (declare.min("s"), single(pl.col("s").min())),
    "max of strings": (declare.max("s"), single(pl.col("s").max())),
    "max of decimals": (declare.max("d"), single(pl.col("d").max())),
    "max of booleans": (declare.max("b"), single(pl.col("b").max())),
    "mean": (declare.mean("f"), single(pl.col("f").mean())),
    "mean of decimals": (declare.mean("d"), single(pl.col("d").cast(pl.Float64).mean())),
    "var": (declare.var("i"), single(pl.col("i").var())),
    "var of all": (declare.var("f", ddof=0), single(pl.col("f").var(ddof=0))),
    "std": (declare.std("f"), single(pl.col("f").std())),
    "first": (declare.first("s"), single(pl.col("s").drop_nulls().first())),
    "last": (declare.last("d"), single(pl.col("d").drop_nulls().last())),
    "first by": (declare.first("s", by="t"), by("t", "s", lowest=True)),
    "last by": (declare.last("i", by="f"), by("f", "i", lowest=False)),
    "count_distinct": (declare.count_distinct("i"), single(pl.col("i").drop_nulls().n_unique())),
    "count_distinct of strings": (declare.count_distinct("s"), single(pl.col("s").drop_nulls().n_unique())),
    "count_distinct of decimals": (declare.count_distinct("d"), single(pl.col("d").drop_nulls().n_unique())),
    "approx_count_distinct of few": (declare.approx_count_distinct("t"), single(pl.col("t").drop_nulls().n_unique())),
    "top_n": (declare.top_n("f", 3), top(3, "f", "f")),
    "top_n by": (declare.top_n("s", 2, by="i"), top(2, "s", "i")),
    "top_n by two columns": (declare.top_n("i", 2, by=("s", "f")), top(2, "i", "s", "f")),
    "count where": (declare.count(where="b"), where(len)),
    "count of a column where": (declare.count("s", where="b"), where(single(pl.col("s").count()))),
    "sum where": (declare.sum("i", where="b"), where(single(total("i").cast(pl.Int64)))),
    "max where": (declare.max("f", where="b"), where(single(pl.col("f").max()))),
    "mean where": (declare.mean("f", where="b"), where(single(pl.col("f").mean()))),
    "last by where": (declare.last("i", by="f", where="b"), where(by("f", "i", lowest=False))),
    "count_distinct where": (
        declare.count_distinct("s", where="b"),
        where(single(pl.col("s").drop_nulls().n_unique())),
    ),
    "top_n where": (declare.top_n("f", 3, where="b"), where(top(3, "f", "f"))),
    "collect where": (declare.collect("s", where="b"), where(single(pl.col("s").drop_nulls().implode()))),
    "quantile where": (declare.quantile("f", 0.5, where="b"), where(median)),
    "collect": (declare.collect("s"), single(pl.col("s").drop_nulls().implode())),
    "quantile": (declare.quantile("f", 0.5), median),
    "user_defined": (
        declare.user_defined(
            "i",
            "f",
            state=dict[str, int],
            create=dict,
            add=tally,
            merge=tallied,
            result=lambda counts: max(counts.values(), default=0),
            returns=pa.int64(),
        ),
        lambda rows: max(Counter((row[0], row[1]) for row in rows).values(), default=0),
    ),
}


@dataclass
class Tracked:
    """An accumulator, and all rows that each of its slots should know of."""

    aggregate: Aggregate
    rows: dict[str, list[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.accumulator: Accumulator = self.aggregate.accumulator(SCHEMA)
        self.slots: dict[str, int] = {}

    def slot(self, key: str) -> int:
        self.rows.setdefault(key, [])
        return self.slots.setdefault(key, len(self.slots))

    def add(self, keys: list[str], rows: list[Row]) -> None:
        pairs = list(zip(keys, rows, strict=False))
        if not pairs:
            return
        slots = np.array([self.slot(key) for key, _ in pairs], np.int64)
        batch = frame([row for _, row in pairs]).to_arrow().cast(SCHEMA).combine_chunks().to_batches()[0]
        self.accumulator.add(batch, slots, len(self.slots))
        for key, row in pairs:
            self.rows[key].append(row)

    def merge(self, other: Tracked) -> None:
        keys = list(other.slots)[::-1]
        if keys:
            theirs = np.array([other.slots[key] for key in keys], np.int64)
            slots = np.array([self.slot(key) for key in keys], np.int64)
            self.accumulator.merge(other.accumulator, theirs, slots, len(self.slots))
            for key in keys:
                self.rows[key] += other.rows[key]

    def reset(self, key: str) -> None:
        if key in self.slots:
            self.accumulator.reset(np.array([self.slots[key]], np.int64))
            self.rows[key] = []

    def stored(self) -> tuple[dict[str, list[Row]], Callable[[], Tracked]]:
        """What is known now, and what a restore of it will know."""
        keys = list(self.slots)[::-1]
        slots = np.array([self.slots[key] for key in keys], np.int64)
        taken = [array[slots].copy() for array in self.accumulator.arrays]
        columns_of = self.accumulator.frozen()

        def restored() -> Tracked:
            other = Tracked(self.aggregate)
            columns = columns_of(taken)
            assert [column.type for column in columns] == list(other.accumulator.stored.values())
            places = np.array([other.slot(key) for key in keys], np.int64)
            other.accumulator.put(places, columns, len(keys))
            return other

        return {key: list(rows) for key, rows in self.rows.items()}, restored

    def check(self, answer: Callable[[list[Row]], Any]) -> None:
        error = 0.0101 if self.aggregate.name == "quantile" else 1e-9
        wanted = [answer(self.rows[key]) for key in self.slots]
        same(self.accumulator.results(slice(0, len(self.slots))), wanted, error)
        some = list(self.slots.values())[::-2]
        same(self.accumulator.results(np.array(some, np.int64)), [wanted[slot] for slot in some], error)


def same(column: pa.Array, wanted: list[Any], error: float) -> None:
    found = column.to_pylist()
    assert [type(value) for value in found] == [type(value) for value in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, rel=error, abs=1e-9) if isinstance(other, float) else one == other


STEP = st.one_of(
    st.tuples(st.just("add"), st.lists(st.sampled_from("abc"), max_size=12), ROWS),
    st.tuples(st.just("merge"), st.lists(st.sampled_from("bcd"), max_size=12), ROWS),
    st.tuples(st.just("reset"), st.sampled_from("abcd"), st.none()),
    st.tuples(st.just("restore"), st.none(), st.none()),
)


def use(patch: pytest.MonkeyPatch, use_compiled: bool) -> None:
    for module in (numbers, moments, distinct, chains, index_module):
        patch.setattr(module, "compiled", lambda _rows: compiled if use_compiled else None)


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=40)
@given(steps=st.lists(STEP, max_size=6), use_compiled=st.booleans())
def test_an_accumulator_knows_what_polars_knows(case: str, steps: list[Any], use_compiled: bool) -> None:
    aggregate, answer = CASES[case]
    with pytest.MonkeyPatch.context() as patch:
        use(patch, use_compiled)
        tracked = Tracked(aggregate)
        for kind, keys, rows in steps:
            if kind == "add":
                tracked.add(keys, rows)
            elif kind == "merge":
                other = Tracked(aggregate)
                other.add(keys, rows)
                tracked.merge(other)
            elif kind == "reset":
                tracked.reset(keys)
            else:
                known, restored = tracked.stored()
                tracked.add(list("abc"), [(1, 1.0, "zz", Decimal(1), None, True)] * 3)  # after the capture
                tracked = restored()
                tracked.rows = known
            tracked.check(answer)


def column_of(values: Any, name: str = "x") -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(values)})


def added(aggregate: Aggregate, batch: pa.RecordBatch, slots: Any = None) -> Accumulator:
    accumulator = aggregate.accumulator(batch.schema)
    slots = np.zeros(batch.num_rows, np.int64) if slots is None else slots
    accumulator.add(batch, slots, int(slots.max()) + 1)
    return accumulator


@pytest.mark.parametrize("precision", [6, 12, 14])
@pytest.mark.parametrize("distinct_values", [10, 1_000, 100_000])
def test_the_estimated_number_of_values_is_within_its_standard_error(precision: int, distinct_values: int) -> None:
    """Over 20 slots: the mean error is far below that of one, and no single one is beyond five times it."""
    random = np.random.default_rng(7)
    slots = np.repeat(np.arange(20), distinct_values)
    values = random.integers(0, 1 << 62, len(slots))
    sketch = added(declare.approx_count_distinct("x", precision=precision), column_of(values), slots)
    errors = sketch.results(slice(0, 20)).to_numpy() / distinct_values - 1
    standard = 1.04 / 2 ** (precision / 2)
    assert abs(errors.mean()) < standard
    assert abs(errors).max() < 5 * standard


def test_values_that_come_again_do_not_change_the_estimate() -> None:
    batch = column_of([f"user-{number}" for number in range(500)])
    sketch = added(declare.approx_count_distinct("x"), batch)
    before = sketch.results(slice(0, 1)).to_pylist()
    sketch.add(batch, np.zeros(500, np.int64), 1)
    assert sketch.results(slice(0, 1)).to_pylist() == before


@pytest.mark.parametrize("q", [0.0, 0.01, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("error", [0.001, 0.01, 0.1])
def test_a_quantile_is_off_by_no_more_than_its_error(q: float, error: float) -> None:
    random = np.random.default_rng(11)
    values = np.concatenate([random.lognormal(0, 4, 20_000), -random.lognormal(2, 1, 5_000), np.zeros(100)])
    random.shuffle(values)
    sketch = added(declare.quantile("x", q, error=error), column_of(values))
    wanted = np.sort(values)[int(np.floor(q * (len(values) - 1)))]
    assert sketch.results(slice(0, 1)).to_pylist()[0] == pytest.approx(wanted, rel=error * 1.0001, abs=0)


def test_infinities_are_the_ends_of_a_histogram_and_nan_is_beyond() -> None:
    values = [-np.inf, -1.0, 0.0, np.inf, np.nan]
    found = [
        added(declare.quantile("x", q), column_of(values)).results(slice(0, 1)).to_pylist()[0]
        for q in (0, 0.5, 0.75, 1)
    ]
    assert found[:3] == [-np.inf, 0.0, np.inf]
    assert np.isnan(found[3])


def test_a_variance_keeps_its_digits_far_from_zero() -> None:
    values = np.tile([1e9 + 1, 1e9 + 2, 1e9 + 3], 1000)
    accumulator = added(declare.var("x", ddof=0), column_of(values[:1500]))
    accumulator.merge(added(declare.var("x", ddof=0), column_of(values[1500:])), np.array([0]), np.array([0]), 1)
    assert accumulator.results(slice(0, 1)).to_pylist() == [pytest.approx(2 / 3, rel=1e-6)]


def test_a_sum_of_decimals_has_more_digits_than_its_column() -> None:
    most = Decimal("99999999.99")
    values = pa.array([most] * 1000 + [-most] * 10, pa.decimal128(10, 2))
    assert added(declare.sum("x"), pa.record_batch({"x": values})).results(slice(0, 1)).to_pylist() == [most * 990]


@pytest.mark.parametrize(
    "aggregate", [declare.collect("x"), declare.max("x"), declare.top_n("x", 2), declare.count_distinct("x")]
)
def test_what_no_slot_keeps_any_more_is_left_behind(aggregate: Aggregate) -> None:
    """A slot that is filled and reset again and again: memory stays bounded, and the other slot keeps what it has."""
    batch = pa.record_batch({"x": [f"{number:04}" for number in range(3000)]})
    accumulator = aggregate.accumulator(batch.schema)
    accumulator.add(pa.record_batch({"x": ["kept"]}), np.array([0]), 1)
    kept = accumulator.results(slice(0, 1))
    for _ in range(20):
        accumulator.add(batch, np.ones(3000, np.int64), 2)
        accumulator.reset(np.array([1]))
        assert accumulator.results(slice(0, 1)) == kept
    pile: Any = getattr(accumulator, "_pile", None) or accumulator._pairs.values  # type: ignore[attr-defined]
    assert len(pile) < 20_000


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: declare.quantile("x", 2), "q=2 must be from 0 to 1"),
        (lambda: declare.quantile("x", 0.5, error=2), "error=2 must be from"),
        (lambda: declare.top_n("x", 0), "n=0 must be a whole number of at least 1"),
        (lambda: declare.approx_count_distinct("x", precision=30), "precision=30 must be at most 18"),
        (lambda: declare.var("x", ddof=-1), "ddof=-1 must be"),
        (lambda: declare.mean("s").type_in(SCHEMA), r"mean\(s\): takes numbers, not a column of type string"),
        (lambda: declare.count(where="s").type_in(SCHEMA), r"count\(where=s\): where='s' must be a column of booleans"),
        (lambda: declare.first("s", by="l").type_in(SCHEMA.append(pa.field("l", pa.list_(pa.int8())))), "has no order"),
        (lambda: declare.count_distinct("l").type_in(pa.schema([("l", pa.list_(pa.int8()))])), "cannot be told apart"),
    ],
)
def test_what_cannot_be_aggregated_is_refused_with_a_reason(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()
