"""Joins in whole jobs on Spark: a worker is killed while rows wait for their match, and the job goes on at another size
with records in flight on both inputs; every result is right and there once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
from tests.spark.support import accounts
from tests.spark.support.jobs import PATIENCE, sent, wait_for_checkpoints, wait_until

import penstock as ps
from penstock.core.lifecycle import JobState

ORDERS, PAYMENTS = 40_000, 20_000
FEW = 10
"""So many times fewer of both, where every row takes its time."""
RATE = 8_000


def late_by(index: Any) -> Any:
    """Out of order by up to a second."""
    return index * 31 % 1_000


ORDER = {"order": lambda i: i, "user": lambda i: i * 7919 % 997, "ts": lambda i: i + late_by(i)}
PAYMENT = {"paid": lambda i: i * 3 % ORDERS, "who": lambda i: i * 31 % 1_499, "ts": lambda i: 2 * i + late_by(i)}


def both(pipeline: ps.Pipeline, fewer: int = 1, rate: float | None = RATE) -> tuple[ps.Stream, ps.Stream]:
    slower = None if rate is None else rate / 2
    orders = pipeline.source(ps.sources.Generator(ORDERS // fewer, ORDER, rate=rate, splits=4), uid="orders")
    payments = pipeline.source(ps.sources.Generator(PAYMENTS // fewer, PAYMENT, rate=slower, splits=4), uid="payments")
    return (
        orders.with_watermark("ts", delay="1s", uid="order-time"),
        payments.with_watermark("ts", delay="1s", uid="payment-time"),
    )


def build(pipeline: ps.Pipeline, directory: Path) -> ps.Pipeline:
    orders, payments = both(pipeline)
    left, right = orders.key_by("user"), payments.key_by("who")
    results: dict[str, ps.Stream] = {
        "paid": orders.key_by("order").join(payments.key_by("paid"), how="full", uid="paid"),
        "near": left.interval_join(right, lower="-2s", upper="1s", how="left", uid="near"),
        "together": left.window(ps.tumbling("5s")).join(right, how="full", uid="together"),
        "valid": left.temporal_join(right, how="left", uid="valid"),
        "known": orders.lookup_join(payments, left_on="user", right_on="who", how="left", uid="known"),
    }
    for name, result in results.items():
        result.sink(ps.sinks.Files(directory / name), uid=f"{name}-out")
    return pipeline


def tables(fewer: int = 1) -> tuple[pl.DataFrame, pl.DataFrame]:
    orders, payments = (
        pl.DataFrame({name: column(np.arange(count // fewer)) for name, column in columns.items()})
        for columns, count in ((ORDER, ORDERS), (PAYMENT, PAYMENTS))
    )
    return orders, payments


def queried(query: str, fewer: int = 1) -> pl.DataFrame:
    with duckdb.connect() as database:
        for name, table in zip("op", tables(fewer), strict=True):
            database.register(name, table)
        return database.sql(query).pl()


def expected() -> dict[str, pl.DataFrame]:
    orders, payments = tables()
    near = "o.user = p.who and p.ts between o.ts - 2000 and o.ts + 1000"
    together = "o.user = p.who and o.ts // 5000 = p.ts // 5000"
    versions = payments.sort("ts", maintain_order=True).with_columns(ts_right="ts")
    return {
        "near": queried(f"select o.*, p.paid, p.ts ts_right from o left join p on {near}"),
        "together": queried(
            'select coalesce(o.ts, p.ts) // 5000 * 5000 window_start, o."order", coalesce(o.user, p.who) user, o.ts, '
            f"p.paid, p.ts ts_right from o full join p on {together}"
        ),
        # Versions of a key never have the same time: it takes 1,499 payments until it comes again.
        "valid": orders.sort("ts")
        .join_asof(versions, on="ts", by_left="user", by_right="who", check_sortedness=False)
        .select("order", "user", "ts", "paid", "ts_right"),
    }


def all_paid(fewer: int = 1) -> pl.DataFrame:
    return queried(
        'select coalesce(o."order", p.paid) as "order", o.user, o.ts, p.who, p.ts ts_right '
        'from o full join p on o."order" = p.paid',
        fewer,
    )


def slowly(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.0005)
    return row


def left_of(changes: pl.DataFrame) -> pl.DataFrame:
    """What is left of a changelog."""
    signs = changes.with_columns(sign=pl.when(pl.col("op") == "insert").then(1).otherwise(-1)).drop("op")
    sums = signs.group_by(pl.exclude("sign")).agg(pl.col("sign").sum())
    assert set(sums["sign"].unique()) <= {0, 1}
    return sums.filter(pl.col("sign") == 1).drop("sign")


def check(found: pl.DataFrame, wanted: pl.DataFrame, name: str) -> None:
    assert found.height == wanted.height, name
    assert found.select(wanted.columns).sort(wanted.columns).equals(wanted.sort(wanted.columns)), name


def test_joins_are_exact_though_a_worker_is_killed(start: Callable[..., Any], tmp_path: Path) -> None:
    checkpoints = ps.Checkpoints(tmp_path / "checkpoints", every="200ms")
    job = start(build(ps.Pipeline("joins", parallelism=2, checkpoints=checkpoints), tmp_path / "out"))
    wait_for_checkpoints(job, 3)
    for pid in list(job.workers().values())[:1]:
        sent(pid, signal.SIGKILL)
    assert job.wait(PATIENCE).state is JobState.FINISHED
    for name, wanted in expected().items():
        check(accounts.committed(tmp_path / "out" / name), wanted, name)
    check(left_of(accounts.committed(tmp_path / "out" / "paid")), all_paid(), "paid")
    known = accounts.committed(tmp_path / "out" / "known")
    assert sorted(known["order"]) == list(range(ORDERS))


def test_records_in_flight_go_to_the_right_side_of_a_join_at_another_size(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    checkpoints = ps.Checkpoints(tmp_path / "checkpoints", every="300ms", mode="unaligned")
    small = ps.RuntimeSettings(in_flight=ps.InFlightSettings(initial_rows=256, max_rows=256))
    pipeline = ps.Pipeline("joins", parallelism=2, checkpoints=checkpoints, runtime=small)
    orders, payments = both(pipeline, FEW, rate=None)
    paid = orders.key_by("order").join(payments.key_by("paid"), how="full", uid="paid")
    paid.map(slowly, returns=paid.schema, uid="slow").sink(ps.sinks.Files(tmp_path / "paid"), uid="out")
    job = start(pipeline)
    wait_until(lambda: any(c.in_flight_bytes for c in job.checkpoints()) or job.done(), job.checkpoints)
    job.rescale(3, timeout=PATIENCE)
    assert job.wait(PATIENCE).state is JobState.FINISHED
    check(left_of(accounts.committed(tmp_path / "paid")), all_paid(FEW), "paid")
