"""Checkpoints at short intervals with and without a changelog, while updates flow at full speed.

The job is w1 (a running count and sum per key, keyed exchange, two workers) with many keys, of which at a time only a
hundredth is updated; these move on through all keys. Measured in turn, several times: a job whose checkpoints write the
whole state, and one with a changelog, at the same interval. Compared within each round: how long checkpoints take (99th
percentile). What the changelog costs of the throughput without any is measured within its job, where checkpoints are
switched on and off (see `alternation`). All have little in flight (30 ms of work), because no checkpoint can be faster
than its barriers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import penstock as ps
from penstock.bench import alternation
from penstock.bench.alternation import PHASE_SECONDS, Phase
from penstock.bench.events import Events
from penstock.bench.throughput import Figure, Run
from penstock.bench.throughput import measure as measure_throughput
from penstock.core.settings import InFlightSettings
from penstock.core.statistics import Status

RECENT = 0.01
IN_FLIGHT = 0.03
Say = Callable[[str], None]


@dataclass(frozen=True)
class Comparison:
    """Medians over the rounds; lowest and highest in `..._range`."""

    keys: int
    recent_keys: int
    every: str
    rounds: int
    events_per_s: dict[str, float]
    checkpoint_ms_p50: dict[str, float]
    checkpoint_ms_p99: dict[str, float]
    checkpoints: dict[str, int]
    """Completed, over all rounds."""
    megabytes_per_checkpoint: dict[str, float]
    faster_p99: float
    """How many times faster than whole checkpoints."""
    faster_p99_range: tuple[float, float]
    throughput_cost: float
    """Of a changelog: the share of the throughput without checkpoints that is lost; the mean over all phases."""
    throughput_cost_range: tuple[float, float]
    """Over the phases."""
    throughput_cost_interval: tuple[float, float]
    """Where the mean lies with a probability of 95 %."""
    cpu_cost: float
    """As `throughput_cost`, but of events for each second of processor time, of all workers and the driver's Python
    process together: what is lost where the processors are the limit, whatever else the machine does."""
    cpu_cost_interval: tuple[float, float]
    phases: int
    """With checkpoints, over all rounds; as many were without."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def measure(keys: int, every: str, seconds: float, rounds: int, *, say: Say | None = None) -> Comparison:
    say, recent = say or (lambda line: None), max(1, int(keys * RECENT))
    runtime = ps.RuntimeSettings(in_flight=InFlightSettings(target=IN_FLIGHT))
    plain = Run("w1", Events(keys, recent=recent), seconds=seconds, every=every, runtime=runtime)
    whole: list[Figure] = []
    changelog: list[list[Phase]] = []
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}: checkpoints of the whole state ...")
        whole.append(measure_throughput(replace(plain, incremental=False)))
        say(f"round {number + 1} of {rounds}: a changelog, and no checkpoints ...")
        phases = math.ceil(seconds / PHASE_SECONDS)
        changelog.append(alternation.measure(replace(plain, changelog=True), every, phases, say))
    return compared(keys, recent, every, whole, changelog)


def compared(
    keys: int, recent: int, every: str, whole: Sequence[Figure], changelog: Sequence[Sequence[Phase]]
) -> Comparison:
    durations = [alternation.durations(phases) for phases in changelog]
    p99 = [_percentile(own, 0.99) for own in durations]
    faster = [(one.checkpoint_ms_p99 or 0.0) / (log or 1.0) for one, log in zip(whole, p99, strict=True)]
    throughput = _cost(changelog, lambda phase: phase.events_per_s)
    cpu = _cost(changelog, lambda phase: 1.0 / phase.cpu_ns_per_event)
    every_phase = [phase for phases in changelog for phase in phases]
    return Comparison(
        keys=keys,
        recent_keys=recent,
        every=every,
        rounds=len(whole),
        events_per_s={
            "none": round(_median([one.events_per_s for one in every_phase if not one.with_checkpoints])),
            "whole": _median([one.events_per_s for one in whole]),
            "changelog": round(_median([one.events_per_s for one in every_phase if one.with_checkpoints])),
        },
        checkpoint_ms_p50={
            "whole": _median([one.checkpoint_ms_p50 for one in whole]),
            "changelog": round(_median([_percentile(own, 0.5) for own in durations]), 1),
        },
        checkpoint_ms_p99={
            "whole": _median([one.checkpoint_ms_p99 for one in whole]),
            "changelog": round(_median(p99), 1),
        },
        checkpoints={"whole": sum(one.checkpoints for one in whole), "changelog": sum(map(len, durations))},
        megabytes_per_checkpoint={
            "whole": _megabytes(sum(one.bytes for one in whole), sum(one.checkpoints for one in whole)),
            "changelog": _megabytes(sum(map(_bytes, every_phase)), sum(map(len, durations))),
        },
        faster_p99=round(_median(faster), 2),
        faster_p99_range=(round(min(faster), 2), round(max(faster), 2)),
        throughput_cost=round(throughput.mean, 4),
        throughput_cost_range=_rounded(min(throughput.each), max(throughput.each)),
        throughput_cost_interval=_rounded(*throughput.interval),
        cpu_cost=round(cpu.mean, 4),
        cpu_cost_interval=_rounded(*cpu.interval),
        phases=len(cpu.each),
    )


def _cost(rounds: Sequence[Sequence[Phase]], of: Callable[[Phase], float]) -> alternation.Cost:
    return alternation.summary([loss for phases in rounds for loss in alternation.cost(phases, of).each])


def _percentile(rising: Sequence[float], share: float) -> float:
    return rising[int(len(rising) * share)] if rising else 0.0


def _bytes(phase: Phase) -> int:
    completed = (one for one in phase.ended if one.status is Status.COMPLETED)
    return sum(one.state_bytes + one.in_flight_bytes for one in completed)


def _megabytes(bytes: int, checkpoints: int) -> float:
    return round(bytes / max(1, checkpoints) / 1e6, 2)


def _rounded(low: float, high: float) -> tuple[float, float]:
    return round(low, 4), round(high, 4)


def _median(values: Sequence[float | None]) -> float:
    return statistics.median(value for value in values if value is not None) if any(values) else 0.0


def table(found: Comparison) -> str:
    lines = [
        f"{found.keys:,} keys, of which {found.recent_keys:,} are updated at a time; checkpoints every {found.every}",
        f"{'checkpoints':<12} {'events/s':>12} {'median':>10} {'p99':>10} {'MB each':>9} {'completed':>10}",
    ]
    for name, rate in found.events_per_s.items():
        line = f"{name:<12} {rate / 1e6:>10.2f} M"
        if name in found.checkpoint_ms_p50:
            line += f" {found.checkpoint_ms_p50[name]:>7.0f} ms {found.checkpoint_ms_p99[name]:>7.0f} ms"
            line += f" {found.megabytes_per_checkpoint[name]:>9.1f} {found.checkpoints[name]:>10}"
        lines.append(line)
    low, high = found.faster_p99_range
    lines.append(f"with a changelog they are {found.faster_p99:.1f} times faster (p99; {low:.1f} to {high:.1f}),")
    low, high = found.throughput_cost_interval
    cost = f"at {found.throughput_cost:.1%} of the throughput without checkpoints"
    lines.append(f"{cost} (95 %: {low:.1%} to {high:.1%}; {found.phases} phases),")
    low, high = found.cpu_cost_interval
    lines.append(f"or {found.cpu_cost:.1%} by the processor time of all events (95 %: {low:.1%} to {high:.1%})")
    return "\n".join(lines)
