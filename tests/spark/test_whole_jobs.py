"""Jobs from their start to their end, and on from there: drains, continuations, named checkpoints, event time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest
from tests.spark.support import accounts
from tests.spark.support.jobs import PATIENCE, kill_worker, sent, wait_for_checkpoints, wait_until

import penstock as ps
from penstock.core.orders import JobState
from penstock.demo.orders import amount, customer

Start = Callable[..., Any]


def orders(count: int | None, rate: float | None = None) -> Any:
    columns = {"order": lambda i: i, "customer": customer, "amount": amount}
    return ps.sources.Generator(count, columns, rate=rate, splits=accounts.SPLITS)


def kill_one_if_it_still_runs(job: Any) -> None:
    for pid in list(job.workers().values())[:1]:
        sent(pid, signal.SIGKILL)


# ---- stopping and going on ----
def test_a_job_that_was_stopped_goes_on_from_its_checkpoint(start: Start, tmp_path: Path) -> None:
    checkpoints = ps.Checkpoints(tmp_path / "checkpoints", every="100ms")

    def run() -> Any:
        pipeline = ps.Pipeline("accounts", checkpoints=checkpoints)
        job = start(accounts.build(pipeline, ps.sinks.Files(tmp_path / "accounts"), rate=4_000))
        wait_for_checkpoints(job, 2)
        return job

    assert run().stop(drain=False, timeout=PATIENCE).state is JobState.CANCELLED
    run().cancel()
    assert run().stop(timeout=PATIENCE).state is JobState.FINISHED
    assert accounts.problems(accounts.committed(tmp_path / "accounts")) == []


def test_draining_commits_all_that_was_read_and_the_job_is_over_for_good(start: Start, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()

    def note(row: dict[str, Any]) -> dict[str, Any]:
        with open(seen / str(os.getpid()), "a") as file:
            file.write(f"{row['order']}\n")
        return row

    def run() -> Any:
        pipeline = ps.Pipeline("drained", checkpoints=ps.Checkpoints(tmp_path / "checkpoints", every="10s"))
        noted = pipeline.source(orders(None, 2_000), uid="orders").map(
            note, returns={"order": int, "customer": int, "amount": int}, uid="note"
        )
        noted.rebalance().sink(ps.sinks.Files(tmp_path / "out"), uid="out")
        return start(pipeline)

    job = run()
    wait_until(lambda: any(seen.iterdir()), "rows to flow")
    job.stop(timeout=PATIENCE)
    noted = sorted(int(line) for file in seen.iterdir() for line in file.read_text().split())
    assert sorted(accounts.committed(tmp_path / "out")["order"].to_list()) == noted
    assert run().wait(PATIENCE).state is JobState.FINISHED
    assert sorted(accounts.committed(tmp_path / "out")["order"].to_list()) == noted


def test_a_named_checkpoint_is_gone_back_to(start: Start, tmp_path: Path) -> None:
    def run(sink: Any, **options: Any) -> Any:
        checkpoints = ps.Checkpoints(tmp_path / "checkpoints", every="50ms", keep=1_000)
        pipeline = ps.Pipeline("back", parallelism=1, checkpoints=checkpoints)
        stream = pipeline.source(orders(None, 2_000), uid="orders").key_by("customer")
        stream.process(accounts.Account, returns=accounts.ACCOUNT, uid="accounts").sink(sink, uid="out")
        job = start(pipeline, **options)
        wait_for_checkpoints(job, 3)
        return job

    first, second = ps.sinks.Collect(), ps.sinks.Collect()
    job = run(first)
    # From now on no checkpoint names the first rows any more.
    wait_until(lambda: first.result().num_rows > 0, job.status)
    chosen = job.trigger_checkpoint(PATIENCE)
    wait_for_checkpoints(job, 3)
    job.stop(drain=False, timeout=PATIENCE)
    again = run(second, restore=chosen)
    again.stop(timeout=PATIENCE)
    before, after = first.polars().sort("order"), second.polars().sort("order")
    # The restored checkpoint's own rows are committed again, into a new Collect; then the job goes on from there.
    assert 0 < after["order"].min() < before["order"].max()
    assert after["order"].to_list() == list(range(after["order"].min(), after["order"].max() + 1))
    both = before.join(after, on="order", suffix="_again")
    assert both.height > 0
    assert both["orders"].equals(both["orders_again"])
    assert both["spent"].equals(both["spent_again"])


def test_the_same_job_started_again_fences_the_one_that_still_runs(start: Start, tmp_path: Path) -> None:
    def run() -> Any:
        checkpoints = ps.Checkpoints(tmp_path / "checkpoints", every="50ms")
        sink = ps.sinks.Files(tmp_path / "accounts")
        job = start(accounts.build(ps.Pipeline("accounts", checkpoints=checkpoints), sink, rate=4_000))
        wait_for_checkpoints(job, 2)
        return job

    first, second = run(), run()
    with pytest.raises(ps.JobFailed, match="fenced: another driver") as fenced:
        first.wait(PATIENCE)
    assert fenced.value.outcome.state is JobState.FENCED
    wait_for_checkpoints(second, 2)
    second.stop(timeout=PATIENCE)
    assert accounts.problems(accounts.committed(tmp_path / "accounts")) == []


# ---- without checkpoints ----
def test_a_job_without_checkpoints_commits_at_its_end(start: Start, tmp_path: Path) -> None:
    job = start(accounts.build(ps.Pipeline("plain"), ps.sinks.Files(tmp_path / "out"), count=4_000))
    result = job.wait(PATIENCE)
    assert (result.state, result.checkpoints) == (JobState.FINISHED, 0)
    assert accounts.problems(accounts.committed(tmp_path / "out"), 4_000) == []


def test_a_job_without_checkpoints_begins_from_scratch_after_a_kill(start: Start, tmp_path: Path) -> None:
    pipeline = ps.Pipeline("scratch", restart=ps.restart.fixed_delay(0, attempts=10))
    job = start(accounts.build(pipeline, ps.sinks.Files(tmp_path / "out"), rate=4_000))
    wait_until(lambda: job.status().state is JobState.RUNNING, job.status)
    kill_worker(job, Random(1))
    wait_until(lambda: job.status().restarts == 1 and job.status().state is JobState.RUNNING, job.status)
    assert accounts.rows_in(tmp_path / "out") == 0
    job.stop(timeout=PATIENCE)
    assert accounts.problems(accounts.committed(tmp_path / "out")) == []


# ---- shapes ----
def test_a_source_that_has_finished_stays_finished_after_a_kill(start: Start, tmp_path: Path) -> None:
    short = 1_000
    checkpoints = ps.Checkpoints(tmp_path / "checkpoints", every="50ms")
    pipeline = ps.Pipeline("short-and-long", checkpoints=checkpoints, restart=ps.restart.fixed_delay(0, attempts=10))
    shops = [
        pipeline.source(accounts.shop(0, short, None), uid="short", parallelism=1),
        pipeline.source(accounts.shop(1, None, 2_000), uid="long"),
    ]
    accounted = (
        shops[0].union(shops[1]).key_by("customer").process(accounts.Account, returns=accounts.ACCOUNT, uid="accounts")
    )
    marked = accounted.with_columns(mark=-pl.col("order"))
    marked.sink(ps.sinks.Files(tmp_path / "out"), uid="out")
    job = start(pipeline)
    wait_for_checkpoints(job, 4)
    kill_worker(job, Random(3))
    wait_until(lambda: job.status().restarts == 1, job.status)
    wait_for_checkpoints(job, 2)
    job.stop(timeout=PATIENCE)
    rows = accounts.committed(tmp_path / "out")
    assert accounts.problems(rows) == []
    assert rows.filter(pl.col("order") % 2 == 0).height == short


@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_operators_of_different_parallelism_survive_a_kill(start: Start, tmp_path: Path, mode: str) -> None:
    checkpoints = ps.Checkpoints(tmp_path / "checkpoints", every="50ms", mode=mode)
    pipeline = ps.Pipeline("shapes", parallelism=3, checkpoints=checkpoints, restart=ps.restart.fixed_delay(0))
    shops = [pipeline.source(accounts.shop(n, None, 2_000), uid=f"shop-{n}", parallelism=n + 1) for n in (0, 1)]
    accounted = (
        shops[0].union(shops[1]).key_by("customer").process(accounts.Account, returns=accounts.ACCOUNT, uid="accounts")
    )
    marked = accounted.map(accounts.marked, returns={**accounts.ACCOUNT, "mark": int}, uid="marked", parallelism=1)
    marked.rebalance().sink(ps.sinks.Files(tmp_path / "out"), uid="out", parallelism=2)
    job = start(pipeline)
    wait_for_checkpoints(job, 2)
    kill_worker(job, Random(mode))
    wait_until(lambda: job.status().restarts == 1, job.status)
    wait_for_checkpoints(job, 2)
    job.stop(timeout=PATIENCE)
    assert accounts.problems(accounts.committed(tmp_path / "out")) == []


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_files_are_read_processed_and_written_exactly_once(start: Start, tmp_path: Path, format: str) -> None:
    count, files = 12_000, 6
    (tmp_path / "in").mkdir()
    for number in range(files):
        frame = pl.DataFrame({"order": range(number, count, files)}).select(
            "order", customer=(pl.col("order") * 31) % 100, amount=pl.col("order") % 7
        )
        path = tmp_path / "in" / f"{number}.{format}"
        frame.write_parquet(path, row_group_size=500) if format == "parquet" else frame.write_ndjson(path)
    checkpoints = ps.Checkpoints(tmp_path / "checkpoints", every="20ms")
    pipeline = ps.Pipeline("files", checkpoints=checkpoints, restart=ps.restart.fixed_delay(0, attempts=10))
    stream = pipeline.source(ps.sources.Files(tmp_path / "in", format=format), uid="in").key_by("customer")
    stream.process(accounts.Account, returns=accounts.ACCOUNT, uid="accounts").sink(
        ps.sinks.Files(tmp_path / "out", format=format), uid="out"
    )
    job = start(pipeline)
    wait_until(lambda: job.done() or job.status().completed_checkpoints > 0, job.status)
    kill_one_if_it_still_runs(job)
    job.wait(PATIENCE)
    glob = tmp_path / "out" / f"*.{format}"
    rows = pl.read_parquet(glob) if format == "parquet" else pl.read_ndjson(glob)
    assert sorted(rows["order"].to_list()) == list(range(count))
    book = rows.sort("customer", "orders").with_columns(sum=pl.col("amount").cum_sum().over("customer"))
    assert book["spent"].equals(book["sum"], check_names=False)


# ---- event time ----
class Windows(ps.KeyedFunction):
    """The sum of each key's amounts in every tenth of a second, put out when event time has passed it."""

    sums = ps.map(int, int)

    def process(self, row: Any, ctx: Any) -> None:
        window = row.ts // 100
        self.sums[window] = self.sums.get(window, 0) + row.amount
        ctx.timer_at(window * 100 + 99)

    def on_timer(self, timer: Any, ctx: Any) -> None:
        window = timer.time // 100
        ctx.emit(customer=timer.key, window=window, total=self.sums[window])
        del self.sums[window]


