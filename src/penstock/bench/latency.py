"""From the creation of an event to the output that it is in, at a tenth of full load, with checkpoints.

The job is w2 with windows of 100 ms and a creation time per event: events -> event time -> keyed exchange -> count, sum
and newest creation time per key and window -> a sink that takes the age of every row. Event time is that of the
workload, 100 events per millisecond, so that a window takes as long as 10,000 events do; keys come again so seldom that
a row is an event. Full load is what w2 with such windows does as fast as it can, measured just before.

An event is created when its turn comes at the set rate, whether the source was in time or not, so that a job that falls
behind shows it; one that is held up for more than a second, for good, because its source does not make up for more.
Sinks sort what they measure into bins, each a hundredth wider than the one before, and hand the counts
over with their checkpoints.
"""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

import penstock as ps
from penstock.bench.events import Events, Index
from penstock.bench.svg import Curve, curves
from penstock.bench.throughput import Progress, Run
from penstock.bench.throughput import measure as measure_throughput
from penstock.bench.workloads import SHORT, windows
from penstock.connectors.base import Committer, SinkWriter
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.core.statistics import CheckpointStatistics, Status

_BIN = 1.01
_LEAST_MS = 0.01
_BINS = 2_000
"""Up to more than an hour."""
_WARM_UP_SECONDS = 5.0
LOAD = 0.1
"""Of full load."""
_EVENTS_PER_WINDOW = 10_000
Say = Callable[[str], None]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Figure:
    rate: float
    """Events per second."""
    full_load: float | None
    """Events per second; None: it was not measured, the rate was given."""
    keys: int
    workers: int
    window_ms: float
    """How long a window takes at this rate."""
    outputs: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    checkpoints: int
    checkpoint_ms_p50: float | None
    checkpoint_ms_p99: float | None
    bytes: int
    """Written by these checkpoints, all together."""
    ages: list[tuple[float, float]]
    """The distribution: milliseconds, and the share of outputs that are no older."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class Created:
    """The events with the time at which each is created: at even distances, so late that none is made before it.

    A source that begins late catches up at first: were the times counted from its first batch, all that follow would
    look younger than they are by as much. So the schedule is that of the batch that was the earliest by it.
    """

    def __init__(self, events: Events, rate: float) -> None:
        self._events, self._rate = events, rate
        self._start: float | None = None

    def __call__(self, index: Index) -> pa.RecordBatch:
        if index[-1]:  # not the first one of all, by which the columns' types are found out on the driver
            start = time.time() - float(index[-1]) / self._rate
            self._start = start if self._start is None else min(start, self._start)
        created = ((self._start or 0.0) + index / self._rate) * 1000.0
        return self._events(index).append_column("created", pa.array(created))


class Ages:
    """A sink that takes the age of every row, by its column `newest`, and keeps nothing else. `counts`: by bin, of the
    rows that are committed; on the driver."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts = np.zeros(_BINS, np.int64)

    def clear(self) -> None:
        with self._lock:
            self.counts[:] = 0

    def add(self, committables: Sequence[bytes]) -> None:
        with self._lock:
            for committable in committables:
                bins, counts = msgspec.msgpack.decode(committable, type=tuple[list[int], list[int]])
                self.counts[bins] += counts

    def writer(self) -> SinkWriter:
        return _AgesWriter()

    def committer(self, uid: Uid, job: str) -> Committer:
        return _AgesCommitter(self)

    def check(self, schema: pa.Schema) -> None: ...

    def __reduce__(self) -> tuple[type[Ages], tuple[()]]:
        return (Ages, ())


class _AgesWriter(SinkWriter):
    def __init__(self) -> None:
        self._counts = np.zeros(_BINS, np.int64)

    def write(self, batch: pa.RecordBatch) -> None:
        ages = time.time() * 1000.0 - batch.column("newest").to_numpy()
        bins = np.log(np.maximum(ages, _LEAST_MS) / _LEAST_MS) / math.log(_BIN)
        self._counts += np.bincount(np.minimum(bins.astype(np.int64), _BINS - 1), minlength=_BINS)

    def prepare(self, checkpoint: CheckpointId) -> Sequence[bytes]:
        (bins,) = np.nonzero(self._counts)
        counts, self._counts = self._counts[bins], np.zeros(_BINS, np.int64)
        return (msgspec.msgpack.encode((bins.tolist(), counts.tolist())),) if len(bins) else ()


class _AgesCommitter:
    def __init__(self, sink: Ages) -> None:
        self._sink = sink

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        self._sink.add(committables)

    def recover(
        self, checkpoint: CheckpointId | None, committables: Sequence[bytes], generation: Generation, attempt: Attempt
    ) -> None: ...

    def close(self) -> None: ...


