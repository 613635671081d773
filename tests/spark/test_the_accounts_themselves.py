"""The yardstick of the other tests: it finds every kind of damage that they look for."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from tests.spark.support import accounts

from penstock.demo.orders import amount, customer

COUNT = 4_000


@pytest.fixture(scope="module")
def exact() -> pl.DataFrame:
    order = np.arange(COUNT, dtype=np.int64)
    frame = pl.DataFrame({"order": order, "customer": customer(order), "amount": amount(order), "mark": -order})
    return frame.with_columns(
        orders=pl.int_range(1, pl.len() + 1).over("customer"), spent=pl.col("amount").cum_sum().over("customer")
    )


def test_the_exact_rows_have_no_problems(exact: pl.DataFrame) -> None:
    assert accounts.problems(exact, COUNT) == []
    assert accounts.problems(exact) == []
    assert accounts.shortfalls(exact, COUNT) == []


def test_sources_that_stopped_at_different_places_are_no_problem(exact: pl.DataFrame) -> None:
    splits = accounts.SHOPS * accounts.SPLITS
    stopped = exact.filter((pl.col("order") % splits != 3) | (pl.col("order") < COUNT // 2)).with_columns(
        orders=pl.int_range(1, pl.len() + 1).over("customer"), spent=pl.col("amount").cum_sum().over("customer")
    )
    assert accounts.problems(stopped) == []
    assert "orders are missing" in str(accounts.problems(stopped, COUNT))


def test_damage_is_found(exact: pl.DataFrame) -> None:
    lost = exact.filter(pl.col("order") != 1_234)
    assert {"1 orders of split 2 are missing"} <= set(accounts.problems(lost))
    assert "1 orders are missing" in accounts.problems(lost, COUNT)
    assert accounts.shortfalls(lost) != []
    doubled = pl.concat([exact, exact.slice(1_234, 1)])
    assert "1 orders are there more than once" in accounts.problems(doubled)
    assert accounts.shortfalls(doubled) == []
    other = exact.with_columns(mark=pl.when(pl.col("order") == 7).then(0).otherwise("mark"))
    assert accounts.problems(other) == ["1 rows have another mark than their order"]


def test_state_that_went_back_is_found(exact: pl.DataFrame) -> None:
    forgotten = exact.with_columns(orders=pl.when(pl.col("order") >= 2_000).then(1).otherwise("orders"))
    assert "wrong order count" in str(accounts.problems(forgotten))
    lower = exact.with_columns(spent=pl.col("spent") - 1)
    assert "accounts are lower than exact" in str(accounts.shortfalls(lower))