@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_event_time_timers_fire_once_each_also_after_a_kill(start: Start, tmp_path: Path, mode: str) -> None:
    count = 6_000

    def ts(index: Any) -> Any:
        return index // 4 + (index * 7_919) % 50

    events = ps.sources.Generator(
        count, {"customer": lambda i: customer(i) % 20, "amount": amount, "ts": ts}, rate=4_000, splits=4
    )
    collected = ps.sinks.Collect()
    checkpoints = ps.Checkpoints(tmp_path / "checkpoints", every="50ms", mode=mode)
    pipeline = ps.Pipeline("windows", checkpoints=checkpoints, restart=ps.restart.fixed_delay(0, attempts=10))
    timed = pipeline.source(events, uid="events").with_watermark("ts", delay="50ms", uid="time").key_by("customer")
    timed.process(Windows, returns={"customer": int, "window": int, "total": int}, uid="windows").sink(
        collected, uid="out"
    )
    job = start(pipeline)
    wait_until(lambda: job.done() or job.status().completed_checkpoints > 3, job.status)
    kill_one_if_it_still_runs(job)
    job.wait(PATIENCE)
    index = pl.Series(range(count)).to_numpy()
    expected = (
        pl.DataFrame({"customer": customer(index) % 20, "window": ts(index) // 100, "total": amount(index)})
        .group_by("customer", "window")
        .agg(pl.sum("total"))
        .sort("customer", "window")
    )
    assert collected.polars().sort("customer", "window").equals(expected)
