"""Whole jobs on real processes: they finish, survive SIGKILL and stuck functions, and tell what went wrong."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import PATIENCE, Commits, ProcessJob, wait_until

import penstock as ps
from penstock.core.orders import JobState
from penstock.core.restarts import NoRestart
from penstock.core.settings import LayerSettings, RuntimeSettings
from penstock.runtime.network.handshake import HandshakeError
from penstock.runtime.worker import STUCK_EXIT, run_worker
from penstock.store.checkpoints import CheckpointStore
from penstock.store.opening import open_files

ROWS = 4_000
RATE = 4_000


class Running:
    """A job of two workers that moves numbers through an exchange into a `Collect`."""

    def __init__(self, directory: Path | None, count: int | None = ROWS, rate: float | None = RATE, **options: Any):
        self.commits = Commits()
        self.collected = ps.sinks.Collect(on_commit=self.commits)
        pipeline = ps.Pipeline("numbers", parallelism=2, spares=options.get("spares", 0))
        numbers = pipeline.source(ps.sources.Generator(count, {"n": lambda i: i}, rate=rate), uid="numbers")
        numbers.rebalance().sink(self.collected, uid="out")
        runtime = RuntimeSettings(spares=options.pop("spares", 0), **options.pop("runtime", {}))
        self.job = ProcessJob(pipeline, directory, runtime=runtime, **options).start()

    def numbers(self) -> list[int]:
        return sorted(self.collected.result()["n"].to_pylist())

    def until_recovered(self) -> None:
        wait_until(lambda: self.job.status().restarts == 1 and self.job.status().state is JobState.RUNNING)

    def drained_numbers_are_complete(self) -> bool:
        """Each of the two sources reads every second number, up to where it was stopped."""
        self.job.drain()
        self.job.wait()
        numbers = self.numbers()
        return all(
            (mine := [n for n in numbers if n % 2 == source]) == list(range(source, 2 * len(mine), 2))
            for source in (0, 1)
        )


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    made: list[ProcessJob] = []

    def start(**options: Any) -> Running:
        running = Running(tmp_path / "checkpoints", **options)
        made.append(running.job)
        return running

    yield start
    for job in made:
        job.close()


def test_a_job_runs_to_its_end_and_leaves_no_thread_in_its_workers(run: Any) -> None:
    running = run(rate=None)
    running.job.wait()
    assert running.numbers() == list(range(ROWS))
    assert [running.job.exits.get() for _ in range(2)] == [0, 0]


def test_a_job_without_checkpoints_runs_to_its_end(tmp_path: Path) -> None:
    running = Running(None, rate=None)
    running.job.wait()
    assert running.numbers() == list(range(ROWS))


def test_a_killed_worker_is_replaced_and_nothing_is_lost_or_doubled(run: Any) -> None:
    running = run(count=None)
    running.commits.wait_for(100)
    survivor, victim = running.job.pid_of(0), running.job.kill(1)
    running.until_recovered()
    assert running.job.pid_of(0) == survivor
    assert running.job.pid_of(1) != victim
    assert running.drained_numbers_are_complete()


def test_a_spare_takes_over_from_a_killed_worker(run: Any) -> None:
    running = run(count=None, spares=1)
    running.commits.wait_for(100)
    wait_until(lambda: len(running.job.pids()) == 3)
    before = set(running.job.pids().values())
    running.job.kill(0)
    running.until_recovered()
    assert running.job.pid_of(0) in before
    assert running.drained_numbers_are_complete()


def test_neither_survivors_nor_a_replacement_on_the_same_host_read_their_state_from_the_store(
    run: Any, tmp_path: Path
) -> None:
    (tmp_path / "local").mkdir()
    runtime = {
        "local_copies": True,
        "local_directory": str(tmp_path / "local"),
        "layers": LayerSettings(inline=0),
    }
    running = run(count=None, runtime=runtime)
    running.commits.wait_for(100)
    running.job.kill(1)
    running.until_recovered()
    (incident,) = running.job.driver.ask(lambda master: master.incidents())
    assert incident.from_store == 0
    assert incident.from_copies > 0
    assert running.drained_numbers_are_complete()
    assert not list((tmp_path / "local").rglob("*.data")), "the job is over"


def test_all_workers_killed_at_once_are_replaced(run: Any) -> None:
    running = run()
    running.commits.wait_for(100)
    for pid in running.job.pids().values():
        os.kill(pid, signal.SIGKILL)
    running.job.wait()
    assert running.numbers() == list(range(ROWS))


def test_a_frozen_worker_is_lost_after_the_heartbeat_timeout(run: Any) -> None:
    running = run(count=None, runtime={"heartbeat_every": 0.1, "heartbeat_timeout": 1.0})
    running.commits.wait_for(100)
    frozen = running.job.pid_of(1)
    os.kill(frozen, signal.SIGSTOP)
    try:
        wait_until(lambda: frozen not in running.job.pids().values())
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert running.drained_numbers_are_complete()


def test_draining_commits_everything_that_was_read(run: Any) -> None:
    running = run(count=None)
    running.commits.wait_for(100)
    assert running.drained_numbers_are_complete()
    assert len(running.numbers()) >= 100


def test_many_operators_with_small_state_write_few_files_for_a_checkpoint(tmp_path: Path) -> None:
    operators, keys = 8, 2_000
    commits = Commits()
    pipeline = ps.Pipeline("many", parallelism=2)
    stream = pipeline.source(ps.sources.Generator(None, {"k": lambda i: i % keys}, rate=4 * keys), uid="numbers")
    for number in range(operators):
        stream = stream.key_by("k").reduce(n=ps.count(), uid=f"count-{number}")
    stream.sink(ps.sinks.Collect(on_commit=commits), uid="out")
    layers = LayerSettings(incremental=False, inline=1_000, wait_for_others=PATIENCE)
    job = ProcessJob(pipeline, tmp_path, runtime=RuntimeSettings(layers=layers)).start()
    try:
        commits.wait_for(4 * keys)
        store = CheckpointStore(open_files(str(tmp_path)), "many", 3)
        early = store.completed()  # not all of the operators had all keys then
        wait_until(lambda: len(set(store.completed()) - set(early)) >= 2)
    finally:
        job.close()
    later = [checkpoint for checkpoint in store.completed() if checkpoint not in early]
    assert later
    for checkpoint in later:
        files: dict[int, list[str]] = {0: [], 1: []}
        for entry in store.load(checkpoint).subtasks:
            files[entry.subtask.index] += [part.path for part in entry.handles if part.inline is None]
        for slot in (0, 1):
            assert len(files[slot]) >= operators, "their states are too large for the metadata"
            assert len(set(files[slot])) <= 2, files


def test_a_function_that_raises_fails_the_job_with_operator_row_and_traceback(tmp_path: Path) -> None:
    def halve(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 7:
            raise ValueError("seven cannot be halved")
        return {"n": row["n"] // 2}

    pipeline = ps.Pipeline("raises", parallelism=2)
    numbers = pipeline.source(ps.sources.Generator(100, {"n": lambda i: i}), uid="numbers")
    numbers.map(halve, returns={"n": int}, uid="halve").sink(ps.sinks.Discard(), uid="out")
    outcome = ProcessJob(pipeline, tmp_path, restarts=NoRestart()).start().wait(JobState.FAILED)
    assert outcome.error is not None
    assert outcome.error.uid == "halve"
    assert "seven cannot be halved" in outcome.error.message
    assert "in halve" in outcome.error.traceback
    assert "n" in outcome.error.sample_row


def test_a_function_that_does_not_return_ends_its_process_and_the_job_goes_on(tmp_path: Path) -> None:
    stuck = tmp_path / "stuck"

    def stick(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 500 and not stuck.exists():
            stuck.write_text(f"{os.getpid()} ")
            time.sleep(3600)
        return row

    collected = ps.sinks.Collect()
    pipeline = ps.Pipeline("sticks", parallelism=2)
    numbers = pipeline.source(ps.sources.Generator(1000, {"n": lambda i: i}), uid="numbers")
    numbers.rebalance().map(stick, returns={"n": int}, uid="stick").sink(collected, uid="out")
    job = ProcessJob(pipeline, tmp_path / "checkpoints", runtime=RuntimeSettings(cancel_grace=0.2)).start()
    wait_until(lambda: stuck.exists() and stuck.read_text().endswith(" "))
    healthy = next(slot for slot in (0, 1) if job.pid_of(slot) != int(stuck.read_text()))
    job.kill(healthy)
    job.wait()
    assert {job.exits.get() for _ in range(4)} == {STUCK_EXIT, -signal.SIGKILL, 0}
    assert sorted(collected.result()["n"].to_pylist()) == list(range(1000))


def test_a_worker_with_another_secret_is_turned_away_and_the_job_goes_on(run: Any) -> None:
    running = run(count=None)
    running.commits.wait_for(100)
    stranger = replace(running.job.config, secret=secrets.token_bytes(32))
    with pytest.raises(HandshakeError, match="is the secret right"):
        run_worker(stranger, lambda: pytest.fail("a stranger must not get as far as the graph"))
    assert running.drained_numbers_are_complete()
    assert running.job.status().restarts == 0


def test_strangers_at_every_port_of_the_job_do_not_disturb_it(run: Any) -> None:
    running = run(count=None)
    running.commits.wait_for(100)
    ports = [running.job.config.master_port, *running.job.data_ports()]
    for port in ports:
        for says in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(4096)):
            with socket.create_connection(("127.0.0.1", port), 10) as stranger:
                stranger.sendall(says)
    assert running.drained_numbers_are_complete()
    assert running.job.status().restarts == 0
