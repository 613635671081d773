"""Nexmark on embedded Spark: how fast each query goes through a number of events, and whether its results are right.

A query is measured from when all its subtasks run to when its last results are committed, with checkpoints going on. It
counts the events of the tables that it reads. The results are compared over fewer events, whose clock goes slower, so
that there are windows and days among them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import penstock as ps
from penstock.bench.nexmark.catalogue import QUERIES
from penstock.bench.nexmark.events import Nexmark
from penstock.bench.nexmark.site import Site
from penstock.core.orders import JobState

CHECKED = Nexmark(100_000, per_second=1_000, begin="2015-07-15T23:59:00")
_POLL_SECONDS = 0.005
_STARTING = (JobState.WAITING_FOR_WORKERS, JobState.DEPLOYING)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Figure:
    what: str
    events: int
    """Of the tables that the query reads."""
    seconds: float
    events_per_s: float
    rows_out: int
    """That the sink was given; rows that were put out again count again."""
    wrong: str | None = None
    """What differs from DuckDB's answer."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def chosen(names: Sequence[str]) -> list[str]:
    """The queries that are meant; raises for what is none."""
    if not names or "all" in names:
        return list(QUERIES)
    unknown = [name for name in names if name not in QUERIES]
    if unknown:
        raise ValueError(f"there is no query {', '.join(unknown)}: choose from {', '.join(QUERIES)} and all")
    return list(dict.fromkeys(names))


def measure(
    names: Sequence[str], events: Nexmark, workers: int, every: str | None, verify: bool, *, say: Say | None = None
) -> dict[str, Figure]:
    figures = {}
    for name in names:
        figure = _measured(name, events, workers, every, difference(name, workers) if verify else None)
        figures[name] = figure
        if say:
            say(_line(name, figure, verify))
    return figures


def _measured(name: str, events: Nexmark, workers: int, every: str | None, wrong: str | None) -> Figure:
    sink, query = ps.sinks.Discard(), QUERIES[name]
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        checkpoints = None if every is None else ps.Checkpoints(directory, every=every)
        pipeline = ps.Pipeline(name, parallelism=workers, checkpoints=checkpoints)
        query.write(Site(pipeline, events)).sink(sink, uid="out")
        job = pipeline.start()
        try:
            while job.status().state in _STARTING and not job.done(_POLL_SECONDS):
                pass
            began = time.monotonic()
            job.wait()
            seconds = time.monotonic() - began
        finally:
            job.cancel()
    count = query.events(events)
    return Figure(query.what, count, round(seconds, 3), round(count / seconds, 1), sink.rows, wrong)


def difference(name: str, workers: int, events: Nexmark = CHECKED) -> str | None:
    """What is wrong with the results of a query over some events; None if nothing is."""
    from penstock.bench.nexmark.checking import difference

    sink = ps.sinks.Collect()
    pipeline = ps.Pipeline(name, parallelism=workers)
    QUERIES[name].write(Site(pipeline, events)).sink(sink, uid="out")
    pipeline.run()
    return difference(name, sink.result(), events)


def _line(name: str, figure: Figure, verified: bool) -> str:
    told = "" if not verified else f"  {figure.wrong or 'as DuckDB'}"
    return (
        f"{name:4} {figure.events_per_s / 1e6:7.2f} M events/s {figure.seconds:7.1f} s {figure.rows_out:12,} rows out"
        f"  {figure.what}{told}"
    )
