"""Every change of size from every kind of snapshot, each with many seeds: `penstock verify --rescale`.

A cell of the matrix is a pair of sizes and a kind of snapshot; a run is one job in its three lives (see `phases`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from penstock.simulation.phases import KINDS, PAIRS, Lives, Sizes, live
from penstock.simulation.run import Outcome, outcomes

KEPT: Final = ("in_flight", "keyed", "list", "union", "raw", "broadcast", "evolved")
"""What runs are counted by: records in flight, and the kinds of state, that a life at another size began with; and
whether the types of the state changed on the way."""


@dataclass(frozen=True)
class CellSummary:
    """`had` says in how many runs there was each of `KEPT`."""

    pair: str
    kind: str
    runs: int
    violations: int
    three_lives: int
    """Runs that did not come to their end before they were rescaled."""
    had: dict[str, int]


@dataclass(frozen=True)
class FailedLives:
    pair: str
    kind: str
    seed: int
    message: str

    @property
    def replay(self) -> str:
        return f"penstock verify --rescale --pair {self.pair} --kind {self.kind!r} --seed {self.seed}"


@dataclass(frozen=True)
class MatrixSummary:
    runs: int
    violations: int
    three_lives: int
    had: dict[str, int]
    checkpoints: int
    restores: int
    steps: int
    seconds: float
    cells: list[CellSummary]
    failures: list[FailedLives]

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def named(pair: Sizes) -> str:
    return f"{pair[0]}-{pair[1]}"


def runs_of(seeds: Iterable[int], pairs: Sequence[Sizes] = PAIRS, kinds: Sequence[str] = KINDS) -> list[Lives]:
    """Seed by seed all cells."""
    return [Lives(kind, *pair, seed) for seed in seeds for pair in pairs for kind in kinds]


def verify_lives(
    runs: Sequence[Lives], processes: int = 2, each: Callable[[Lives, Outcome], None] = lambda lives, outcome: None
) -> MatrixSummary:
    """Runs all of them, in several processes. `each` hears of every run in turn."""
    began = time.perf_counter()
    cells: dict[tuple[str, str], list[Outcome]] = {}
    failures: list[FailedLives] = []
    for lives, outcome in zip(runs, outcomes(live, runs, processes), strict=True):
        each(lives, outcome)
        pair = named((lives.old, lives.new))
        cells.setdefault((pair, lives.kind), []).append(outcome)
        if outcome.violation is not None:
            failures.append(FailedLives(pair, lives.kind, lives.seed, outcome.violation))
    return _sum_up(cells, failures, time.perf_counter() - began)


def _sum_up(cells: dict[tuple[str, str], list[Outcome]], failures: list[FailedLives], seconds: float) -> MatrixSummary:
    every = [outcome for found in cells.values() for outcome in found]
    figures: Counter[str] = Counter()
    for outcome in every:
        figures.update(outcome.figures)
    return MatrixSummary(
        runs=len(every),
        violations=len(failures),
        three_lives=_in_three_lives(every),
        had=_had(every),
        checkpoints=figures["checkpoints"],
        restores=figures["restores"],
        steps=sum(outcome.steps for outcome in every),
        seconds=round(seconds, 3),
        cells=[
            CellSummary(
                pair,
                kind,
                len(found),
                sum(outcome.violation is not None for outcome in found),
                _in_three_lives(found),
                _had(found),
            )
            for (pair, kind), found in cells.items()
        ],
        failures=failures,
    )


def _in_three_lives(found: Sequence[Outcome]) -> int:
    return sum(outcome.figures.get("lives") == 3 for outcome in found)


def _had(found: Sequence[Outcome]) -> dict[str, int]:
    return {what: sum(bool(outcome.figures.get(what)) for outcome in found) for what in KEPT}
