"""Runs of whole jobs under faults, and what makes them worth something: they can be repeated exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from penstock.simulation.run import simulate, verify


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_jobs_survive_whatever_the_seeds_do_to_them(first: int) -> None:
    summary = verify(range(first, first + 10), processes=1)
    assert [(failure.seed, failure.message) for failure in summary.failures] == []
    assert summary.seeds == 10
    # The same seeds do the same things every time: this only says that the runs were not idle.
    assert summary.faults and summary.checkpoints and summary.steps


def test_the_summary_is_plain_json_with_the_figures_that_others_read() -> None:
    summary = json.loads(json.dumps(verify(range(3), processes=1).to_json()))
    assert {"seeds", "violations", "crashes", "checkpoints", "unaligned", "restores", "failures"} <= summary.keys()


@pytest.mark.parametrize("seed", [3, 14, 26])
def test_a_seed_runs_the_same_way_again(seed: int) -> None:
    first, second = simulate(seed), simulate(seed)
    assert (first.digest, first.steps, first.figures) == (second.digest, second.steps, second.figures)


def test_a_seed_runs_the_same_way_in_every_process() -> None:
    """Whatever the order of sets of strings, which differs from process to process."""
    program = "from penstock.simulation.run import simulate; print([simulate(seed).digest for seed in (5, 14)])"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1


def test_different_seeds_are_different_runs() -> None:
    assert len({simulate(seed).digest for seed in range(8)}) == 8


def test_seeds_are_run_in_several_processes_with_the_same_result() -> None:
    alone, together = verify(range(4), processes=1).to_json(), verify(range(4), processes=2).to_json()
    for summary in (alone, together):
        del summary["seconds"]
    assert alone == together
