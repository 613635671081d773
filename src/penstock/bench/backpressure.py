"""How long a checkpoint takes when the sink is the bottleneck.

The job: events -> keyed exchange -> running count and sum per key -> round robin exchange -> a sink that takes 1 ms
for 10 records; two subtasks of each. The source is unlimited, so every queue on the way is as full as it may be. One
job per mode, measured after the queues have filled: first its periodic checkpoints, then savepoints that are asked for,
from the call until the copy is complete.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.bench.events import events
from penstock.bench.sinks import Slow
from penstock.core.barrier import Mode
from penstock.core.causes import Cause
from penstock.core.orders import JobState
from penstock.core.settings import InFlightSettings, RuntimeSettings
from penstock.core.statistics import CheckpointStatistics, Status

_SECONDS_PER_ROW = 1e-4
_KEYS = 1_000_000
_FILL_SECONDS = 5.0
_PATIENCE_SECONDS = 120.0
_SAVEPOINTS = 3
Say = Callable[[str], None]


@dataclass(frozen=True)
class Setup:
    mode: Mode
    time_sized: bool = True


SETUPS: dict[str, Setup] = {
    "unaligned": Setup(Mode.UNALIGNED),
    "adaptive": Setup(Mode.ADAPTIVE),
    "aligned_time_sized": Setup(Mode.ALIGNED),
    "at_least_once": Setup(Mode.AT_LEAST_ONCE),
    "stop_the_world": Setup(Mode.STOP_THE_WORLD),
    "aligned": Setup(Mode.ALIGNED, time_sized=False),
}


@dataclass(frozen=True)
class Figure:
    duration_ms: float
    """Median."""
    max_ms: float
    bytes_in_flight: int
    """Stored in the checkpoint as overtaken records; median."""
    completed: int
    expired: int
    savepoint_ms: float | None = None
    """Median, of savepoints as the user sees them; None if none came in time."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def measure(checkpoints: int, *, only: str | None = None, say: Say | None = None) -> dict[str, Figure]:
    if only is not None and only not in SETUPS:
        raise SystemExit(f"penstock bench backpressure: no mode {only!r}; choose from {', '.join(SETUPS)}")
    figures = {}
    for name, setup in SETUPS.items():
        if only in (None, name):
            if say:
                say(f"{name}: filling the queues, then {checkpoints} checkpoints ...")
            figures[name] = _measure(setup, checkpoints)
            if say:
                say(f"{name}: {figures[name].duration_ms:.0f} ms (max {figures[name].max_ms:.0f} ms)")
    return figures


def _measure(setup: Setup, checkpoints: int) -> Figure:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        job = _pipeline(setup, str(Path(directory, "checkpoints"))).start()
        try:
            figure = _summary(_sample(job, checkpoints))
            return replace(figure, savepoint_ms=_savepoints(job, Path(directory, "savepoints")))
        finally:
            job.cancel()


def _savepoints(job: Any, directory: Path) -> float | None:
    taken = []
    for number in range(_SAVEPOINTS):
        begin = time.monotonic()
        try:
            job.savepoint(str(directory / str(number)), timeout=_PATIENCE_SECONDS)
        except (TimeoutError, ps.CheckpointFailed):
            break
        taken.append((time.monotonic() - begin) * 1000)
    return round(statistics.median(taken), 1) if taken else None


def _pipeline(setup: Setup, directory: str) -> Any:
    in_flight = InFlightSettings() if setup.time_sized else InFlightSettings(target=None, max_rows=1 << 16)
    pipeline = ps.Pipeline(
        "backpressure",
        parallelism=2,
        checkpoints=ps.Checkpoints(directory, every="500ms", mode=setup.mode, timeout="60s", tolerable_failures=100),
        runtime=RuntimeSettings(in_flight=in_flight),
    )
    (
        pipeline.source(events(None, _KEYS), uid="events")
        .key_by("key")
        .reduce(n=ps.count(), total=ps.sum("value"), uid="totals")
        .rebalance()
        .sink(Slow(_SECONDS_PER_ROW), uid="slow")
    )
    return pipeline


def _sample(job: Any, checkpoints: int) -> Sequence[CheckpointStatistics]:
    """The checkpoints that were triggered after the queues had filled; fewer than asked for where one takes long."""
    filled_at = _filled(job)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        ended = [c for c in job.checkpoints() if c.triggered_ms >= filled_at and c.status is not Status.IN_PROGRESS]
        if len(ended) >= checkpoints or time.monotonic() > deadline or job.done(0.1):
            return ended[:checkpoints]


def _filled(job: Any) -> float:
    """When the sink has been the bottleneck for a while: wall clock, milliseconds."""
    while job.status().state is not JobState.RUNNING and not job.done(0.1):
        pass
    job.done(_FILL_SECONDS)
    return time.time() * 1000


def _summary(ended: Sequence[CheckpointStatistics]) -> Figure:
    completed = [c for c in ended if c.status is Status.COMPLETED]
    durations = [c.duration_ms for c in completed] or [float("nan")]
    return Figure(
        duration_ms=round(statistics.median(durations), 1),
        max_ms=round(max(durations), 1),
        bytes_in_flight=int(statistics.median([c.in_flight_bytes for c in completed] or [0])),
        completed=len(completed),
        expired=sum(c.cause is Cause.EXPIRED for c in ended),
    )


def table(figures: dict[str, Figure]) -> str:
    lines = [
        f"{'mode':20} {'median':>9} {'max':>9} {'in flight':>11} {'completed':>10} {'expired':>8} {'savepoint':>10}"
    ]
    for name, f in figures.items():
        savepoint = "none" if f.savepoint_ms is None else f"{f.savepoint_ms:.0f} ms"
        lines.append(
            f"{name:20} {f.duration_ms:6.0f} ms {f.max_ms:6.0f} ms {f.bytes_in_flight / 1e3:8.0f} kB"
            f" {f.completed:10} {f.expired:8} {savepoint:>10}"
        )
    return "\n".join(lines)
