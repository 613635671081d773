"""Events per second of a workload in its steady state: every key is known, every kernel is loaded, checkpoints go on.

The job runs on embedded Spark, through the production path from source to sink. Workers count the rows that their
sources have read and say so every heartbeat, with their own clock beside it: the rate is taken between two such
sayings, so neither the start nor the delay of a message is part of it. At the source, because rows may be combined on
their way to the stateful operator; what lies between the two is bounded to a fraction of a second.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.bench.events import Events, KeyType
from penstock.bench.svg import Curve, curves
from penstock.bench.workloads import SOURCE, WORKLOADS, pipeline
from penstock.core.ids import WorkerId
from penstock.core.orders import JobState
from penstock.core.statistics import CheckpointStatistics, Status
from penstock.runtime.control.messages import Figures

_LEAST_WARM_UP = 4.0
_LEAST_ROUNDS = 2.0
"""How often every key has been seen before the measurement begins."""
_PATIENCE_SECONDS = 300.0
_POLL_SECONDS = 0.2
Say = Callable[[str], None]
Progress = Callable[[int, int], None]
"""Told how many seconds of how many are over."""
Sample = dict[WorkerId, Figures]


@dataclass(frozen=True)
class Run:
    """What to measure."""

    workload: str
    events: Events
    workers: int = 2
    seconds: float = 15.0
    every: str | None = "1s"
    """Between checkpoints; None: there are none."""
    backend: str = "memory"
    """Of the state of functions (w3)."""
    incremental: bool = True
    changelog: bool = False
    runtime: ps.RuntimeSettings | None = None


@dataclass(frozen=True)
class Figure:
    events_per_s: float
    events: int
    seconds: float
    keys: int
    workers: int
    checkpoints: int
    """Completed of those that began while events were counted."""
    failed_checkpoints: int
    checkpoint_ms_p50: float | None
    checkpoint_ms_p99: float | None
    bytes: int
    """Written by these checkpoints, all together."""
    busy: dict[str, float]
    """Of every chain: the share of the time that its subtasks were at work, 1 for each subtask."""
    cpu_ns_per_event: float | None
    """Of all workers together: what the machine is worth of events, whatever else it does."""
    worker_memory_bytes: list[int]
    """Of every worker: what it had resident at most, since it started. Pages that workers share count for each."""
    memory_bytes: int
    """All workers together."""
    own_memory_bytes: int
    """What is resident in all workers together at the end and shared with no other process: without the libraries that
    they were forked with."""
    proportional_memory_bytes: int
    """What was resident in all workers together at most, looked at once a second while events were counted. A page that
    several processes share counts for each of them in part, so all together once."""
    per_second: list[tuple[float, float]]
    """Events per second as they went: seconds since the start of the measurement, and the rate up to there."""
    checkpoints_at: list[tuple[float, float]]
    """Completed checkpoints: seconds since the start of the measurement, and how long each took, in milliseconds."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def run_of(
    workload: str,
    keys: int,
    key_type: KeyType,
    skewed: bool,
    workers: int,
    seconds: float,
    every: str | None,
    backend: str,
) -> Run:
    events = Events(keys, WORKLOADS[workload].values, key_type, skewed)
    return Run(workload, events, workers, seconds, every, backend)


def measure(run: Run, *, say: Say | None = None, progress: Progress | None = None) -> Figure:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        checkpoints = None if run.every is None else checkpoints_of(run, directory, run.every)
        job = pipeline(run.workload, run.events, run.workers, checkpoints, run.backend, run.runtime).start()
        try:
            return Watch(run, job, say or (lambda _: None), progress or (lambda done, all: None)).measure()
        finally:
            job.cancel()


def checkpoints_of(run: Run, directory: str, every: str) -> ps.Checkpoints:
    return ps.Checkpoints(directory, every=every, incremental=run.incremental, changelog=run.changelog)


