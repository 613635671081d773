"""Other sizes, savepoints and forks on Spark: the committed output is exact."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.spark.support import accounts
from tests.spark.support.jobs import PATIENCE, kill_worker, wait_for_checkpoints

import penstock as ps
from penstock.spark.job import CheckpointFailed

RATE = 6_000


def pipeline(directory: Path, parallelism: int, mode: str = "adaptive", name: str = "accounts") -> ps.Pipeline:
    made = ps.Pipeline(
        name,
        parallelism=parallelism,
        checkpoints=ps.Checkpoints(directory / "checkpoints", every="100ms", mode=mode, alignment_timeout="20ms"),
        restart=ps.restart.fixed_delay(0, attempts=100),
    )
    accounts.build(made, ps.sinks.Files(directory / "accounts"), count=None, rate=RATE)
    return made


def drained(job: Any, directory: Path) -> Any:
    job.stop(timeout=PATIENCE)
    return accounts.committed(directory / "accounts")


@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_a_running_job_grows_and_shrinks(start: Any, tmp_path: Path, mode: str) -> None:
    job = start(pipeline(tmp_path, 2, mode))
    wait_for_checkpoints(job, 2)
    for parallelism in (3, 1, 2):
        outcome = job.rescale(parallelism, timeout=PATIENCE)
        assert outcome.parallelism == parallelism and outcome.outage > 0
        wait_for_checkpoints(job, 1)
        assert len(job.status().workers) == parallelism
    kill_worker(job, Random(1))
    wait_for_checkpoints(job, 2)
    assert job.status().restarts == 1
    assert accounts.problems(drained(job, tmp_path)) == []


def test_a_job_stops_with_a_savepoint_and_goes_on_at_another_size(start: Any, tmp_path: Path) -> None:
    first = start(pipeline(tmp_path, 2, "unaligned"))
    wait_for_checkpoints(first, 2)
    first.stop(drain=False, savepoint=str(tmp_path / "saved"), timeout=PATIENCE)
    second = start(pipeline(tmp_path, 3), restore=str(tmp_path / "saved"), claim=True)
    wait_for_checkpoints(second, 2)
    assert not (tmp_path / "saved" / "savepoint.json").exists()
    assert accounts.problems(drained(second, tmp_path)) == []


def test_a_fork_begins_from_a_savepoint_of_a_job_that_goes_on(start: Any, tmp_path: Path) -> None:
    job = start(pipeline(tmp_path, 2))
    wait_for_checkpoints(job, 1)
    job.savepoint(str(tmp_path / "saved"), timeout=PATIENCE)
    with pytest.raises(CheckpointFailed, match="a directory of its own"):
        job.savepoint(str(tmp_path / "saved"), timeout=PATIENCE)
    fork = start(pipeline(tmp_path / "fork", 1, name="fork"), restore=str(tmp_path / "saved"))
    wait_for_checkpoints(fork, 1)
    fork.cancel()
    wait_for_checkpoints(job, 1)
    assert accounts.problems(drained(job, tmp_path)) == []


def test_a_drained_job_leaves_a_savepoint_of_all_its_state(start: Any, tmp_path: Path) -> None:
    job = start(pipeline(tmp_path, 2))
    wait_for_checkpoints(job, 1)
    job.stop(savepoint=str(tmp_path / "saved"), timeout=PATIENCE)
    assert accounts.problems(accounts.committed(tmp_path / "accounts")) == []
    again = start(pipeline(tmp_path / "again", 2), restore=str(tmp_path / "saved"))
    assert again.wait(PATIENCE).state == "finished"
