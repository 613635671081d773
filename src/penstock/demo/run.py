"""Runs the demo: starts the job, shows it live, kills a worker half-way, and has the committed files checked."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
from pyarrow import parquet

import penstock as ps
from penstock.demo.orders import Verdict, amount, check, customer
from penstock.demo.view import Nothing, View, Watcher

_POLL_SECONDS = 0.1


class Committed:
    """Counts the rows that any reader of the output would see by now."""

    def __init__(self, directory: str):
        self._directory = Path(directory)
        self._counted: dict[Path, int] = {}

    def rows(self) -> int:
        for path in self._directory.glob("*.parquet"):
            if path not in self._counted:
                self._counted[path] = parquet.read_metadata(path).num_rows
        return sum(self._counted.values())


class Account(ps.KeyedFunction):
    """How much each customer has ordered so far."""

    orders = ps.value(int, default=0)
    spent = ps.value(int, default=0)

    def process(self, row: Any, ctx: Any) -> None:
        self.orders.set(self.orders.get() + 1)
        self.spent.set(self.spent.get() + row.amount)
        ctx.emit(
            order=row.order,
            customer=row.customer,
            amount=row.amount,
            orders=self.orders.get(),
            spent=self.spent.get(),
        )


@dataclass(frozen=True)
class DemoResult:
    exactly_once: bool
    records: int
    rows: int
    checkpoints: int
    recoveries: int
    recovery_s: float | None
    """From the SIGKILL to every subtask running again; None if nothing was killed."""
    seconds: float
    """Of the job, from its first to its last attempt's end."""
    problems: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class Demo:
    records: int
    seconds: float
    kill: bool
    live: bool

    def run(self) -> DemoResult:
        with ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-"))
            watcher: Watcher = stack.enter_context(View(self.records)) if self.live else Nothing()
            watcher.say("Starting Spark and three workers, one of them a spare ...")
            started = time.monotonic()
            job = self._pipeline(directory).start()
            killed = self._watch(job, watcher, Committed(f"{directory}/accounts"))
            status = job.status()
            seconds = time.monotonic() - started
            watcher.say("The job has finished. Reading the committed files and computing the exact answer ...")
            verdict = check(pl.read_parquet(f"{directory}/accounts/*.parquet"), self.records)
            watcher.verdict(verdict)
            return self._result(job, status, killed, seconds, verdict)

    def _pipeline(self, directory: str) -> ps.Pipeline:
        pipeline = ps.Pipeline(
            "demo", parallelism=2, spares=1, checkpoints=ps.Checkpoints(f"{directory}/checkpoints", every="500ms")
        )
        source = ps.sources.Generator(
            self.records,
            {"order": lambda i: i, "customer": customer, "amount": amount},
            rate=self.records / self.seconds,
        )
        (
            pipeline.source(source, uid="orders")
            .key_by("customer")
            .process(
                Account,
                returns={"order": int, "customer": int, "amount": int, "orders": int, "spent": int},
                uid="accounts",
            )
            .sink(ps.sinks.Files(f"{directory}/accounts", format="parquet"), uid="accounts-files")
        )
        return pipeline

    def _watch(self, job: Any, watcher: Watcher, committed: Committed) -> float | None:
        """Follows the job to its end; when the worker was killed (seconds since the epoch), if it was."""
        killed: float | None = None
        began: float | None = None
        while not job.done(timeout=_POLL_SECONDS):
            watcher.update(job, committed.rows())
            if began is None and job.status().completed_checkpoints:
                began = time.monotonic()
            half_way = began is not None and time.monotonic() - began > self.seconds / 2
            if self.kill and killed is None and half_way:
                pid = job.workers()[job.status().workers[0]]
                killed = time.time()
                os.kill(pid, signal.SIGKILL)
                watcher.say(f"Killed the worker in process {pid} with SIGKILL.")
        job.wait()
        watcher.update(job, committed.rows())
        return killed

    def _result(self, job: Any, status: Any, killed: float | None, seconds: float, verdict: Verdict) -> DemoResult:
        incidents = [i for i in job.incidents() if i.restarted_ms is not None]
        recovery = None if killed is None or not incidents else incidents[0].restarted_ms / 1000 - killed
        return DemoResult(
            exactly_once=verdict.exact,
            records=self.records,
            rows=verdict.rows,
            checkpoints=status.completed_checkpoints,
            recoveries=len(incidents),
            recovery_s=None if recovery is None else round(recovery, 3),
            seconds=round(seconds, 1),
            problems=verdict.problems,
        )
