"""Windows in whole jobs on Spark: a worker is killed while they are open, and every window is right and there once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from tests.spark.support import accounts
from tests.spark.support.jobs import PATIENCE, sent, wait_for_checkpoints

import penstock as ps
from penstock.core.lifecycle import JobState

COUNT = 60_000
SECOND = 1_000


def user(index: Any) -> Any:
    """User 5 pauses for seven seconds now and then."""
    chosen = index * 7919 % 97
    return chosen + ((chosen == 5) & (index // 7_000 % 2 == 1))


def amount(index: Any) -> Any:
    return index % 1_000


def time(index: Any) -> Any:
    """Out of order by up to two seconds."""
    return index + index * 31 % (2 * SECOND)


def events() -> ps.sources.Generator:
    columns = {
        "user": user,
        "amount": amount,
        "ts": lambda index: pa.array(time(index)).cast(pa.timestamp("ms")),
    }
    return ps.sources.Generator(COUNT, columns, rate=15_000, splits=8)


def build(pipeline: ps.Pipeline, directory: Path) -> ps.Pipeline:
    stream = pipeline.source(events(), uid="events").with_watermark("ts", delay="2s", uid="time")
    by_user = stream.key_by("user")
    five, sliding, session = ps.tumbling("5s"), ps.sliding("6s", every="2s"), ps.session(gap="4s")
    n, total, different = ps.count(), ps.sum("amount"), ps.count_distinct("amount")
    results = {
        "tumbling": by_user.window(five).aggregate(n=n, total=total, different=different, uid="tumbling"),
        "sliding": by_user.window(sliding).aggregate(n=n, high=ps.max("amount"), uid="sliding"),
        "sessions": by_user.window(session).aggregate(n=n, total=total, uid="sessions"),
        "all": stream.window(ps.tumbling("10s")).aggregate(users=ps.count_distinct("user"), uid="all"),
    }
    for name, result in results.items():
        result.sink(ps.sinks.Files(directory / name), uid=f"{name}-out", parallelism=1 if name == "all" else None)
    results["tumbling"].late.sink(ps.sinks.Files(directory / "late"), uid="late-out")
    return pipeline


def expected() -> dict[str, pl.DataFrame]:
    index = np.arange(COUNT)
    frame = pl.DataFrame({"user": user(index), "amount": amount(index), "ts": time(index)}).with_columns(
        pl.col("ts").cast(pl.Datetime("ms"))
    )
    ordered = frame.sort("ts")
    tumbling = (
        ordered.group_by_dynamic("ts", every="5s", group_by="user")
        .agg(n=pl.len(), total=pl.col("amount").sum(), different=pl.col("amount").n_unique())
        .select("user", pl.col("ts").alias("window_start"), "n", "total", "different")
    )
    starts = [pl.col("ts").dt.truncate("2s") - pl.duration(seconds=back) for back in (0, 2, 4)]
    sliding = (
        ordered.with_columns(window_start=pl.concat_list(starts))
        .explode("window_start")
        .group_by("user", "window_start")
        .agg(n=pl.len(), high=pl.col("amount").max())
    )
    pauses = ordered.sort("user", "ts").with_columns(
        session=(pl.col("ts").diff().over("user") >= pl.duration(seconds=4)).fill_null(False).cum_sum().over("user")
    )
    sessions = (
        pauses.group_by("user", "session")
        .agg(window_start=pl.col("ts").min(), n=pl.len(), total=pl.col("amount").sum())
        .select("user", "window_start", "n", "total")
    )
    everybody = (
        ordered.group_by_dynamic("ts", every="10s")
        .agg(users=pl.col("user").n_unique())
        .select(pl.col("ts").alias("window_start"), "users")
    )
    return {"tumbling": tumbling, "sliding": sliding, "sessions": sessions, "all": everybody}


def rows(frame: pl.DataFrame, columns: list[str]) -> list[tuple[Any, ...]]:
    return sorted(frame.select(columns).rows())


def test_windows_are_exact_though_a_worker_is_killed(start: Callable[..., Any], tmp_path: Path) -> None:
    checkpoints = ps.Checkpoints(tmp_path / "checkpoints", every="200ms")
    job = start(build(ps.Pipeline("windows", parallelism=2, checkpoints=checkpoints), tmp_path / "out"))
    wait_for_checkpoints(job, 3)
    for pid in list(job.workers().values())[:1]:
        sent(pid, signal.SIGKILL)
    assert job.wait(PATIENCE).state is JobState.FINISHED
    for name, wanted in expected().items():
        found = accounts.committed(tmp_path / "out" / name)
        assert rows(found, wanted.columns) == rows(wanted, wanted.columns), name
        assert (found["window_end"] > found["window_start"]).all()
    assert not list((tmp_path / "out" / "late").glob("*.parquet"))