class Watch:
    """Looks at a job while it runs."""

    def __init__(self, run: Run, job: Any, say: Say, progress: Progress = lambda done, all: None) -> None:
        self._run, self._job, self._say, self._progress = run, job, say, progress
        self._proportional = 0

    def warm_up(self) -> None:
        """Waits until the job runs and every key was seen."""
        self.until(lambda: self._job.status().state is JobState.RUNNING, "the workers to start")
        self._say(f"{self._run.workload}: running; warming up ...")
        began = time.monotonic()
        self.until(lambda: self._is_warm(time.monotonic() - began), "every key to be seen")

    def measure(self) -> Figure:
        self.warm_up()
        first, since, cpu = self.sample(), time.time() * 1000, self._cpu()
        self._say(f"{self._run.workload}: measuring for {self._run.seconds:g} s ...")
        samples = [first, *self._watched(first)]
        self.until(lambda: self._is_newer(first), "the workers to report")
        samples.append(self.sample())
        until, cpu = time.time() * 1000, self._cpu() - cpu
        return self._figure(samples, self.checkpoints(since, until), cpu, since)

    def _watched(self, first: Sample) -> Iterator[Sample]:
        """What workers say in the measured time, about once a second."""
        began = time.monotonic()
        while (passed := time.monotonic() - began) < self._run.seconds:
            self._progress(int(passed), int(self._run.seconds))
            self.pause(min(1.0, self._run.seconds - passed))
            sample = self.sample()
            self._proportional = max(self._proportional, self._memory("Pss:"))
            self._say(f"  {rate_of(first, sample, SOURCE) / 1e6:.2f} M events/s so far")
            yield sample

    def _figure(
        self, samples: Sequence[Sample], ended: Sequence[CheckpointStatistics], cpu: float, since: float
    ) -> Figure:
        first, last = samples[0], samples[-1]
        events = sum(rows_of(last[worker], SOURCE) - rows_of(first[worker], SOURCE) for worker in first)
        completed = [one for one in ended if one.status is Status.COMPLETED]
        durations = sorted(one.duration_ms for one in completed)
        seconds = statistics.mean((last[worker].at_ms - first[worker].at_ms) / 1000 for worker in first)
        memory = [_peak_rss(pid) for pid in self._job.workers().values()]
        return Figure(
            events_per_s=round(rate_of(first, last, SOURCE)),
            events=events,
            seconds=round(seconds, 3),
            keys=self._run.events.keys,
            workers=self._run.workers,
            checkpoints=len(completed),
            failed_checkpoints=len(ended) - len(completed),
            checkpoint_ms_p50=round(statistics.median(durations), 1) if durations else None,
            checkpoint_ms_p99=round(durations[int(len(durations) * 0.99)], 1) if durations else None,
            bytes=sum(one.state_bytes + one.in_flight_bytes for one in completed),
            busy=_busy(first, last),
            cpu_ns_per_event=round(cpu / events * 1e9, 1) if cpu and events else None,
            worker_memory_bytes=memory,
            memory_bytes=sum(memory),
            own_memory_bytes=self._memory("Private_Clean:", "Private_Dirty:"),
            proportional_memory_bytes=self._proportional,
            per_second=_per_second(samples, SOURCE),
            checkpoints_at=[(round((one.triggered_ms - since) / 1000, 2), one.duration_ms) for one in completed],
        )

    def sample(self) -> Sample:
        sample: Sample = self._job.figures()
        return sample

    @staticmethod
    def wall_ms() -> float:
        return time.time() * 1000

    def _memory(self, *kinds: str) -> int:
        return sum(_resident(pid, *kinds) for pid in self._job.workers().values())

    def _cpu(self) -> float:
        return sum(cpu_seconds(pid) for pid in self._job.workers().values())

    def _is_warm(self, seconds: float) -> bool:
        sample = self.sample()
        seen = sum(rows_of(figures, SOURCE) for figures in sample.values())
        enough = seen >= _LEAST_ROUNDS * self._run.events.keys and seconds >= _LEAST_WARM_UP
        return enough and len(sample) == self._run.workers

    def _is_newer(self, first: Sample) -> bool:
        last = self.sample()
        return all(last[worker].at_ms - figures.at_ms >= self._run.seconds * 1000 for worker, figures in first.items())

    def checkpoints(self, since: float, until: float) -> list[CheckpointStatistics]:
        return [
            one
            for one in self._job.checkpoints()
            if since <= one.triggered_ms <= until and one.status is not Status.IN_PROGRESS
        ]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {_PATIENCE_SECONDS:.0f} s in vain for {what}")
            self.pause(_POLL_SECONDS)

    def pause(self, seconds: float) -> None:
        if self._job.done(seconds):
            self._job.wait()
            raise RuntimeError("the job has ended while it was measured")


