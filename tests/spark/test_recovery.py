"""Workers that are killed at random moments: the committed output is exact, in every mode."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.spark.support import accounts
from tests.spark.support.jobs import PATIENCE, kill_worker, pause, sent, wait_for_checkpoints, wait_until

import penstock as ps

EXACTLY_ONCE = ("aligned", "unaligned", "adaptive", "stop_the_world")
RATE = 6_000


class Running:
    """A job that takes orders until it is stopped."""

    def __init__(
        self, start: Any, directory: Path, mode: str, spares: int = 0, sink: Any = None, count: int | None = None
    ):
        self.target, self.spares = directory / "accounts", spares
        pipeline = ps.Pipeline(
            "accounts",
            parallelism=2,
            spares=spares,
            checkpoints=ps.Checkpoints(directory / "checkpoints", every="100ms", mode=mode, alignment_timeout="20ms"),
            restart=ps.restart.fixed_delay(0, attempts=100),
        )
        accounts.build(pipeline, sink or ps.sinks.Files(self.target), count=count, rate=RATE)
        self.job = start(pipeline)

    def until_checkpoints(self, more: int) -> None:
        wait_for_checkpoints(self.job, more, spares=self.spares)

    def until_restarted(self, restarts: int) -> None:
        """The spare, if there was one, is in use now; another one takes its time."""
        wait_until(lambda: self.job.status().restarts >= restarts, self.job.status)
        wait_for_checkpoints(self.job, 1)

    def drained(self) -> Any:
        self.job.stop(timeout=PATIENCE)
        return accounts.committed(self.target)


@pytest.fixture
def random(request: pytest.FixtureRequest) -> Random:
    """The same for the same test, always."""
    return Random(request.node.name)


@pytest.mark.parametrize("spares", [0, 1], ids=["without a spare", "with a spare"])
@pytest.mark.parametrize("mode", EXACTLY_ONCE)
def test_a_killed_worker_costs_nothing_and_doubles_nothing(
    start: Any, tmp_path: Path, random: Random, mode: str, spares: int
) -> None:
    running = Running(start, tmp_path, mode, spares)
    running.until_checkpoints(random.randint(1, 4))
    pause(random, 0.2)
    kill_worker(running.job, random)
    running.until_restarted(1)
    assert accounts.problems(running.drained()) == []


@pytest.mark.parametrize("mode", EXACTLY_ONCE)
def test_a_second_kill_during_the_recovery_is_survived(start: Any, tmp_path: Path, random: Random, mode: str) -> None:
    running = Running(start, tmp_path, mode)
    running.until_checkpoints(2)
    first = kill_worker(running.job, random)
    wait_until(lambda: running.job.status().restarts == 1, "the first loss to be noticed")
    for pid in {*running.job.workers().values()} - {first}:
        sent(pid, signal.SIGKILL)
    running.until_checkpoints(2)
    assert accounts.problems(running.drained()) == []


def test_kills_one_after_another_with_a_spare_are_survived(start: Any, tmp_path: Path, random: Random) -> None:
    running = Running(start, tmp_path, "adaptive", spares=1)
    for kills in range(1, 4):
        running.until_checkpoints(1)
        pause(random, 0.2)
        kill_worker(running.job, random)
        running.until_restarted(kills)
    assert accounts.problems(running.drained()) == []


def test_a_kill_near_the_end_of_bounded_input_is_survived(start: Any, tmp_path: Path, random: Random) -> None:
    """It may come before, during or after the last checkpoint: whatever it hits, the output is exact."""
    count = 3_000
    running = Running(start, tmp_path, "unaligned", count=count)
    wait_until(
        lambda: running.job.done() or accounts.rows_in(running.target) > count // 2,
        "half of the output",
    )
    pause(random, 0.4)
    for pid in list(running.job.workers().values())[:1]:
        sent(pid, signal.SIGKILL)
    running.job.wait(PATIENCE)
    assert accounts.problems(accounts.committed(running.target), count) == []


def test_at_least_once_loses_no_record_and_no_state(start: Any, tmp_path: Path, random: Random) -> None:
    running = Running(start, tmp_path, "at_least_once")
    for kills in (1, 2):
        running.until_checkpoints(2)
        pause(random, 0.2)
        kill_worker(running.job, random)
        running.until_restarted(kills)
    assert accounts.shortfalls(running.drained()) == []


@pytest.mark.parametrize("mode", ["adaptive", "unaligned"])
def test_collected_rows_are_exact_after_a_kill(start: Any, tmp_path: Path, random: Random, mode: str) -> None:
    sink = ps.sinks.Collect()
    running = Running(start, tmp_path, mode, spares=1, sink=sink)
    running.until_checkpoints(2)
    kill_worker(running.job, random)
    running.until_restarted(1)
    running.job.stop(timeout=PATIENCE)
    assert accounts.problems(sink.polars()) == []


def test_a_survivor_keeps_its_process(start: Any, tmp_path: Path, random: Random) -> None:
    running = Running(start, tmp_path, "adaptive", spares=1)
    running.until_checkpoints(1)
    before = set(running.job.workers().values())
    victim = kill_worker(running.job, random)
    running.until_restarted(1)
    assert before - {victim} <= set(running.job.workers().values())
    assert not os.path.exists(f"/proc/{victim}")
    assert accounts.problems(running.drained()) == []
