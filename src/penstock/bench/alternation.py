"""What checkpoints cost, within one job: they are switched on and off again and again while it runs.

Two runs of the same job may differ by a third, for reasons that have nothing to do with it: where its memory came to
lie, what else the machine does. Within a run, rates drift slowly. So phases with checkpoints take turns with phases
without any, and each is compared with the mean of those before and after it. The cost is the mean over all, which
counts what happens seldom (a chain that is rewritten) as often as it happens; with it comes the interval in which it
lies with a probability of 95 %, by resampling.

Between two phases there is a pause that is not counted: what was begun in one must not be paid for in the other, and
the first checkpoint after a phase without has more to write than others. Nothing is written between barriers, in
either: with them at such short intervals it never is, and without them it would be a part of what is measured.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import penstock as ps
from penstock.bench.throughput import Run, Say, Watch, checkpoints_of, cpu_seconds, rate_of, rows_of
from penstock.bench.workloads import SOURCE, pipeline
from penstock.core.statistics import CheckpointStatistics, Status

PHASE_SECONDS = 2.5
PAUSE_SECONDS = 1.5
_HEARTBEAT_SECONDS = 0.1
"""How often workers say what they have done: a phase is as long as the sayings that fall into it."""
_NEVER = "1h"
_RESAMPLED = 2_000


@dataclass(frozen=True)
class Phase:
    with_checkpoints: bool
    events_per_s: float
    cpu_ns_per_event: float
    """Of all workers and of the driver's Python process, not of its Java process."""
    ended: Sequence[CheckpointStatistics] = ()


def measure(run: Run, every: str, phases: int, say: Say) -> list[Phase]:
    """So many phases with checkpoints, one more without."""
    runtime = run.runtime or ps.RuntimeSettings()
    quiet = replace(runtime.layers, flush_every=math.inf)
    run = replace(run, every=every, runtime=replace(runtime, layers=quiet, heartbeat_every=_HEARTBEAT_SECONDS))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        checkpoints = checkpoints_of(run, directory, every)
        job = pipeline(run.workload, run.events, run.workers, checkpoints, run.backend, run.runtime).start()
        try:
            watch = Watch(run, job, say)
            watch.warm_up()
            return list(_phases(job, watch, every, phases, say))
        finally:
            job.cancel()


def _phases(job: Any, watch: Watch, every: str, phases: int, say: Say) -> Iterator[Phase]:
    for number in range(2 * phases + 1):
        on = number % 2 == 1
        job.configure(every=every if on else _NEVER)
        watch.pause(PAUSE_SECONDS)
        phase = _measured(job, watch, on)
        say(f"  {'with' if on else 'without'} checkpoints: {phase.events_per_s / 1e6:.2f} M events/s")
        yield phase


def _measured(job: Any, watch: Watch, on: bool) -> Phase:
    pids = [os.getpid(), *job.workers().values()]
    first, since, cpu = watch.sample(), watch.wall_ms(), sum(map(cpu_seconds, pids))
    watch.pause(PHASE_SECONDS)
    last, until, cpu = watch.sample(), watch.wall_ms(), sum(map(cpu_seconds, pids)) - cpu
    rate = rate_of(first, last, SOURCE)
    events = sum(rows_of(last[worker], SOURCE) - rows_of(first[worker], SOURCE) for worker in first)
    ended = watch.checkpoints(since, until) if on else ()
    return Phase(on, rate, cpu * 1e9 / max(1, events), ended)


@dataclass(frozen=True)
class Cost:
    """A share of what there is without checkpoints."""

    mean: float
    interval: tuple[float, float]
    """Where it lies with a probability of 95 %."""
    each: Sequence[float]


def cost(phases: Sequence[Phase], of: Callable[[Phase], float]) -> Cost:
    """What is lost of `of`, which is the more the better."""
    return summary(list(_losses(phases, of)))


def summary(each: Sequence[float]) -> Cost:
    chance = random.Random(len(each))
    means = sorted(statistics.fmean(chance.choices(each, k=len(each))) for _ in range(_RESAMPLED))
    low, high = means[int(0.025 * _RESAMPLED)], means[int(0.975 * _RESAMPLED)]
    return Cost(statistics.fmean(each), (low, high), each)


def _losses(phases: Sequence[Phase], of: Callable[[Phase], float]) -> Iterator[float]:
    """Of every phase with checkpoints, compared with its neighbours."""
    for (before, phase), (_, after) in pairwise(pairwise(phases)):
        if phase.with_checkpoints:
            yield 1.0 - of(phase) / statistics.fmean((of(before), of(after)))


def durations(phases: Sequence[Phase]) -> list[float]:
    """In milliseconds, of all checkpoints that completed, in rising order."""
    every = (one for phase in phases for one in phase.ended)
    return sorted(one.duration_ms for one in every if one.status is Status.COMPLETED)
