"""The workloads that other engines are compared on, as Penstock pipelines.

- w1: a running count and sum per key, the updated rows to a sink that discards them;
- w2: a count and sum per key and window of 10 s of event time, which is 100 events per millisecond;
- w2-short: the same with windows of 100 ms, which is what the latency is measured of;
- w3: a Python function per record that keeps (count, last value) per key and puts out (key, count) when a value falls.

All read the same events, through a keyed exchange, with exactly-once checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import penstock as ps
from penstock.bench.events import Events
from penstock.operators.aggregation.declare import Aggregate

SHORT = "100ms"
SOURCE = "events"
"""The uid of every workload's source."""


class Falls(ps.KeyedFunction):
    """How often each key was seen, told whenever its value falls."""

    seen = ps.value(tuple[int, int], default=(0, -1))

    def process(self, row: Any, ctx: ps.KeyedContext) -> None:
        count, last = self.seen.value
        value = row.value
        self.seen.value = (count + 1, value)
        if value < last:
            ctx.emit(key=row.key, count=count + 1)


def _running_totals(stream: ps.Stream, events: Events) -> ps.Stream:
    return stream.key_by("key").reduce(n=ps.count(), total=ps.sum("value"), uid="totals")


def windows(stream: ps.Stream, size: str, **more: Aggregate) -> ps.Stream:
    """w2: count and sum per key and window of that size, and more if asked for."""
    keyed = stream.with_watermark("ts", uid="time").key_by("key")
    wanted: dict[str, Any] = {"n": ps.count(), "total": ps.sum("value"), **more}
    return keyed.window(ps.tumbling(size)).aggregate(uid="windows", **wanted)


def _long_windows(stream: ps.Stream, events: Events) -> ps.Stream:
    return windows(stream, "10s")


def _short_windows(stream: ps.Stream, events: Events) -> ps.Stream:
    return windows(stream, SHORT)


def _falls(stream: ps.Stream, events: Events) -> ps.Stream:
    returns = {"key": events.key_class, "count": int}
    return stream.key_by("key").process(Falls, returns=returns, uid="falls")


@dataclass(frozen=True)
class Workload:
    work: Callable[[ps.Stream, Events], ps.Stream]
    """What is done with the stream of events."""
    values: int
    """How many values these have."""


WORKLOADS = {
    "w1": Workload(_running_totals, 1_000),
    "w2": Workload(_long_windows, 1_000),
    "w2-short": Workload(_short_windows, 1_000),
    "w3": Workload(_falls, 997),
}


def pipeline(
    name: str,
    events: Events,
    workers: int,
    checkpoints: ps.Checkpoints | None,
    backend: str,
    runtime: ps.RuntimeSettings | None = None,
) -> ps.Pipeline:
    made = ps.Pipeline(name, parallelism=workers, checkpoints=checkpoints, backend=backend, runtime=runtime)
    stream = made.source(events.source(), uid=SOURCE)
    WORKLOADS[name].work(stream, events).sink(ps.sinks.Discard(), uid="discard")
    return made
