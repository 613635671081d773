"""The demo's data: orders as a pure function of their number, and what a correct run must have written about them.

Every order gets one output row: who ordered, the customer's order count and spending so far. The rows of a customer
therefore form one unbroken account, in which a lost, repeated or half-applied order cannot hide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

CUSTOMERS = 1_000
_SCATTER = 2_654_435_761

Index = npt.NDArray[np.int64]


def customer(order: Index) -> Index:
    return (order * _SCATTER) % CUSTOMERS


def amount(order: Index) -> Index:
    return (order * 7_919) % 997


@dataclass(frozen=True, slots=True)
class Verdict:
    exact: bool
    rows: int
    problems: tuple[str, ...]


def check(accounts: pl.DataFrame, orders: int) -> Verdict:
    """Compares committed rows (order, customer, amount, orders, spent) with the exact answer, row by row."""
    numbers = np.arange(orders, dtype=np.int64)
    expected = pl.DataFrame({"order": numbers, "customer": customer(numbers), "amount": amount(numbers)})
    problems = []
    copies = accounts.group_by("order").len()
    missing = expected.join(copies, on="order", how="anti").height
    if missing:
        problems.append(f"{missing} orders are missing")
    if repeated := copies.filter(pl.col("len") > 1).height:
        problems.append(f"{repeated} orders are there more than once")
    wrong = accounts.join(expected, on=["order", "customer", "amount"], how="anti").height
    if wrong:
        problems.append(f"{wrong} rows do not match the order they stand for")
    book = accounts.sort("customer", "orders").with_columns(
        place=pl.int_range(1, pl.len() + 1).over("customer"),
        sum=pl.col("amount").cum_sum().over("customer"),
    )
    if miscounted := book.filter(pl.col("orders") != pl.col("place")).height:
        problems.append(f"{miscounted} rows have a wrong order count")
    if missummed := book.filter(pl.col("spent") != pl.col("sum")).height:
        problems.append(f"{missummed} rows have a wrong sum")
    return Verdict(exact=not problems, rows=accounts.height, problems=tuple(problems))
