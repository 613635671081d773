"""One measurement of Flink: w1, w2 and latency on its DataStream interface in Java, w3 on PyFlink.

The rate is taken at the source, from two readings of its counter over REST, once the job has run for `--warm` seconds:
the JVM goes on compiling for about a minute. Backlog between source and operators is bounded by Flink's own buffers, a
few MB, so that it does not matter. Checkpoints every second, exactly-once, parallelism 2, state on the heap.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import math
import subprocess
import sys
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import answer, asked, run, say, values_of
from flink_cluster import Cluster

HERE = Path(__file__).parent
_START_SECONDS = 120.0
_FIRST_EVENT_SECONDS = 120.0
_POLL_SECONDS = 0.25
_LEAST_MOVES = 3
_PAUSE_SECONDS = 2.0
"""A counter that has not moved for so long, and then does, moves in bursts."""
_MOST_TIMES = 8
"""How much longer than asked for a counter is watched that hardly moves."""
Reading = tuple[float, float]
"""A counter's value, and when it was read."""

JOB = {
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "state.backend.type": "hashmap",
    # Operators of a chain hand their records on without copying them; no function here keeps one.
    "pipeline.object-reuse": "true",
}
BUNDLES = {
    # A bundle is what Python gets at once, and state is written back when it ends. Large ones give more throughput
    # where keys come again within a bundle, but a checkpoint waits for the bundle's end, for many seconds.
    "small-bundles": {"python.fn-execution.bundle.size": "20000", "python.fn-execution.bundle.time": "1000"},
    "large-bundles": {"python.fn-execution.bundle.size": "200000", "python.fn-execution.bundle.time": "5000"},
    # Threads of the JVM have no bundles.
    "thread": {},
}
PYTHON = {
    # Keeps the state of all keys in the Python process; the default of 1000 keys would fetch almost every one anew.
    "python.state.cache-size": "1000000",
}


def main() -> None:
    options = asked("Measures Flink.", ("w1", "w2", "w3", "latency"), modes=tuple(BUNDLES))
    spec = importlib.util.find_spec("pyflink")
    if spec is None or spec.origin is None:
        sys.exit("there is no apache-flink in this environment")
    home = Path(spec.origin).parent
    python = options.workload == "w3"
    # Python and its state in process mode live in managed memory; otherwise all of it is better used as heap.
    managed = 0.3 if python else 0.02
    say("starting a cluster")
    with Cluster(home, options.scratch, options.workers, "6g", managed) as cluster:
        say("submitting the job")
        job = Job(cluster, cluster.submit(program(options, home)))
        try:
            measure(options, job)
        except Exception as error:
            raise RuntimeError(f"{error}\n{job.exceptions()}") from error


def program(options: argparse.Namespace, home: Path) -> list[str]:
    settings = JOB | {"parallelism.default": str(options.workers)}
    if options.workload == "w3":
        execution = "thread" if options.mode == "thread" else "process"
        settings |= PYTHON | BUNDLES[options.mode] | {"python.execution-mode": execution}
        start = ["-py", str(HERE / "flink_w3.py"), f"keys={options.keys}", f"values={values_of('w3')}"]
    else:
        start = [str(compiled(home)), f"job={options.workload}", f"keys={options.keys}", f"rate={options.rate or 1}"]
    return start + [f"{key}={value}" for key, value in settings.items()]


def compiled(home: Path) -> Path:
    """The jar with our jobs, compiled against Flink's own jars; kept in the environment until the source changes."""
    source = HERE / "Jobs.java"
    jar = Path(sys.prefix) / f"jobs-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.jar"
    if not jar.exists():
        say("compiling the jobs")
        classes = jar.with_suffix("")
        path = ":".join(map(str, (home / "lib").glob("*.jar")))
        subprocess.run(["javac", "-nowarn", "-cp", path, "-d", str(classes), str(source)], check=True)
        subprocess.run(["jar", "cfe", str(jar), "Jobs", "-C", str(classes), "."], check=True)
    return jar


