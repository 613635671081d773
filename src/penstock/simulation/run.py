"""Runs seeds: one with its story, or many with their sum."""

from __future__ import annotations

import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, TypeVar

from penstock.simulation.faults import KIND
from penstock.simulation.scenario import random_scenario

if TYPE_CHECKING:
    from penstock.simulation.world import World

Run = TypeVar("Run")
"""What says which run it is: a seed, for example."""


@dataclass(frozen=True)
class Outcome:
    """Of one seed."""

    seed: int
    steps: int
    digest: str
    """Equal for two runs that went the same way."""
    violation: str | None
    story: tuple[str, ...]
    """The last events, oldest first; empty when all went well."""
    figures: Mapping[str, int]


@dataclass(frozen=True)
class Failure:
    seed: int
    message: str


@dataclass(frozen=True)
class Summary:
    seeds: int
    violations: int
    crashes: int
    faults: int
    checkpoints: int
    unaligned: int
    """Checkpoints that hold records in flight, or whose barriers overtook some."""
    failed_checkpoints: int
    restores: int
    rescaled: int
    """How often a running job went on at another parallelism."""
    savepoints: int
    steps: int
    seconds: float
    kinds: dict[str, int]
    """How often each kind of fault happened."""
    failures: list[Failure] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def simulate(seed: int) -> Outcome:
    """The run of one seed: the same at every call, in every process."""
    from penstock.simulation.world import World

    return observed(World(random_scenario(seed)), seed)


def observed(world: World, seed: int) -> Outcome:
    """Runs the world to its end and checks what came of it."""
    from penstock.simulation.checks import check

    violation = None
    try:
        with _quiet():
            world.run()
            check(world)
    except Exception as broken:
        # What production code lets escape is a violation too.
        violation = str(broken) if isinstance(broken, AssertionError) else "".join(traceback.format_exception(broken))
        world.story.tell(f"VIOLATION at step {world.scheduler.steps}: {violation}")
    return Outcome(
        seed=seed,
        steps=world.scheduler.steps,
        digest=world.story.digest,
        violation=violation,
        story=tuple(world.story.lines()) if violation else (),
        figures=world.figures(),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Faults are the point here: what production code logs about them is not for people."""
    logger = logging.getLogger("penstock")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def verify(seeds: Iterable[int], processes: int = 2, each: Callable[[Outcome], None] = lambda outcome: None) -> Summary:
    """Runs all seeds, in several processes, and adds up what they went through. `each` hears of every seed in turn."""
    began = time.perf_counter()
    found = []
    for outcome in outcomes(simulate, list(seeds), processes):
        each(outcome)
        found.append(outcome)
    return _sum_up(found, time.perf_counter() - began)


def outcomes(run: Callable[[Run], Outcome], runs: Sequence[Run], processes: int) -> Iterator[Outcome]:
    """Of all runs, in their order."""
    guarded = partial(_guarded, run)
    if processes > 1 and len(runs) > 1:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            yield from pool.map(guarded, runs, chunksize=max(1, min(50, len(runs) // 20)))
    else:
        yield from map(guarded, runs)


def _guarded(run: Callable[[Run], Outcome], which: Run) -> Outcome:
    """An exception that production code lets escape is a violation as well: nothing of it may stop the other runs."""
    try:
        return run(which)
    except Exception as error:
        story = tuple(traceback.format_exception(error))
        seed = which if isinstance(which, int) else 0
        return Outcome(seed, 0, "", f"{type(error).__name__}: {error}", story, {})


def _sum_up(found: list[Outcome], seconds: float) -> Summary:
    figures: Counter[str] = Counter()
    for outcome in found:
        figures.update(outcome.figures)
    failures = [Failure(outcome.seed, outcome.violation) for outcome in found if outcome.violation is not None]
    return Summary(
        seeds=len(found),
        violations=len(failures),
        crashes=figures["crashes"],
        faults=figures["faults"],
        checkpoints=figures["checkpoints"],
        unaligned=figures["unaligned"],
        failed_checkpoints=figures["failed_checkpoints"],
        restores=figures["restores"],
        rescaled=figures["rescaled"],
        savepoints=figures["savepoints"],
        steps=sum(outcome.steps for outcome in found),
        seconds=round(seconds, 3),
        kinds={name.removeprefix(KIND): n for name, n in sorted(figures.items()) if name.startswith(KIND)},
        failures=failures,
    )
