"""The demo's checker: it must accept the exact answer and nothing else."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from penstock.demo.orders import amount, check, customer

ORDERS = 5_000


@pytest.fixture
def exact() -> pl.DataFrame:
    numbers = np.random.default_rng(1).permutation(ORDERS).astype(np.int64)  # any interleaving of orders is correct
    return pl.DataFrame({"order": numbers, "customer": customer(numbers), "amount": amount(numbers)}).with_columns(
        orders=pl.int_range(1, pl.len() + 1).over("customer"), spent=pl.col("amount").cum_sum().over("customer")
    )


def test_the_exact_answer_is_accepted_in_any_order(exact: pl.DataFrame) -> None:
    verdict = check(exact.sample(fraction=1.0, shuffle=True, seed=2), ORDERS)
    assert verdict.exact, verdict.problems
    assert verdict.rows == ORDERS


def test_a_lost_row_is_noticed(exact: pl.DataFrame) -> None:
    assert "1 orders are missing" in check(exact[1:], ORDERS).problems


def test_a_repeated_row_is_noticed(exact: pl.DataFrame) -> None:
    assert "1 orders are there more than once" in check(pl.concat([exact, exact[:1]]), ORDERS).problems


def test_an_order_counted_twice_in_state_is_noticed_even_if_its_row_is_there_once(exact: pl.DataFrame) -> None:
    someone = exact["customer"][0]
    twice = exact.with_columns(
        orders=pl.when(pl.col("customer") == someone).then(pl.col("orders") + 1).otherwise(pl.col("orders"))
    )
    assert any("wrong order count" in problem for problem in check(twice, ORDERS).problems)


def test_a_wrong_sum_is_noticed(exact: pl.DataFrame) -> None:
    off = exact.with_columns(spent=pl.when(pl.col("order") == 7).then(pl.col("spent") + 1).otherwise(pl.col("spent")))
    assert check(off, ORDERS).problems == ("1 rows have a wrong sum",)


def test_a_row_of_another_order_is_noticed(exact: pl.DataFrame) -> None:
    off = exact.with_columns(amount=pl.when(pl.col("order") == 7).then(pl.col("amount") + 1).otherwise("amount"))
    assert any("do not match" in problem for problem in check(off, ORDERS).problems)
