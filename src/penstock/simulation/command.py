"""`penstock verify --simulate`: many seeds with their sum, or one with its story."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from rich.console import Console
from rich.progress import track

from penstock.simulation.run import Outcome, Summary, simulate, verify


def run(first: int, seeds: int, processes: int | None, as_json: bool) -> bool:
    """Whether no seed violated anything."""
    chosen = range(first, first + seeds)
    workers = processes or os.cpu_count() or 1
    if as_json:
        summary = verify(chosen, workers)
        json.dump(summary.to_json(), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        summary = _with_progress(chosen, workers)
    return not summary.violations


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
    outcome = simulate(seed)
    if as_json:
        json.dump(asdict(outcome), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        for line in outcome.story:
            print(line)
        print(f"seed {seed}: {outcome.violation or 'no violation'} ({outcome.steps} steps, digest {outcome.digest})")
    return outcome.violation is None
