"""From runs to figures that can be quoted: medians over the rounds, ratios between systems, goals met or not.

Only ratios mean anything beyond the machine: they come from medians of the same comparison, never from elsewhere.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .cases import Case, System, Variant, Workload
from .results import Run


@dataclass(frozen=True)
class Spread:
    """Of one figure over the rounds."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread | None:
        return Spread(statistics.median(values), min(values), max(values)) if values else None


@dataclass(frozen=True)
class Line:
    """What is known of one case."""

    case: Case
    runs: Sequence[Run]

    def spread(self, figure: str) -> Spread | None:
        found = [run.figures.get(figure) for run in self.runs if not run.failure]
        return Spread.of([value for value in found if value is not None])

    def median(self, figure: str) -> float | None:
        found = self.spread(figure)
        return None if found is None else found.median

    @property
    def remark(self) -> str:
        """What must be said beside the figures."""
        failed = [run.failure for run in self.runs if run.failure]
        if failed and len(failed) == len(self.runs):
            return f"failed: {failed[-1].splitlines()[0]}"
        said = [f"{len(failed)} of {len(self.runs)} runs failed"] if failed else []
        if self.case.system is not System.POLARS and self.median("checkpoints") == 0:
            said.append("no checkpoint completed")
        return "; ".join(said)


class Summary:
    def __init__(self, runs: Sequence[Run]) -> None:
        by_case: dict[Case, list[Run]] = {}
        for run in runs:
            by_case.setdefault(run.case, []).append(run)
        self.lines = {case: Line(case, found) for case, found in by_case.items()}

    def best(self, system: System, workload: Workload) -> Line | None:
        """Of what a system did on a workload as it is defined: the fastest. Penstock's variants are other workloads."""
        lines = [
            line
            for case, line in self.lines.items()
            if (case.system, case.workload) == (system, workload)
            and (system is not System.PENSTOCK or case.variant is Variant.PLAIN)
        ]
        return max(lines, key=lambda line: line.median("events_per_s") or 0.0, default=None)

    def rate(self, system: System, workload: Workload) -> float | None:
        line = self.best(system, workload)
        return None if line is None else line.median("events_per_s")

    def ratio(self, workload: Workload, system: System) -> float | None:
        """How many times as many events per second as that system Penstock does."""
        return _ratio(self.rate(System.PENSTOCK, workload), self.rate(system, workload))

    def variant(self, variant: Variant) -> float | None:
        """What Penstock does in a variant of w1, as a share of w1 itself."""
        rate = self.figure(Case(System.PENSTOCK, Workload.W1, variant), "events_per_s")
        return _ratio(rate, self.rate(System.PENSTOCK, Workload.W1))

    def figure(self, case: Case, name: str) -> float | None:
        line = self.lines.get(case)
        return None if line is None else line.median(name)


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


@dataclass(frozen=True)
class Goal:
    what: str
    value: float | None
    """None: not measured."""
    bound: float
    unit: str
    at_most: bool = False

    @property
    def is_met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value <= self.bound if self.at_most else self.value >= self.bound


def goals(summary: Summary) -> list[Goal]:
    """What Penstock wants to reach, all on 2 workers, with exactly-once checkpoints every second."""
    wanted = [
        Goal(f"{workload} against {system}", summary.ratio(workload, system), bound, " x")
        for workload, system, bound in (
            (Workload.W1, System.FLINK, 10.0),
            (Workload.W2, System.FLINK, 10.0),
            (Workload.W3, System.FLINK, 20.0),
            (Workload.W1, System.SPARK, 20.0),
            (Workload.W2, System.SPARK, 20.0),
            (Workload.W3, System.SPARK, 20.0),
            (Workload.W3, System.BYTEWAX, 20.0),
            (Workload.W1, System.POLARS, 0.5),
            (Workload.W2, System.POLARS, 0.5),
        )
    ]
    wanted += [
        Goal(f"w1 with {variant} against w1", summary.variant(variant), 0.5, " x")
        for variant in (Variant.MANY_KEYS, Variant.STRING_KEYS, Variant.SKEWED)
    ]
    memory = summary.figure(Case(System.PENSTOCK, Workload.W1, Variant.MANY_KEYS), "memory_bytes")
    latency = Case(System.PENSTOCK, Workload.LATENCY)
    return [
        *wanted,
        Goal("memory of all workers, w1 with 10 M keys", memory and memory / 1e6, 1000.0, " MB", at_most=True),
        Goal("latency at a tenth of full load, p50", summary.figure(latency, "p50_ms"), 10.0, " ms", at_most=True),
        Goal("latency at a tenth of full load, p99", summary.figure(latency, "p99_ms"), 100.0, " ms", at_most=True),
    ]
