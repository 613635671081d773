"""From the creation of an event to the output that it is in, at a set rate, with checkpoints.

The job is w1 with a creation time per event: events -> keyed exchange -> running count and newest creation time per key
-> a sink that takes the time. An event is created when its turn comes at the set rate, whether the source was in time
or not, so that a job that falls behind shows it. Sinks sort what they measure into bins, each a hundredth wider than
the one before, and hand the counts over with their checkpoints.
"""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

import penstock as ps
from penstock.bench.events import Events, Index
from penstock.connectors.base import Committer, SinkWriter
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid

_BIN = 1.01
_LEAST_MS = 0.01
_BINS = 2_000
"""Up to more than an hour."""
_WARM_UP_SECONDS = 5.0
Say = Callable[[str], None]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Figure:
    rate: float
    """Events per second."""
    outputs: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    checkpoints: int

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class Created:
    """The events with the time at which each is created: a rate's time after that of the first one made here."""

    def __init__(self, events: Events, rate: float) -> None:
        self._events, self._rate = events, rate
        self._start: float | None = None

    def __call__(self, index: Index) -> pa.RecordBatch:
        if self._start is None and index[-1]:
            self._start = time.time() - float(index[-1]) / self._rate
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


def measure(events: Events, rate: float, seconds: float, workers: int, every: str, *, say: Say | None = None) -> Figure:
    ages = Ages()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        pipeline = ps.Pipeline("latency", parallelism=workers, checkpoints=ps.Checkpoints(directory, every=every))
        (
            pipeline.source(ps.sources.Generator(None, Created(events, rate), rate=rate), uid="events")
            .key_by("key")
            .reduce(n=ps.count(), newest=ps.max("created"), uid="totals")
            .sink(ages, uid="ages")
        )
        job = pipeline.start()
        try:
            job.trigger_checkpoint()
            if say:
                say("latency: running; warming up ...")
            job.done(_WARM_UP_SECONDS)
            job.trigger_checkpoint()
            ages.clear()
            before = job.status().completed_checkpoints
            if say:
                say(f"latency: measuring for {seconds:g} s at {rate / 1e6:g} M events/s ...")
            job.done(seconds)
            checkpoints = job.status().completed_checkpoints - before
            job.trigger_checkpoint()
            return _figure(ages.counts.copy(), rate, checkpoints)
        finally:
            job.cancel()


def _figure(counts: Counts, rate: float, checkpoints: int) -> Figure:
    (filled,) = np.nonzero(counts)
    return Figure(
        rate=rate,
        outputs=int(counts.sum()),
        p50_ms=quantile_ms(counts, 0.5),
        p99_ms=quantile_ms(counts, 0.99),
        p999_ms=quantile_ms(counts, 0.999),
        max_ms=_upper_ms(int(filled[-1])) if len(filled) else math.nan,
        checkpoints=checkpoints,
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
    return (
        f"{figure.outputs:,} outputs at {figure.rate / 1e6:g} M events/s with {figure.checkpoints} checkpoints: "
        f"p50 {figure.p50_ms:.1f} ms, p99 {figure.p99_ms:.1f} ms, p99.9 {figure.p999_ms:.1f} ms,"
        f" max {figure.max_ms:.1f} ms"
    )
