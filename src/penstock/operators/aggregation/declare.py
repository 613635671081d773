"""The aggregates as users write them: `ps.sum("amount")`, `ps.quantile("latency", 0.99)`.

A declaration knows its columns, checks them against a schema and makes the accumulator that does the work. Its text is
part of a checkpoint's description: state of another aggregate, or with other options, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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
from penstock.operators.aggregation.where import WhereAccumulator

Make = Callable[["Aggregate", pa.Schema], Accumulator]


@dataclass(frozen=True)
class Aggregate:
    """One column of a result."""

    name: str
    columns: tuple[str, ...]
    """What it reads."""
    make: Make
    options: tuple[tuple[str, Any], ...] = ()
    where: str | None = None
    """A column of booleans: only rows in which it is true count."""

    @property
    def column(self) -> str:
        return self.columns[0]

    @property
    def reads(self) -> tuple[str, ...]:
        """All columns that it needs."""
        return self.columns if self.where is None else (*self.columns, self.where)

    def accumulator(self, schema: pa.Schema) -> Accumulator:
        """For the batches of a stream; raises what is wrong with its columns."""
        for column in self.reads:
            if schema.get_field_index(column) < 0:
                raise ValueError(f"{self}: there is no column {column!r}; the stream has {schema.names}")
        if self.where is None:
            return self.make(self, schema)
        if not pat.is_boolean(schema.field(self.where).type):
            kind = schema.field(self.where).type
            raise TypeError(f"{self}: where={self.where!r} must be a column of booleans, not of type {kind}")
        shown = self.columns or (self.where,)  # to count rows is to count where the condition holds
        return WhereAccumulator(self.make(replace(self, columns=shown, where=None), schema), shown, self.where)

    def type_in(self, schema: pa.Schema) -> pa.DataType:
        """The type of the result."""
        return self.accumulator(schema).type

    def __str__(self) -> str:
        options = [*self.options, *([] if self.where is None else [("where", self.where)])]
        return f"{self.name}({', '.join([*self.columns, *(f'{name}={value}' for name, value in options)])})"


# ---- numbers ----
def count(column: str | None = None, *, where: str | None = None) -> Aggregate:
    """How many rows there were; of a column, how many values that are not null. As with all aggregates, `where` names a
    column of booleans: only rows in which it is true count."""
    return Aggregate("count", () if column is None else (column,), _count, where=where)


def sum(column: str, *, where: str | None = None) -> Aggregate:
    """The sum of a column of numbers: int64 (uint64 for uint64), float64, or a decimal of 38 digits."""
    return Aggregate("sum", (column,), _sum, where=where)


def min(column: str, *, where: str | None = None) -> Aggregate:
    """The lowest value of a column. Strings are compared by their bytes, false is lower than true."""
    return Aggregate("min", (column,), _extreme, where=where)


def max(column: str, *, where: str | None = None) -> Aggregate:
    """The highest value of a column, likewise."""
    return Aggregate("max", (column,), _extreme, where=where)


def mean(column: str, *, where: str | None = None) -> Aggregate:
    """The mean of a column of numbers, as float64."""
    return Aggregate(MEAN, (column,), _moments, where=where)


def var(column: str, *, ddof: int = 1, where: str | None = None) -> Aggregate:
    """The variance of a column of numbers; that of a sample, unless `ddof` is 0."""
    return Aggregate(VARIANCE, (column,), _moments, (("ddof", _whole("ddof", ddof, 0)),), where)


def std(column: str, *, ddof: int = 1, where: str | None = None) -> Aggregate:
    """The standard deviation of a column of numbers; that of a sample, unless `ddof` is 0."""
    return Aggregate(DEVIATION, (column,), _moments, (("ddof", _whole("ddof", ddof, 0)),), where)


def quantile(column: str, q: float, *, error: float = 0.01, where: str | None = None) -> Aggregate:
    """About the value of a column of numbers below which a share of `q` lies (0.5 is the median): at most `error` off,
    as a share of the value."""
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"quantile({column}): q={q} must be from 0 to 1")
    if not 1e-4 <= error <= 0.5:
        raise ValueError(f"quantile({column}): error={error} must be from 0.0001 to 0.5")
    return Aggregate("quantile", (column,), _quantile, (("q", float(q)), ("error", error)), where)


# ---- values of any type ----
def first(column: str, *, by: str | None = None, where: str | None = None) -> Aggregate:
    """The value that came first, or that with the lowest value of the column `by`."""
    return Aggregate("first", _with_order(column, by), _kept, where=where)


def last(column: str, *, by: str | None = None, where: str | None = None) -> Aggregate:
    """The value that came last, or that with the highest value of the column `by`."""
    return Aggregate("last", _with_order(column, by), _kept, where=where)


def count_distinct(column: str, *, where: str | None = None) -> Aggregate:
    """How many different values there were. Keeps all of them."""
    return Aggregate("count_distinct", (column,), _distinct, where=where)


def approx_count_distinct(column: str, *, precision: int = DEFAULT_PRECISION, where: str | None = None) -> Aggregate:
    """About how many different values there were: HyperLogLog, of 2^precision bytes per key. With 12, two of three
    answers are within 1.6 %."""
    precision = _whole("precision", precision, 4, 18)
    return Aggregate("approx_count_distinct", (column,), _sketch, (("precision", precision),), where)


def top_n(column: str, n: int, *, by: str | tuple[str, ...] | None = None, where: str | None = None) -> Aggregate:
    """The `n` highest values, or those with the highest values of the column `by`, highest first, as a list. Of several
    columns of `by`, each decides between equals of those before it."""
    order = () if by is None else (by,) if isinstance(by, str) else tuple(by)
    return Aggregate("top_n", (column, *order), _top, (("n", _whole("n", n, 1, 1000)),), where)


def collect(column: str, *, where: str | None = None) -> Aggregate:
    """All values, in the order in which they came, as a list."""
    return Aggregate("collect", (column,), _collect, where=where)


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
    kind = schema.field(aggregate.column).type
    by = [(name, schema.field(name).type) for name in aggregate.columns[1:]]
    for ordered in [kind for _, kind in by] or [kind]:
        _check_order(aggregate, ordered)
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