class Job:
    """A running job, as seen over REST."""

    def __init__(self, cluster: Cluster, id: str) -> None:
        self._cluster, self._path = cluster, f"/jobs/{id}"
        self._counters: tuple[str, list[str]] | None = None

    def until_it_runs(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            found = self._cluster.get(self._path)
            states = {vertex["status"] for vertex in found["vertices"]}
            if states == {"RUNNING"}:
                return
            if found["state"] in ("FAILED", "CANCELED") or time.monotonic() > deadline:
                raise RuntimeError(f"the job is {found['state']}, its parts are {sorted(states)}")
            time.sleep(_POLL_SECONDS)

    def emitted(self) -> Reading:
        """How many events the source has put out so far, and when that was read."""
        path, names = self._counters or self._find_counters()
        query = ",".join(urllib.parse.quote(name) for name in names)
        values = self._cluster.get(f"{path}?get={query}")
        return sum(float(value["value"]) for value in values), time.time()

    def _find_counters(self) -> tuple[str, list[str]]:
        vertex = self._cluster.get(self._path)["vertices"][0]
        path = f"{self._path}/vertices/{vertex['id']}/metrics"
        deadline = time.monotonic() + _START_SECONDS
        while True:
            known = [str(metric["id"]) for metric in self._cluster.get(path)]
            names = [name for name in known if ".Source__" in name and name.endswith(".numRecordsOut")]
            if len(names) == vertex["parallelism"]:
                self._counters = (path, names)
                return self._counters
            if time.monotonic() > deadline:
                raise RuntimeError(f"the source does not tell how many records it has put out, only {known}")
            time.sleep(_POLL_SECONDS)

    def checkpoints(self, since: float, until: float) -> list[dict[str, Any]]:
        """Completed ones that were triggered in that time, in seconds since the epoch."""
        history = self._cluster.get(f"{self._path}/checkpoints")["history"]
        return [
            one
            for one in history
            if one["status"] == "COMPLETED" and since * 1000 <= one["trigger_timestamp"] <= until * 1000
        ]

    def ages(self) -> Counter[int]:
        """By the millisecond, how many outputs had which age so far."""
        found = self._cluster.get(f"{self._path}/accumulators")["user-task-accumulators"]
        text = next((one["value"] for one in found if one["name"] == "ages"), "{}").strip("{}")
        pairs = (pair.split("=") for pair in text.split(", ") if pair)
        return Counter({int(age): int(count) for age, count in pairs})

    def exceptions(self) -> str:
        return str(self._cluster.get(f"{self._path}/exceptions").get("root-exception") or "")[:2000]


def measure(options: argparse.Namespace, job: Job) -> None:
    job.until_it_runs()
    deadline = time.monotonic() + _FIRST_EVENT_SECONDS
    while job.emitted()[0] == 0:
        if time.monotonic() > deadline:
            raise RuntimeError(f"no event within {_FIRST_EVENT_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)
    say(f"warming up for {options.warm:g} s")
    watch(job, options.warm, lambda readings: True)
    ages = job.ages()
    say(f"measuring for {options.seconds:g} s")
    (before, since), (after, until) = span(watch(job, options.seconds))
    if after == before:
        raise RuntimeError(f"the source has put out nothing within {until - since:.0f} s")
    done = job.checkpoints(since, until)
    more: dict[str, Any] = {}
    if options.workload == "latency":
        more = quantiles(job.ages() - ages, options.rate)
    if options.workload == "w3":
        more["mode"] = options.mode
    durations = [float(one["end_to_end_duration"]) for one in done]
    size = sum(int(one["checkpointed_size"]) for one in done)
    answer(options, (after - before) / (until - since), durations, size, **more)


def watch(job: Job, seconds: float, tells: Callable[[list[Reading]], bool] | None = None) -> list[Reading]:
    """Reads the counter for so long, or longer, until it tells a rate. All the time: the cluster refreshes it only
    while somebody asks."""
    readings = [job.emitted()]
    while True:
        time.sleep(_POLL_SECONDS)
        readings.append(job.emitted())
        passed = readings[-1][1] - readings[0][1]
        if passed >= _MOST_TIMES * seconds or (passed >= seconds and (tells or tells_a_rate)(readings)):
            return readings


def tells_a_rate(readings: list[Reading]) -> bool:
    """It moves steadily, or two bursts have begun."""
    moved, begun = moves(readings), bursts(readings)
    steady = len(moved) >= _LEAST_MOVES and not begun and readings[-1][1] - moved[-1][1] <= _PAUSE_SECONDS
    return steady or len(begun) > 1


def span(readings: list[Reading]) -> tuple[Reading, Reading]:
    """Where to measure from and to. PyFlink takes its input in bursts, each of less than a second, and works on it for
    many seconds in between: what it takes within a burst is no rate. So it counts from the beginning of one burst to
    that of the last; a single one, for all the time that was watched."""
    moved, begun = moves(readings), bursts(readings)
    if len(begun) > 1:
        return begun[0], begun[-1]
    if begun or len(moved) < 2 or readings[-1][1] - moved[-1][1] > _PAUSE_SECONDS:
        return readings[0], readings[-1]
    return moved[0], moved[-1]


def moves(readings: list[Reading]) -> list[Reading]:
    return [after for before, after in pairwise(readings) if after[0] != before[0]]


def bursts(readings: list[Reading]) -> list[Reading]:
    """The last readings before it moved on after a pause."""
    begun, still_since = [], readings[0][1]
    for before, after in pairwise(readings):
        if after[0] != before[0]:
            if before[1] - still_since > _PAUSE_SECONDS:
                begun.append(before)
            still_since = after[1]
    return begun


def quantiles(ages: Counter[int], rate: float) -> dict[str, Any]:
    def at(share: float) -> float:
        left = share * ages.total()
        for age in sorted(ages):
            left -= ages[age]
            if left <= 0:
                return float(age)
        return math.inf

    figures = {"p50_ms": at(0.5), "p99_ms": at(0.99), "p999_ms": at(0.999)} if ages else {}
    return {"rate": rate, "outputs": ages.total(), "window_ms": round(10_000 / rate * 1000, 1), **figures}


if __name__ == "__main__":
    run(main)