def rows_of(figures: Figures, chain: str) -> int:
    return sum(rows for subtask, rows in figures.rows_in.items() if _chain_of(subtask) == chain)


def rate_of(first: Sample, last: Sample, chain: str) -> float:
    """Events per second, all workers together, each by its own clock."""
    rate = 0.0
    for worker, before in first.items():
        seconds = (last[worker].at_ms - before.at_ms) / 1000
        rate += (rows_of(last[worker], chain) - rows_of(before, chain)) / seconds if seconds else 0.0
    return rate


def _per_second(samples: Sequence[Sample], chain: str) -> list[tuple[float, float]]:
    """Workers speak about once a second, not all at the same time: a sample that says nothing new is passed over."""
    rates: list[tuple[float, float]] = []
    before = samples[0]
    start = min(figures.at_ms for figures in before.values())
    for sample in samples[1:]:
        if all(figures.at_ms > before[worker].at_ms for worker, figures in sample.items() if worker in before):
            at = (max(figures.at_ms for figures in sample.values()) - start) / 1000
            rates.append((round(at, 2), round(rate_of(before, sample, chain))))
            before = sample
    return rates


def _busy(first: Sample, last: Sample) -> dict[str, float]:
    shares: dict[str, float] = {}
    for worker, before in first.items():
        after = last[worker]
        for subtask, seconds in after.busy.items():
            share = (seconds - before.busy[subtask]) * 1000 / (after.at_ms - before.at_ms)
            shares[_chain_of(subtask)] = round(shares.get(_chain_of(subtask), 0.0) + share, 3)
    return shares


def _chain_of(subtask: str) -> str:
    return subtask.rpartition("[")[0]


def _peak_rss(pid: int) -> int:
    """Bytes; 0 where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def _resident(pid: int, *kinds: str) -> int:
    """Bytes of these kinds, all together; 0 where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(kinds))


def cpu_seconds(pid: int) -> float:
    """Of all threads of a process so far; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def table(run: Run, figure: Figure) -> str:
    lines = [
        f"{run.workload}: {figure.events_per_s / 1e6:.2f} M events/s with {figure.keys:,} keys on {figure.workers}"
        f" workers ({figure.events / 1e6:.0f} M events in {figure.seconds:.1f} s)"
    ]
    if figure.checkpoint_ms_p50 is not None:
        lines.append(
            f"checkpoints: {figure.checkpoints}, median {figure.checkpoint_ms_p50:.0f} ms,"
            f" p99 {figure.checkpoint_ms_p99:.0f} ms, {figure.bytes / 1e6:.0f} MB in all"
            + (f"; {figure.failed_checkpoints} failed" if figure.failed_checkpoints else "")
        )
    busy = ", ".join(f"{chain} {share:.0%}" for chain, share in figure.busy.items())
    if figure.cpu_ns_per_event is not None:
        busy += f"; {figure.cpu_ns_per_event:.0f} ns of CPU per event"
    lines.append(f"busy: {busy}")
    memory = ", ".join(f"{size / 1e6:.0f} MB" for size in figure.worker_memory_bytes)
    own = f"{figure.proportional_memory_bytes / 1e6:.0f} MB if what they share counts once"
    lines.append(f"memory at most: {figure.memory_bytes / 1e6:.0f} MB ({memory}); {own}")
    return "\n".join(lines)


def plot(run: Run, figure: Figure) -> str:
    """The rate as it went, with the checkpoints, as an SVG document."""
    rates = [(at, rate / 1e6) for at, rate in figure.per_second]
    curve = Curve("events", rates, marks=[at for at, _ in figure.checkpoints_at if 0 <= at <= figure.seconds])
    title = f"{run.workload}: {figure.keys:,} keys on {figure.workers} workers; checkpoints are marked"
    return curves(title, "seconds", "M events/s", [curve])
