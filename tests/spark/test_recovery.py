"""Workers that are killed at random moments: the committed output is exact, in every mode."""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.spark.support import accounts
from tests.spark.support.jobs import PATIENCE, kill_worker, pause, sent, wait_for_checkpoints, wait_until

import penstock as ps
from penstock.core.settings import LayerSettings

EXACTLY_ONCE = ("aligned", "unaligned", "adaptive", "stop_the_world")


def only_when_slow(*modes: str) -> list[Any]:
    """All modes, but these only in the slow suite: a kill costs seconds."""
    return [pytest.param(mode, marks=pytest.mark.slow) if mode in modes else mode for mode in EXACTLY_ONCE]


class Running:
    """A job that takes orders until it is stopped, as fast as its slow end lets it: channels are full."""

    def __init__(
        self,
        start: Any,
        directory: Path,
        mode: str,
        spares: int = 0,
        sink: Any = None,
        count: int | None = None,
        layers: LayerSettings | None = None,
    ):
        self.target, self.spares = directory / "accounts", spares
        pipeline = ps.Pipeline(
            "accounts",
            parallelism=2,
            spares=spares,
            checkpoints=ps.Checkpoints(
                directory / "checkpoints",
                every="100ms",
                mode=mode,
                alignment_timeout="20ms",
                changelog=layers is not None,
            ),
            restart=ps.restart.fixed_delay(0, attempts=100),
            # Full channels, but not of more than can be drained in a moment.
            runtime=ps.RuntimeSettings(
                in_flight=ps.InFlightSettings(initial_rows=512, max_rows=512), layers=layers or LayerSettings()
            ),
        )
        accounts.build(pipeline, sink or ps.sinks.Files(self.target), count=count, slow=True)
        self.job = start(pipeline)

    def until_checkpoints(self, more: int) -> None:
        wait_for_checkpoints(self.job, more, spares=self.spares)

    def until_restarted(self, restarts: int) -> None:
        """The spare, if there was one, is in use now; another one takes its time."""
        wait_until(lambda: self.job.status().restarts >= restarts, self.job.status)
        wait_for_checkpoints(self.job, 1)

    def until_records_in_flight_were_stored(self) -> None:
        wait_until(lambda: any(c.in_flight_bytes for c in self.job.checkpoints()), self.job.checkpoints)

    def drained(self) -> Any:
        self.job.stop(timeout=PATIENCE)
        return accounts.committed(self.target)


@pytest.fixture
def random(request: pytest.FixtureRequest) -> Random:
    """The same for the same test, always."""
    return Random(request.node.name)


@pytest.mark.parametrize("mode", EXACTLY_ONCE)
def test_a_killed_worker_costs_nothing_and_doubles_nothing(
    start: Any, tmp_path: Path, random: Random, mode: str
) -> None:
    running = Running(start, tmp_path, mode)
    running.until_checkpoints(random.randint(1, 4))
    if mode == "unaligned":
        running.until_records_in_flight_were_stored()
    pause(random, 0.2)
    kill_worker(running.job, random)
    running.until_restarted(1)
    assert accounts.problems(running.drained()) == []


@pytest.mark.parametrize("mode", only_when_slow("aligned", "stop_the_world"))
def test_a_spare_takes_over_and_survivors_keep_their_processes(
    start: Any, tmp_path: Path, random: Random, mode: str
) -> None:
    running = Running(start, tmp_path, mode, spares=1)
    running.until_checkpoints(1)
    before = set(running.job.workers().values())
    victim = kill_worker(running.job, random)
    running.until_restarted(1)
    assert before - {victim} <= set(running.job.workers().values())
    assert accounts.problems(running.drained()) == []


@pytest.mark.parametrize("mode", only_when_slow("adaptive", "stop_the_world"))
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
    for kills in (1, 2):
        running.until_checkpoints(1)
        pause(random, 0.2)
        kill_worker(running.job, random)
        running.until_restarted(kills)
    assert accounts.problems(running.drained()) == []


def test_a_kill_near_the_end_of_bounded_input_is_survived(start: Any, tmp_path: Path, random: Random) -> None:
    """It may come before, during or after the last checkpoint: whatever it hits, the output is exact."""
    count = 10_000
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


def test_a_changelog_is_restored_from_its_whole_states_and_layers(start: Any, tmp_path: Path, random: Random) -> None:
    """Everything that changes becomes a layer, flushed between checkpoints too, and no state is too small for that."""
    layers = LayerSettings(small=0, worth=100.0, inline=0, flush_every=0.03)
    running = Running(start, tmp_path, "adaptive", layers=layers)
    for kills in (1, 2):
        running.until_checkpoints(5)
        pause(random, 0.2)
        kill_worker(running.job, random)
        running.until_restarted(kills)
    assert accounts.problems(running.drained()) == []


def test_at_least_once_loses_no_record_and_no_state(start: Any, tmp_path: Path, random: Random) -> None:
    running = Running(start, tmp_path, "at_least_once")
    running.until_checkpoints(2)
    pause(random, 0.2)
    kill_worker(running.job, random)
    running.until_restarted(1)
    assert accounts.shortfalls(running.drained()) == []


def test_collected_rows_are_exact_after_a_kill(start: Any, tmp_path: Path, random: Random) -> None:
    sink = ps.sinks.Collect()
    running = Running(start, tmp_path, "adaptive", sink=sink)
    running.until_checkpoints(2)
    kill_worker(running.job, random)
    running.until_restarted(1)
    running.job.stop(timeout=PATIENCE)
    assert accounts.problems(sink.polars()) == []
