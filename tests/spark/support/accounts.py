"""The pipeline of most tests on Spark, and what a correct run of it must have committed.

Two sources of orders -> union -> keyed account of each customer -> rebalance -> row function -> sink: three exchanges,
two inputs, keyed state, a function of single rows. Every order gives one row with its customer's order count and
spending so far, so that the rows of a customer form one unbroken account, in which a lost, repeated or half-applied
order cannot hide.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pyarrow import parquet

import penstock as ps
from penstock.demo.orders import amount, check, customer

SPLITS = 4
"""Of each source."""
SHOPS = 2
ACCOUNT = {"order": int, "customer": int, "amount": int, "orders": int, "spent": int}


class Account(ps.KeyedFunction):
    """What each customer has ordered so far."""

    orders = ps.value(int, default=0)
    spent = ps.value(int, default=0)

    def process(self, row: Any, ctx: Any) -> None:
        self.orders.value += 1
        self.spent.value += row.amount
        ctx.emit(
            order=row.order, customer=row.customer, amount=row.amount, orders=self.orders.value, spent=self.spent.value
        )


def shop(number: int, count: int | None, rate: float | None) -> Any:
    """Of two shops, one has the even orders and one the odd ones."""
    columns = {
        "order": lambda i: i * SHOPS + number,
        "customer": lambda i: customer(i * SHOPS + number),
        "amount": lambda i: amount(i * SHOPS + number),
    }
    return ps.sources.Generator(count, columns, rate=rate, splits=SPLITS)


def marked(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "mark": -row["order"]}


def marked_slowly(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.0001)
    return marked(row)


def build(
    pipeline: ps.Pipeline, sink: Any, *, count: int | None = None, rate: float | None = None, slow: bool = False
) -> ps.Pipeline:
    """`count` orders (None: without end) at `rate` per second, half of them from each shop. `slow`: what comes last
    takes its time, so that without a rate all channels before it are full."""
    each = None if count is None else count // SHOPS
    first, second = (
        pipeline.source(shop(number, each, None if rate is None else rate / SHOPS), uid=f"shop-{number}")
        for number in range(SHOPS)
    )
    (
        first.union(second)
        .key_by("customer")
        .process(Account, returns=ACCOUNT, uid="accounts")
        .rebalance()
        .map(marked_slowly if slow else marked, returns={**ACCOUNT, "mark": int}, uid="marked")
        .sink(sink, uid="out")
    )
    return pipeline


def committed(directory: str | Path) -> pl.DataFrame:
    """What a plain reader of the target sees."""
    return pl.read_parquet(Path(directory, "*.parquet"))


def rows_in(directory: str | Path) -> int:
    """How many rows are committed by now."""
    return sum(parquet.read_metadata(path).num_rows for path in Path(directory).glob("*.parquet"))


def problems(rows: pl.DataFrame, count: int | None = None) -> list[str]:
    """What is wrong with the committed rows; nothing, if each order is there once and every account is exact. Without
    a `count` the sources were stopped somewhere: then each of their splits must have been read without a gap."""
    found = list(_mismatches(rows))
    if count is None:
        found += _gaps(rows)
    elif missing := count - rows["order"].n_unique():
        found.append(f"{missing} orders are missing")
    # Told to expect nothing, the demo's check still says which orders are repeated and which accounts are wrong.
    return found + [problem for problem in check(rows, 0).problems if "do not match" not in problem]


def _gaps(rows: pl.DataFrame) -> list[str]:
    orders = np.unique(rows["order"].to_numpy())
    found = []
    for split in range(SHOPS * SPLITS):
        own = orders[orders % (SHOPS * SPLITS) == split]
        missing = 0 if not len(own) else int(own[-1] // (SHOPS * SPLITS)) + 1 - len(own)
        if missing:
            found.append(f"{missing} orders of split {split} are missing")
    return found


def _mismatches(rows: pl.DataFrame) -> list[str]:
    order = rows["order"].to_numpy()
    right = {"customer": customer(order), "amount": amount(order), "mark": -order}
    return [
        f"{wrong} rows have another {column} than their order"
        for column, values in right.items()
        if (wrong := int((rows[column].to_numpy() != values).sum()))
    ]


def shortfalls(rows: pl.DataFrame, count: int | None = None) -> list[str]:
    """What at-least-once does not excuse: a missing order, or an account that ends lower than the exact one."""
    distinct = rows.unique("order")
    exact = distinct.group_by("customer").agg(orders=pl.len(), spent=pl.sum("amount"))
    highest = rows.group_by("customer").agg(pl.max("orders"), pl.max("spent"))
    both = exact.join(highest, on="customer", suffix="_found")
    lower = both.filter((pl.col("orders_found") < pl.col("orders")) | (pl.col("spent_found") < pl.col("spent"))).height
    found = [f"{lower} accounts are lower than exact"] if lower else []
    if count is not None and distinct.height != count:
        found.append(f"{count - distinct.height} orders are missing")
    return [*found, *_gaps(rows), *_mismatches(rows)]
