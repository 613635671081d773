"""What the machine gives to one Polars `group_by` over the same events: no stream, no state, no checkpoints.

The events lie in memory, made beforehand; every round groups all of them once, on all cores: by key (w1), or by key and
window of 10 s (w2).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import polars as pl

from penstock.bench.events import Events

GROUPS = {"w1": [pl.col("key")], "w2": [pl.col("key"), pl.col("ts") // 10_000]}
Say = Callable[[str], None]


@dataclass(frozen=True)
class Figure:
    events_per_s: float
    """Median."""
    events_per_s_max: float
    events: int
    keys: int
    threads: int

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def measure(events: Events, count: int, rounds: int, *, workload: str = "w1", say: Say | None = None) -> Figure:
    by = GROUPS[workload]
    frame = pl.DataFrame(events(np.arange(count)).select(["key", "value", "ts"]))
    rates = []
    for number in range(rounds + 1):
        began = time.perf_counter()
        frame.group_by(by).agg(pl.len().alias("n"), pl.col("value").sum().alias("total"))
        rates.append(count / (time.perf_counter() - began))
        if say and number:
            say(f"  {rates[-1] / 1e6:.2f} M events/s")
    measured = rates[1:]  # the first round wakes threads and memory up
    return Figure(round(statistics.median(measured)), round(max(measured)), count, events.keys, pl.thread_pool_size())


def table(figure: Figure) -> str:
    return (
        f"Polars group_by: {figure.events_per_s / 1e6:.2f} M events/s (at best {figure.events_per_s_max / 1e6:.2f} M)"
        f" over {figure.events / 1e6:.0f} M events with {figure.keys:,} keys, on {figure.threads} threads"
    )
