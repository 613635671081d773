"""Checkpoints at short intervals with and without a changelog, while updates flow at full speed.

The job is w1 (a running count and sum per key, keyed exchange, two workers) with many keys, of which at a time only a
hundredth is updated; these move on through all keys. Measured in turn, several times: without checkpoints, with
checkpoints that write the whole state, and with a changelog, the latter two at the same interval. Compared within each
round: how long checkpoints take (99th percentile), and what the changelog costs of the throughput without any. All have
little in flight (30 ms of work), because no checkpoint can be faster than its barriers.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import penstock as ps
from penstock.bench.events import Events
from penstock.bench.throughput import Figure, Run
from penstock.bench.throughput import measure as measure_throughput
from penstock.core.settings import InFlightSettings

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
    """Of a changelog: the share of the throughput without checkpoints that is lost."""
    throughput_cost_range: tuple[float, float]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def measure(keys: int, every: str, seconds: float, rounds: int, *, say: Say | None = None) -> Comparison:
    recent = max(1, int(keys * RECENT))
    runtime = ps.RuntimeSettings(in_flight=InFlightSettings(target=IN_FLIGHT))
    plain = Run("w1", Events(keys, recent=recent), seconds=seconds, every=None, runtime=runtime)
    runs = {
        "none": plain,
        "whole": replace(plain, every=every, incremental=False),
        "changelog": replace(plain, every=every, changelog=True),
    }
    figures: dict[str, list[Figure]] = {name: [] for name in runs}
    for number in range(rounds):
        for name, run in runs.items():
            if say:
                say(f"round {number + 1} of {rounds}: checkpoints: {name} ...")
            figures[name].append(measure_throughput(run))
    return _compared(keys, recent, every, figures)


def _compared(keys: int, recent: int, every: str, figures: dict[str, list[Figure]]) -> Comparison:
    with_checkpoints = {name: own for name, own in figures.items() if name != "none"}
    faster = [
        (whole.checkpoint_ms_p99 or 0.0) / (log.checkpoint_ms_p99 or 1.0)
        for whole, log in zip(figures["whole"], figures["changelog"], strict=True)
    ]
    cost = [
        1.0 - log.events_per_s / none.events_per_s
        for none, log in zip(figures["none"], figures["changelog"], strict=True)
    ]
    return Comparison(
        keys=keys,
        recent_keys=recent,
        every=every,
        rounds=len(cost),
        events_per_s={name: _median([one.events_per_s for one in own]) for name, own in figures.items()},
        checkpoint_ms_p50={n: _median([one.checkpoint_ms_p50 for one in own]) for n, own in with_checkpoints.items()},
        checkpoint_ms_p99={n: _median([one.checkpoint_ms_p99 for one in own]) for n, own in with_checkpoints.items()},
        checkpoints={name: sum(one.checkpoints for one in own) for name, own in with_checkpoints.items()},
        megabytes_per_checkpoint={
            name: round(sum(one.bytes for one in own) / max(1, sum(one.checkpoints for one in own)) / 1e6, 2)
            for name, own in with_checkpoints.items()
        },
        faster_p99=round(_median(faster), 2),
        faster_p99_range=(round(min(faster), 2), round(max(faster), 2)),
        throughput_cost=round(_median(cost), 4),
        throughput_cost_range=(round(min(cost), 4), round(max(cost), 4)),
    )


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
    low, high = found.throughput_cost_range
    lines.append(f"at {found.throughput_cost:.1%} of the throughput without checkpoints ({low:.1%} to {high:.1%})")
    return "\n".join(lines)
