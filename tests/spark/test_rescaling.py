"""Other sizes, savepoints and forks on Spark: the committed output is exact."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.spark.support import accounts
from tests.spark.support.jobs import PATIENCE, kill_worker, wait_for_checkpoints, wait_until

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


# ---- three lives ----
PLAIN = (
    ("aligned", 1, 2),
    ("unaligned", 2, 3),
    ("savepoint", 4, 1),
)
MORE = [
    (kind, *sizes)
    for kind in ("aligned", "unaligned", "savepoint")
    for pair in ((1, 2), (2, 3), (3, 7), (7, 2), (4, 1))
    for sizes in (pair, pair[::-1])
    if (kind, *sizes) not in PLAIN
]


class Lives:
    """A job with full channels that is ended in one way or another, and started again at another size."""

    def __init__(self, start: Any, directory: Path, kind: str) -> None:
        self._start, self._directory, self._savepoints = start, directory, kind == "savepoint"
        self._mode = "aligned" if kind == "aligned" else "unaligned"
        self._saved: str | None = None

    def begin(self, parallelism: int, **options: Any) -> Any:
        made = ps.Pipeline(
            "accounts",
            parallelism=parallelism,
            checkpoints=ps.Checkpoints(self._directory / "checkpoints", every="100ms", mode=self._mode),
            runtime=ps.RuntimeSettings(in_flight=ps.InFlightSettings(initial_rows=512, max_rows=512)),
            **options,
        )
        accounts.build(made, ps.sinks.Files(self._directory / "accounts"), slow=True)
        job = self._start(made, restore=self._saved)
        wait_until(lambda: job.status().state == "running" or job.done(), job.status)
        return job

    def until_there_is_something_to_lose(self, job: Any) -> None:
        wait_for_checkpoints(job, 2)
        if self._mode == "unaligned":
            wait_until(lambda: any(c.in_flight_bytes for c in job.checkpoints()), job.checkpoints)

    def save(self, job: Any, name: str) -> bool:
        """Whether the job has ended with a savepoint, from which the next one begins."""
        if self._savepoints:
            self._saved = str(self._directory / name)
            job.stop(drain=False, savepoint=self._saved, timeout=PATIENCE)
        return self._savepoints


@pytest.mark.parametrize(
    ("kind", "old", "new"), [*PLAIN, *(pytest.param(*cell, marks=pytest.mark.slow) for cell in MORE)]
)
def test_a_job_in_three_lives_loses_nothing_and_repeats_nothing(
    start: Any, tmp_path: Path, kind: str, old: int, new: int
) -> None:
    lives, random = Lives(start, tmp_path, kind), Random(f"{kind} {old} {new}")
    # It fails for good, and what it leaves is A.
    first = lives.begin(old, restart=ps.restart.none())
    lives.until_there_is_something_to_lose(first)
    if not lives.save(first, "A"):
        kill_worker(first, random)
        with pytest.raises(ps.JobFailed):
            first.wait(PATIENCE)
    # From A at the new size; B is taken at once.
    second = lives.begin(new)
    if not lives.save(second, "B"):
        second.trigger_checkpoint(PATIENCE)
        second.cancel()
    # From B back at the old size, with a worker lost on the way.
    third = lives.begin(old, restart=ps.restart.fixed_delay(0, attempts=100))
    wait_for_checkpoints(third, 1)
    kill_worker(third, random)
    wait_until(lambda: third.status().restarts >= 1, third.status)
    wait_for_checkpoints(third, 1)
    assert accounts.problems(drained(third, tmp_path)) == []


# ---- other sizes of running jobs, savepoints and forks ----
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
