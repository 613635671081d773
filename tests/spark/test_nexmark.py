"""The queries of Nexmark on Spark give what DuckDB gives for the same SQL over the same events, row by row."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.spark.support.jobs import PATIENCE, sent, wait_for_checkpoints

import penstock as ps
from penstock.bench.nexmark import checking
from penstock.bench.nexmark.catalogue import QUERIES
from penstock.bench.nexmark.events import Nexmark
from penstock.bench.nexmark.run import difference, measure
from penstock.bench.nexmark.site import Site

FAST = Nexmark(40_000, per_second=500, begin="2015-07-15T23:59:30")
"""Several windows, and a midnight."""
SLOW = Nexmark(40_000, per_second=0.4)
"""More than a day, so that all times of day occur."""
EVENTS = dict.fromkeys(QUERIES, FAST) | dict.fromkeys(["q10", "q14", "q15", "q16", "q17"], SLOW)


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_gives_what_duckdb_gives(spark: Any, query: str) -> None:
    assert difference(query, 2, EVENTS[query]) is None


def test_a_query_is_measured_and_compared(spark: Any) -> None:
    said: list[str] = []
    figures = measure(["q2", "q17"], Nexmark(50_000), 2, "200ms", True, say=said.append)
    assert {name: figure.events for name, figure in figures.items()} == {"q2": 46_000, "q17": 46_000}
    assert all(figure.rows_out > 0 and figure.wrong is None for figure in figures.values())
    assert ["as DuckDB" in line for line in said] == [True, True]


@pytest.mark.parametrize("query", ["q4", "q6", "q7"])
def test_a_query_of_joins_and_aggregates_is_exact_though_a_worker_is_killed(
    start: Callable[..., Any], tmp_path: Path, query: str
) -> None:
    events = replace(FAST, rate=8_000)
    pipeline = ps.Pipeline(query, parallelism=2, checkpoints=ps.Checkpoints(tmp_path, every="200ms"))
    sink = ps.sinks.Collect()
    QUERIES[query].write(Site(pipeline, events)).sink(sink, uid="out")
    job = start(pipeline)
    wait_for_checkpoints(job, 3)
    sent(next(iter(job.workers().values())), signal.SIGKILL)
    assert job.wait(PATIENCE).restarts == 1
    assert checking.difference(query, sink.result(), events) is None
