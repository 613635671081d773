"""From the SIGKILL of a worker to the first new output.

The job: rate-limited events -> keyed exchange -> running count and sum per key -> a sink that notes the first output of
every attempt; two subtasks of each, checkpoints every 200 ms, small state. Once with a spare worker that waits for its
turn, once without: then Spark has to start another process first.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.bench.events import events
from penstock.bench.sinks import FirstOutput

_RATE = 50_000
_KEYS = 10_000
_PATIENCE_SECONDS = 60.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Figure:
    """All from the kill, in milliseconds; medians."""

    detect_ms: float
    """The master knows."""
    restore_ms: float
    """Every subtask runs again, from the newest complete checkpoint."""
    first_output_ms: float
    first_output_max_ms: float
    kills: int

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def measure(kills: int, *, say: Say | None = None) -> dict[str, Figure]:
    figures = {}
    for name, spares in (("with_spare", 1), ("without_spare", 0)):
        if say:
            say(f"{name}: {kills} kills ...")
        figures[name] = _measure(kills, spares)
    return figures


def _measure(kills: int, spares: int) -> Figure:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        marks = Path(directory, "first-output")
        marks.mkdir()
        sink = FirstOutput(str(marks))
        job = _pipeline(directory, sink, spares).start()
        try:
            return _summary([_kill_one(job, sink, spares) for _ in range(kills)])
        finally:
            job.cancel()


def _pipeline(directory: str, sink: FirstOutput, spares: int) -> ps.Pipeline:
    pipeline = ps.Pipeline(
        "recovery",
        parallelism=2,
        spares=spares,
        checkpoints=ps.Checkpoints(f"{directory}/checkpoints", every="200ms"),
        restart=ps.restart.fixed_delay(0, attempts=1_000),
    )
    (
        pipeline.source(events(None, _KEYS, rate=_RATE), uid="events")
        .key_by("key")
        .reduce(n=ps.count(), total=ps.sum("value"), uid="totals")
        .sink(sink, uid="first-output")
    )
    return pipeline


@dataclass(frozen=True)
class _Kill:
    detect_ms: float
    restore_ms: float
    first_output_ms: float


def _kill_one(job: Any, sink: FirstOutput, spares: int) -> _Kill:
    before = job.status()
    _until(lambda: _settled(job, before.completed_checkpoints + 3, spares), "the job to run with all its workers")
    attempt = job.status().attempt
    victim = job.workers()[job.status().workers[0]]
    killed = time.time()
    os.kill(victim, signal.SIGKILL)
    _until(lambda: any(later > attempt for later in sink.attempts()), "new output")
    incident = job.incidents()[-1]
    first = min(at for later, at in sink.attempts().items() if later > attempt)
    return _Kill(incident.detected_ms - killed * 1000, incident.restarted_ms - killed * 1000, (first - killed) * 1000)


def _settled(job: Any, checkpoints: int, spares: int) -> bool:
    status = job.status()
    return status.completed_checkpoints >= checkpoints and len(status.spares) >= spares


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_PATIENCE_SECONDS:.0f} s in vain for {what}")
        time.sleep(0.01)


def _summary(samples: Sequence[_Kill]) -> Figure:
    first_outputs = [sample.first_output_ms for sample in samples]
    return Figure(
        detect_ms=round(statistics.median(sample.detect_ms for sample in samples), 1),
        restore_ms=round(statistics.median(sample.restore_ms for sample in samples), 1),
        first_output_ms=round(statistics.median(first_outputs), 1),
        first_output_max_ms=round(max(first_outputs), 1),
        kills=len(samples),
    )


def table(figures: dict[str, Figure]) -> str:
    lines = [f"{'':15} {'detected':>10} {'restored':>10} {'first output':>13} {'(max)':>10}"]
    for name, f in figures.items():
        lines.append(
            f"{name.replace('_', ' '):15} {f.detect_ms:7.0f} ms {f.restore_ms:7.0f} ms {f.first_output_ms:10.0f} ms"
            f" {f.first_output_max_ms:7.0f} ms"
        )
    return "\n".join(lines)
