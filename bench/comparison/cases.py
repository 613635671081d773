"""What is measured, and in which order.

Systems take turns: within a round each workload is run by all of them, one after another, and every round begins with
another system. So what changes on the machine over the hours (heat, neighbours, a full page cache) meets all alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class System(StrEnum):
    PENSTOCK = "penstock"
    FLINK = "flink"
    SPARK = "spark"
    BYTEWAX = "bytewax"
    POLARS = "polars"


class Workload(StrEnum):
    W1 = "w1"
    W2 = "w2"
    W3 = "w3"
    LATENCY = "latency"


class Variant(StrEnum):
    PLAIN = ""
    MANY_KEYS = "10 M keys"
    STRING_KEYS = "string keys"
    SKEWED = "skewed keys"
    THREADS = "thread mode"
    LARGE_BUNDLES = "large bundles"


@dataclass(frozen=True)
class Case:
    """A system on a workload, perhaps in a variant of its own."""

    system: System
    workload: Workload
    variant: Variant = Variant.PLAIN

    def __str__(self) -> str:
        return f"{self.system} {self.workload}" + (f" ({self.variant})" if self.variant else "")


RUNS = {
    System.PENSTOCK: (Workload.W1, Workload.W2, Workload.W3, Workload.LATENCY),
    System.FLINK: (Workload.W1, Workload.W2, Workload.W3, Workload.LATENCY),
    # A micro-batch is out when it is committed: its latency is its duration, which w2 tells.
    System.SPARK: (Workload.W1, Workload.W2, Workload.W3),
    System.BYTEWAX: (Workload.W1, Workload.W2, Workload.W3),
    # One group_by over all events, to compare with: no stream, no function per record, no latency.
    System.POLARS: (Workload.W1, Workload.W2),
}
VARIANTS = {
    (System.PENSTOCK, Workload.W1): (Variant.MANY_KEYS, Variant.STRING_KEYS, Variant.SKEWED),
    # PyFlink runs functions in processes of their own, with bundles of few records or of many, or in threads of the
    # JVM. Which is best depends on the keys and the machine: all are tried, the fastest counts.
    (System.FLINK, Workload.W3): (Variant.LARGE_BUNDLES, Variant.THREADS),
}
LOAD_OF_LATENCY = {System.FLINK: Case(System.FLINK, Workload.W2)}
"""What tells the full load of systems that do not measure it themselves."""


SLOW = {Variant.LARGE_BUNDLES, Variant.THREADS}
"""More than a minute each: left out of a quick comparison. What was tried is said with the figures."""


def cases(
    systems: Sequence[System], workloads: Sequence[Workload], *, variants: bool = True, slow: bool = True
) -> list[Case]:
    """Everything that these systems can run of these workloads, in one round's order."""
    chosen: list[Case] = []
    for workload in Workload:
        for system in systems:
            if workload not in RUNS[system]:
                continue
            needed = LOAD_OF_LATENCY.get(system) if workload is Workload.LATENCY else None
            if workload in workloads and needed is not None and needed not in chosen:
                chosen.append(needed)
            if workload in workloads:
                chosen.append(Case(system, workload))
                others = VARIANTS.get((system, workload), ()) if variants else ()
                chosen += [Case(system, workload, other) for other in others if slow or other not in SLOW]
    return chosen


def schedule(chosen: Sequence[Case], rounds: int) -> list[tuple[int, Case]]:
    """All rounds. Workloads keep their order, for latency needs the load that w2 tells; systems take turns."""
    systems = list(dict.fromkeys(case.system for case in chosen))
    planned: list[tuple[int, Case]] = []
    for number in range(rounds):
        turn = number % len(systems)
        order = systems[turn:] + systems[:turn]
        ordered = sorted(chosen, key=lambda case: (list(Workload).index(case.workload), order.index(case.system)))
        planned += [(number, case) for case in ordered]
    return planned
