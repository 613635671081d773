"""The aggregates as users write them: `ps.sum("amount")`, `ps.quantile("latency", 0.99)`.

A declaration knows its columns, checks them against a schema and makes the accumulator that does the work. Its text is
part of a checkpoint's description: state of another aggregate, or with other options, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from penstock.kernels.hashing import supports
from penstock.operators.aggregation.accumulator import Accumulator
from penstock.operators.aggregation.custom import CustomAccumulator, Functions
from penstock.operators.aggregation.decimals import DecimalSumAccumulator
from penstock.operators.aggregation.distinct import DEFAULT_PRECISION, DistinctAccumulator, SketchAccumulator
from penstock.operators.aggregation.kept import KeptRowAccumulator
from penstock.operators.aggregation.lists import CollectAccumulator
from penstock.operators.aggregation.moments import DEVIATION, MEAN, VARIANCE, MomentsAccumulator
from penstock.operators.aggregation.numbers import NumberAccumulator, NumberKind
from penstock.operators.aggregation.quantiles import QuantileAccumulator
from penstock.operators.aggregation.top import TopAccumulator

Make = Callable[["Aggregate", pa.Schema], Accumulator]


@dataclass(frozen=True)
class Aggregate:
    """One column of a result."""

    name: str
    columns: tuple[str, ...]
    """What it reads."""
    make: Make
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def column(self) -> str:
        return self.columns[0]

    def accumulator(self, schema: pa.Schema) -> Accumulator:
        """For the batches of a stream; raises what is wrong with its columns."""
        for column in self.columns:
            if schema.get_field_index(column) < 0:
                raise ValueError(f"{self}: there is no column {column!r}; the stream has {schema.names}")
        return self.make(self, schema)

    def type_in(self, schema: pa.Schema) -> pa.DataType:
        """The type of the result."""
        return self.accumulator(schema).type

    def __str__(self) -> str:
        return f"{self.name}({', '.join([*self.columns, *(f'{name}={value}' for name, value in self.options)])})"


# ---- numbers ----
def count(column: str | None = None) -> Aggregate:
    """How many rows there were; of a column, how many values that are not null."""
    return Aggregate("count", () if column is None else (column,), _count)


def sum(column: str) -> Aggregate:
    """The sum of a column of numbers: int64 (uint64 for uint64), float64, or a decimal of 38 digits."""
    return Aggregate("sum", (column,), _sum)


def min(column: str) -> Aggregate:
    """The lowest value of a column. Strings are compared by their bytes, false is lower than true."""
    return Aggregate("min", (column,), _extreme)


def max(column: str) -> Aggregate:
    """The highest value of a column, likewise."""
    return Aggregate("max", (column,), _extreme)


def mean(column: str) -> Aggregate:
    """The mean of a column of numbers, as float64."""
    return Aggregate(MEAN, (column,), _moments)


def var(column: str, *, ddof: int = 1) -> Aggregate:
    """The variance of a column of numbers; that of a sample, unless `ddof` is 0."""
    return Aggregate(VARIANCE, (column,), _moments, (("ddof", _whole("ddof", ddof, 0)),))


def std(column: str, *, ddof: int = 1) -> Aggregate:
    """The standard deviation of a column of numbers; that of a sample, unless `ddof` is 0."""
    return Aggregate(DEVIATION, (column,), _moments, (("ddof", _whole("ddof", ddof, 0)),))


def quantile(column: str, q: float, *, error: float = 0.01) -> Aggregate:
    """About the value of a column of numbers below which a share of `q` lies (0.5 is the median): at most `error` off,
    as a share of the value."""
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"quantile({column}): q={q} must be from 0 to 1")
    if not 1e-4 <= error <= 0.5:
        raise ValueError(f"quantile({column}): error={error} must be from 0.0001 to 0.5")
    return Aggregate("quantile", (column,), _quantile, (("q", float(q)), ("error", error)))


# ---- values of any type ----
def first(column: str, *, by: str | None = None) -> Aggregate:
    """The value that came first, or that with the lowest value of the column `by`."""
    return Aggregate("first", _with_order(column, by), _kept)


def last(column: str, *, by: str | None = None) -> Aggregate:
    """The value that came last, or that with the highest value of the column `by`."""
    return Aggregate("last", _with_order(column, by), _kept)


def count_distinct(column: str) -> Aggregate:
    """How many different values there were. Keeps all of them."""
    return Aggregate("count_distinct", (column,), _distinct)


def approx_count_distinct(column: str, *, precision: int = DEFAULT_PRECISION) -> Aggregate:
    """About how many different values there were: HyperLogLog, of 2^precision bytes per key. With 12, two of three
    answers are within 1.6 %."""
    precision = _whole("precision", precision, 4, 18)
    return Aggregate("approx_count_distinct", (column,), _sketch, (("precision", precision),))


def top_n(column: str, n: int, *, by: str | None = None) -> Aggregate:
    """The `n` highest values, or those with the highest values of the column `by`, highest first, as a list."""
    return Aggregate("top_n", _with_order(column, by), _top, (("n", _whole("n", n, 1, 1000)),))


def collect(column: str) -> Aggregate:
    """All values, in the order in which they came, as a list."""
    return Aggregate("collect", (column,), _collect)


def user_defined(
    *columns: str,
    state: Any,
    create: Callable[[], Any],
    add: Callable[[Any, list[Any]], Any],
    merge: Callable[[Any, Any], Any],
    result: Callable[[Any], Any],
    returns: pa.DataType,
) -> Aggregate:
    """An aggregate of your own. `create()` makes a state (of the type `state`), `add(state, values)` returns it with a
    list of values added (tuples, of several columns; nulls are None), `merge(state, later)` returns two as one,
    `result(state)` a value of the Arrow type `returns`. How the stream is cut into lists must not matter."""
    if not columns:
        raise ValueError("user_defined needs at least one column")
    functions = Functions(create, add, merge, result)
    for name in ("create", "add", "merge", "result"):
        if not callable(getattr(functions, name)):
            raise TypeError(f"user_defined: {name}={getattr(functions, name)!r} is no function")
    if not isinstance(returns, pa.DataType):
        raise TypeError(f"user_defined: returns={returns!r} is no Arrow type, for example pyarrow.float64()")

    def make(aggregate: Aggregate, schema: pa.Schema) -> Accumulator:
        return CustomAccumulator(columns, functions, state, returns)

    return Aggregate("user_defined", columns, make, (("state", getattr(state, "__name__", str(state))),))


# ---- accumulators ----
def _count(aggregate: Aggregate, schema: pa.Schema) -> Accumulator:
    return NumberAccumulator(NumberKind.COUNT, aggregate.columns[0] if aggregate.columns else None, pa.int64())


def _sum(aggregate: Aggregate, schema: pa.Schema) -> Accumulator:
    kind = schema.field(aggregate.column).type
    if pat.is_decimal(kind) and kind.bit_width <= 128:
        return DecimalSumAccumulator(aggregate.column, kind.scale)
    if not _is_number(kind):
        raise TypeError(f"{aggregate}: a column of type {kind} has no sum; cast it to a number first")
    result = pa.float64() if pat.is_floating(kind) else pa.uint64() if pat.is_uint64(kind) else pa.int64()
    return NumberAccumulator(NumberKind.SUM, aggregate.column, result)


def _extreme(aggregate: Aggregate, schema: pa.Schema) -> Accumulator:
    kind = schema.field(aggregate.column).type
    if _is_number(kind) or (pat.is_temporal(kind) and not pat.is_interval(kind)):
        return NumberAccumulator(NumberKind(aggregate.name), aggregate.column, kind)
    _check_order(aggregate, kind)
    return KeptRowAccumulator(aggregate.column, kind, lowest=aggregate.name == "min", by_value=True)


def _moments(aggregate: Aggregate, schema: pa.Schema) -> Accumulator:
    _check_number(aggregate, schema)
    return MomentsAccumulator(aggregate.name, aggregate.column, dict(aggregate.options).get("ddof", 0))


def _quantile(aggregate: Aggregate, schema: pa.Schema) -> Accumulator:
    _check_number(aggregate, schema)
    options = dict(aggregate.options)
    return QuantileAccumulator(aggregate.column, options["q"], options["error"])


def _kept(aggregate: Aggregate, schema: pa.Schema) -> Accumulator:
    kind, by = schema.field(aggregate.column).type, _order_of(aggregate, schema)
    return KeptRowAccumulator(aggregate.column, kind, lowest=aggregate.name == "first", by_value=False, by=by)


def _distinct(aggregate: Aggregate, schema: pa.Schema) -> Accumulator:
    return DistinctAccumulator(aggregate.column, _hashable(aggregate, schema))


def _sketch(aggregate: Aggregate, schema: pa.Schema) -> Accumulator:
    _hashable(aggregate, schema)
    return SketchAccumulator(aggregate.column, dict(aggregate.options)["precision"])


def _top(aggregate: Aggregate, schema: pa.Schema) -> Accumulator:
    kind, by = schema.field(aggregate.column).type, _order_of(aggregate, schema)
    if by is None:
        _check_order(aggregate, kind)
    return TopAccumulator(aggregate.column, kind, dict(aggregate.options)["n"], by)


def _collect(aggregate: Aggregate, schema: pa.Schema) -> Accumulator:
    return CollectAccumulator(aggregate.column, schema.field(aggregate.column).type)


# ---- checks ----
def _is_number(kind: pa.DataType) -> bool:
    return bool(pat.is_integer(kind) or pat.is_floating(kind))


def _check_number(aggregate: Aggregate, schema: pa.Schema) -> None:
    kind = schema.field(aggregate.column).type
    if not _is_number(kind) and not pat.is_decimal(kind):
        raise TypeError(f"{aggregate}: takes numbers, not a column of type {kind}; cast it to a number first")


def _check_order(aggregate: Aggregate, kind: pa.DataType) -> None:
    if pat.is_nested(kind) or pat.is_null(kind) or pat.is_interval(kind):
        raise TypeError(
            f"{aggregate}: a column of type {kind} has no order; for other types use reduce with a function of two "
            "rows, or process"
        )


def _hashable(aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:
    kind = schema.field(aggregate.column).type
    if not supports(kind):
        raise TypeError(f"{aggregate}: values of type {kind} cannot be told apart; use one column per part of them")
    return kind


def _with_order(column: str, by: str | None) -> tuple[str, ...]:
    return (column,) if by is None else (column, by)


def _order_of(aggregate: Aggregate, schema: pa.Schema) -> tuple[str, pa.DataType] | None:
    if len(aggregate.columns) == 1:
        return None
    name = aggregate.columns[1]
    _check_order(aggregate, schema.field(name).type)
    return name, schema.field(name).type


def _whole(name: str, value: int, lowest: int, highest: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {lowest}")
    if highest is not None and value > highest:
        raise ValueError(f"{name}={value} must be at most {highest}")
    return value
