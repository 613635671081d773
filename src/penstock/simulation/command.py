"""`penstock verify --simulate`, `--rescale` and `--operators`: many runs with their sum, or one with its story."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track
from rich.table import Table

from penstock.simulation.cases.catalogue import CASES
from penstock.simulation.matrix import KEPT, MatrixSummary, named, runs_of, verify_lives
from penstock.simulation.operators import OperatorRun, OperatorSummary, operate, operator_runs, verify_operators
from penstock.simulation.phases import KINDS, PAIRS, Lives, Sizes, live
from penstock.simulation.run import Outcome, Summary, simulate, verify

Found = TypeVar("Found")


def run(seeds: range, processes: int | None, as_json: bool) -> bool:
    """Whether no seed violated anything."""
    workers = processes or os.cpu_count() or 1
    if as_json:
        summary = verify(seeds, workers)
        _print_json(summary.to_json())
    else:
        summary = _with_progress(seeds, workers)
    return not summary.violations


def _print_json(content: object) -> None:
    json.dump(content, sys.stdout, indent=2)
    sys.stdout.write("\n")


def _with_progress(seeds: range, processes: int) -> Summary:
    console = Console()
    ticks = iter(track(seeds, description="simulating", console=console))

    def each(outcome: Outcome) -> None:
        next(ticks, None)
        if outcome.violation:
            console.print(f"seed {outcome.seed}: {outcome.violation}")

    summary = verify(seeds, processes, each)
    next(ticks, None)
    console.print(
        f"{summary.seeds} seeds, {summary.violations} violations in {summary.seconds:.0f} s: {summary.crashes} crashes,"
        f" {summary.faults} faults, {summary.checkpoints} checkpoints ({summary.unaligned} unaligned,"
        f" {summary.failed_checkpoints} failed), {summary.restores} restores"
    )
    if summary.violations:
        console.print(f"replay one with: penstock verify --simulate --seed {summary.failures[0].seed}")
    return summary


def replay(seed: int, as_json: bool) -> bool:
    """The same run again, step by step, with what happened if it went wrong."""
    return _told(f"seed {seed}", simulate(seed), as_json)


def _told(name: str, outcome: Outcome, as_json: bool) -> bool:
    if as_json:
        _print_json(asdict(outcome))
    else:
        for line in outcome.story:
            print(line)
        print(f"{name}: {outcome.violation or 'no violation'} ({outcome.steps} steps, digest {outcome.digest})")
    return outcome.violation is None


# ---- the matrix of sizes and kinds of snapshots ----
def pair_of(name: str) -> Sizes:
    """Raises `ValueError` for a pair that is none of the matrix."""
    pairs = {named(pair): pair for pair in PAIRS}
    if name not in pairs:
        raise ValueError(f"there is no pair {name!r}: it must be one of {', '.join(pairs)}")
    return pairs[name]


def rescale(
    seeds: range, pair: Sizes | None, kind: str | None, processes: int | None, as_json: bool, *, story: bool
) -> bool:
    """Whether no run of the chosen cells violated anything. `story`: there is one run, and it is told."""
    runs = runs_of(seeds, PAIRS if pair is None else [pair], KINDS if kind is None else [kind])
    if story:
        return _told(str(runs[0]), live(runs[0]), as_json)
    workers = processes or os.cpu_count() or 1
    if as_json:
        summary = verify_lives(runs, workers)
        _print_json(summary.to_json())
    else:
        summary = _lives_with_progress(runs, workers)
    return not summary.violations


def _lives_with_progress(runs: list[Lives], processes: int) -> MatrixSummary:
    console = Console()
    summary = _tracked(console, "rescaling", runs, lambda each: verify_lives(runs, processes, each))
    console.print(_table(summary))
    console.print(
        f"{summary.runs} runs, {summary.violations} violations in {summary.seconds:.0f} s: {summary.checkpoints}"
        f" checkpoints, {summary.restores} restores"
    )
    if summary.failures:
        console.print(f"replay one with: {summary.failures[0].replay}")
    return summary


def _tracked(
    console: Console,
    doing: str,
    runs: Sequence[Any],
    verify: Callable[[Callable[[Any, Outcome], None]], Found],
) -> Found:
    """What `verify` finds, with its progress and its violations shown as they come."""
    ticks = iter(track(runs, description=doing, console=console))

    def each(run: object, outcome: Outcome) -> None:
        next(ticks, None)
        if outcome.violation:
            console.print(f"{run}: {outcome.violation}")

    summary = verify(each)
    next(ticks, None)
    return summary


def _table(summary: MatrixSummary) -> Table:
    """In how many runs of each cell there was what."""
    table = Table("pair", "kind", "runs", "violations", "three lives", *(what.replace("_", " ") for what in KEPT))
    for cell in summary.cells:
        figures = (cell.runs, cell.violations, cell.three_lives, *cell.had.values())
        table.add_row(cell.pair, cell.kind, *map(str, figures))
    return table


# ---- operator cases ----
def operators(seeds: range, case: str | None, processes: int | None, as_json: bool, *, story: bool) -> bool:
    """Whether no run of the chosen cases violated anything. `story`: there is one run, and it is told."""
    runs = operator_runs(seeds, tuple(CASES) if case is None else (case,))
    if story:
        return _told(str(runs[0]), operate(runs[0]), as_json)
    workers = processes or os.cpu_count() or 1
    if as_json:
        summary = verify_operators(runs, workers)
        _print_json(summary.to_json())
    else:
        summary = _operators_with_progress(runs, workers)
    return not summary.violations


def _operators_with_progress(runs: list[OperatorRun], processes: int) -> OperatorSummary:
    console = Console()
    summary = _tracked(console, "operating", runs, lambda each: verify_operators(runs, processes, each))
    columns = ("runs", "violations", "records", "checkpoints", "restores", "rescaled")
    table = Table("case", *columns)
    for of_case in summary.cases:
        table.add_row(of_case.case, *(str(getattr(of_case, column)) for column in columns))
    console.print(table)
    console.print(f"{summary.runs} runs, {summary.violations} violations in {summary.seconds:.0f} s")
    if summary.failures:
        console.print(f"replay one with: {summary.failures[0].replay}")
    return summary
