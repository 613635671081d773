"""The aggregates of operator cases, and the same figures by Polars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import polars as pl
import pyarrow as pa

from penstock.operators.aggregation import declare as agg
from penstock.operators.aggregation.declare import Aggregate
from penstock.simulation.story import Violation

Figures = Mapping[str, Any]
"""Aggregates by name, as keyword arguments beside others."""


def _squares() -> Aggregate:
    return agg.user_defined(
        "x",
        state=int,
        create=int,
        add=lambda state, values: state + sum(value * value for value in values if value is not None),
        merge=lambda state, later: state + later,
        result=lambda state: state,
        returns=pa.int64(),
    )


NUMBERS: Final[Figures] = {
    "n": agg.count(),
    "xs": agg.count("x"),
    "total": agg.sum("x"),
    "sum_y": agg.sum("y"),
    "amount": agg.sum("price"),
    "low": agg.min("x"),
    "high": agg.max("y"),
    "mean": agg.mean("x"),
    "variance": agg.var("y"),
    "deviation": agg.std("x", ddof=0),
    "squares": _squares(),
}
VALUES: Final[Figures] = {
    "n": agg.count(),
    "ids": agg.collect("id"),
    "low_word": agg.min("word"),
    "high_word": agg.max("word"),
    "first_word": agg.first("word", by="id"),
    "last_x": agg.last("x", by="id"),
    "words": agg.count_distinct("word"),
    "top": agg.top_n("x", 2),
    "latest": agg.top_n("x", 3, by="id"),
}
SKETCHES: Final[Figures] = {
    "n": agg.count(),
    "about": agg.approx_count_distinct("x"),
    "median": agg.quantile("y", 0.5),
}
IN_ORDER: Final[Figures] = {
    "n": agg.count(),
    "ids": agg.collect("id"),
    "first_x": agg.first("x"),
    "last_word": agg.last("word"),
}
"""Those that depend on the order in which records come."""


def _sum(column: str) -> pl.Expr:
    """Of nothing but nulls there is none."""
    return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum())


def _ordered(column: str) -> pl.Expr:
    return pl.col(column).sort_by("id").drop_nulls()


_POLARS: Final[Mapping[str, pl.Expr]] = {
    "n": pl.len().cast(pl.Int64),
    "xs": pl.col("x").count().cast(pl.Int64),
    "total": _sum("x"),
    "sum_y": _sum("y"),
    "amount": _sum("price"),
    "low": pl.col("x").min(),
    "high": pl.col("y").max(),
    "mean": pl.col("x").mean(),
    "variance": pl.col("y").var(),
    "deviation": pl.col("x").std(ddof=0),
    "squares": (pl.col("x") * pl.col("x")).sum(),
    "ids": pl.col("id").sort(),
    "low_word": pl.col("word").min(),
    "high_word": pl.col("word").max(),
    "first_word": _ordered("word").first(),
    "last_x": _ordered("x").last(),
    "words": pl.col("word").drop_nulls().n_unique().cast(pl.Int64),
    "top": pl.col("x").drop_nulls().sort(descending=True).head(2),
    "latest": _ordered("x").reverse().head(3),
    "first_x": _ordered("x").first(),
    "last_word": _ordered("word").last(),
}


def by_polars(frame: pl.DataFrame, by: Sequence[str], aggregates: Iterable[str]) -> pl.DataFrame:
    """What the aggregates are of all rows with equal values of `by`."""
    return frame.group_by(by).agg(**{name: _POLARS[name] for name in aggregates})


def check_sketches(found: pl.DataFrame, records: pl.DataFrame, key: Sequence[str]) -> None:
    """They may be off, but not by more than they promise."""
    exact = records.group_by(key).agg(
        distinct=pl.col("x").drop_nulls().n_unique(),
        low=pl.col("y").quantile(0.5, "lower"),
        high=pl.col("y").quantile(0.5, "higher"),
    )
    wanted: dict[Any, dict[str, Any]] = {tuple(row[name] for name in key): row for row in exact.iter_rows(named=True)}
    for row in found.iter_rows(named=True):
        right = wanted[tuple(row[name] for name in key)]
        if abs(row["about"] - right["distinct"]) > 2:
            raise Violation(f"{row}: there are {right['distinct']} different values of x")
        if (row["median"] is None) != (right["low"] is None):
            raise Violation(f"{row}: the median lies between {right['low']} and {right['high']}")
        if row["median"] is not None:
            slack = 0.011 * max(abs(right["low"]), abs(right["high"]))
            if not right["low"] - slack <= row["median"] <= right["high"] + slack:
                raise Violation(f"{row}: the median lies between {right['low']} and {right['high']}")