def measure(
    events: Events,
    seconds: float,
    workers: int,
    every: str,
    rate: float | None = None,
    *,
    say: Say | None = None,
    progress: Progress | None = None,
) -> Figure:
    """`rate`: events per second; None: a tenth of full load, which is measured first."""
    say, progress = say or (lambda _: None), progress or (lambda done, all: None)
    full_load = None
    if rate is None:
        full_load = measure_throughput(Run("w2-short", events, workers, seconds, every), say=say).events_per_s
        rate = full_load * LOAD
    ages = Ages()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        job = _pipeline(events, rate, workers, ps.Checkpoints(directory, every=every), ages).start()
        try:
            job.trigger_checkpoint()
            say("latency: running; warming up ...")
            job.done(_WARM_UP_SECONDS)
            say(f"latency: measuring for {seconds:g} s at {rate / 1e6:.2f} M events/s ...")
            checkpoints = _run(job, ages, seconds, progress)
            return _figure(ages.counts.copy(), events, rate, full_load, workers, checkpoints)
        finally:
            job.cancel()


def _pipeline(events: Events, rate: float, workers: int, checkpoints: ps.Checkpoints, ages: Ages) -> ps.Pipeline:
    pipeline = ps.Pipeline("latency", parallelism=workers, checkpoints=checkpoints)
    source = ps.sources.Generator(None, Created(events, rate), rate=rate)
    windows(pipeline.source(source, uid="events"), SHORT, newest=ps.max("created")).sink(ages, uid="ages")
    return pipeline


def _run(job: Any, ages: Ages, seconds: float, progress: Progress) -> list[CheckpointStatistics]:
    """Fills `ages` with what comes out in that time. Returns the checkpoints that completed in it."""
    job.trigger_checkpoint()
    ages.clear()
    since = time.time() * 1000
    for passed in range(math.ceil(seconds)):
        progress(passed, math.ceil(seconds))
        if job.done(min(1.0, seconds - passed)):
            job.wait()
            raise RuntimeError("the job has ended while it was measured")
    until = time.time() * 1000
    job.trigger_checkpoint()
    completed = [one for one in job.checkpoints() if one.status is Status.COMPLETED]
    return [one for one in completed if since <= one.triggered_ms <= until]


def _figure(
    counts: Counts,
    events: Events,
    rate: float,
    full_load: float | None,
    workers: int,
    checkpoints: Sequence[CheckpointStatistics],
) -> Figure:
    (filled,) = np.nonzero(counts)
    durations = sorted(one.duration_ms for one in checkpoints)
    shares = np.cumsum(counts) / max(1, counts.sum())
    return Figure(
        rate=round(rate),
        full_load=full_load,
        keys=events.keys,
        workers=workers,
        window_ms=round(_EVENTS_PER_WINDOW / rate * 1000, 2),
        outputs=int(counts.sum()),
        p50_ms=quantile_ms(counts, 0.5),
        p99_ms=quantile_ms(counts, 0.99),
        p999_ms=quantile_ms(counts, 0.999),
        max_ms=_upper_ms(int(filled[-1])) if len(filled) else math.nan,
        checkpoints=len(checkpoints),
        checkpoint_ms_p50=round(float(np.median(durations)), 1) if durations else None,
        checkpoint_ms_p99=round(durations[int(len(durations) * 0.99)], 1) if durations else None,
        bytes=sum(one.state_bytes + one.in_flight_bytes for one in checkpoints),
        ages=[(_upper_ms(int(bin)), round(float(shares[bin]), 6)) for bin in filled],
    )


def quantile_ms(counts: Counts, share: float) -> float:
    """The age that so great a share of the rows does not exceed, to a hundredth."""
    total = int(counts.sum())
    if not total:
        return math.nan
    return _upper_ms(int(np.searchsorted(np.cumsum(counts), math.ceil(total * share))))


def _upper_ms(bin: int) -> float:
    return round(_LEAST_MS * _BIN ** (bin + 1), 3)


def table(figure: Figure) -> str:
    load = "" if figure.full_load is None else f", a tenth of {figure.full_load / 1e6:.2f} M"
    lines = [
        f"{figure.outputs:,} outputs at {figure.rate / 1e6:.2f} M events/s{load}; a window takes {figure.window_ms} ms",
        f"p50 {figure.p50_ms:.1f} ms, p99 {figure.p99_ms:.1f} ms, p99.9 {figure.p999_ms:.1f} ms,"
        f" max {figure.max_ms:.1f} ms",
    ]
    if figure.checkpoint_ms_p50 is not None:
        lines.append(
            f"checkpoints: {figure.checkpoints}, median {figure.checkpoint_ms_p50:.0f} ms,"
            f" p99 {figure.checkpoint_ms_p99:.0f} ms"
        )
    return "\n".join(lines)


def plot(figure: Figure) -> str:
    """How many of the outputs are no older than what, as an SVG document."""
    title = f"Latency at {figure.rate / 1e6:.2f} M events/s, {figure.workers} workers"
    return curves(title, "milliseconds", "share of outputs", [Curve("no older than", figure.ages)], logarithmic=True)
