"""Bad input and faults: each ends in a message that says what, where and why, or is survived; none in a hang."""

from __future__ import annotations

import os
import re
import resource
import secrets
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.spark.support.jobs import PATIENCE, wait_for_checkpoints, wait_until

import penstock as ps
from penstock.core.settings import LayerSettings, RuntimeSettings
from penstock.runtime.network.handshake import HandshakeError
from penstock.runtime.worker import WorkerConfig, run_worker
from penstock.store.checkpoints import CheckpointStore
from penstock.store.opening import open_files

Start = Callable[..., Any]


def numbers(pipeline: ps.Pipeline, count: int | None = 1_000, rate: float | None = None) -> Any:
    return pipeline.source(ps.sources.Generator(count, {"n": lambda i: i}, rate=rate, splits=2), uid="numbers")


def failure_of(job: Any) -> str:
    with pytest.raises(ps.JobFailed) as failed:
        job.wait(PATIENCE)
    return str(failed.value)


# ---- functions and sources that fail ----
def test_a_function_that_raises_tells_where_and_on_which_row(start: Start) -> None:
    def halve(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 7:
            raise ValueError("seven cannot be halved")
        return {"n": row["n"] // 2}

    pipeline = ps.Pipeline("halves", parallelism=2, restart=ps.restart.none())
    numbers(pipeline).map(halve, returns={"n": int}, uid="halve").sink(ps.sinks.Discard(), uid="out")
    with pytest.raises(ps.JobFailed) as failed:
        start(pipeline).wait(PATIENCE)
    story, error = str(failed.value), failed.value.error
    assert error is not None
    assert (error.uid, error.operator, error.subtask) == ("halve", "map(halve)", 1)
    assert "seven cannot be halved" in story
    assert "operator 'halve' (map(halve)), subtask 1, raised ValueError" in story
    assert re.search(r"first row of the batch: \{n: \d+\}", story)
    assert re.search(r'File ".*test_faults.py", line \d+, in halve', story)
    assert "the restart strategy is: none" in story


def test_a_source_that_fails_is_named(start: Start) -> None:
    def broken(index: Any) -> Any:
        if (index > 100).any():
            raise OSError("the tape is torn")
        return index

    pipeline = ps.Pipeline("tape", parallelism=2, restart=ps.restart.none())
    pipeline.source(ps.sources.Generator(1_000, {"n": broken}), uid="tape").sink(ps.sinks.Discard(), uid="out")
    story = failure_of(start(pipeline))
    assert "the tape is torn" in story
    assert "(uid 'tape')" in story


def test_a_function_that_always_raises_ends_the_job_when_its_restarts_are_used_up(start: Start) -> None:
    def fail(row: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("never")

    pipeline = ps.Pipeline("never", parallelism=2, restart=ps.restart.fixed_delay(0, attempts=2))
    numbers(pipeline).map(fail, returns={"n": int}, uid="fail").sink(ps.sinks.Discard(), uid="out")
    job = start(pipeline)
    assert "all 2 restarts are used up" in failure_of(job)
    assert job.status().restarts == 2
    assert len(job.incidents()) == 3


def test_a_function_that_fails_for_a_while_is_survived(start: Start, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def fail_twice(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 500 and len(os.listdir(marks)) < 2:
            (marks / secrets.token_hex(4)).touch()
            raise RuntimeError("not yet")
        return row

    collected = ps.sinks.Collect()
    pipeline = ps.Pipeline("later", checkpoints=ps.Checkpoints(tmp_path / "checkpoints", every="50ms"))
    numbers(pipeline, rate=2_000).rebalance().map(fail_twice, returns={"n": int}, uid="fail").sink(collected, uid="out")
    job = start(pipeline)
    job.wait(PATIENCE)
    assert sorted(collected.result()["n"].to_pylist()) == list(range(1_000))
    assert job.status().restarts == 2


def test_a_function_that_does_not_return_loses_its_process_and_the_job_goes_on(start: Start, tmp_path: Path) -> None:
    stuck = tmp_path / "stuck"

    def stick(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 500 and not stuck.exists():
            stuck.write_text(f"{os.getpid()} ")
            time.sleep(3_600)
        return row

    collected = ps.sinks.Collect()
    pipeline = ps.Pipeline(
        "sticks",
        checkpoints=ps.Checkpoints(tmp_path / "checkpoints", every="50ms"),
        runtime=RuntimeSettings(cancel_grace=0.3),
    )
    numbers(pipeline).rebalance().map(stick, returns={"n": int}, uid="stick").sink(collected, uid="out")
    job = start(pipeline)
    wait_until(lambda: stuck.exists() and stuck.read_text().endswith(" "), "the function to be stuck")
    sticking = int(stuck.read_text())
    os.kill(next(pid for pid in job.workers().values() if pid != sticking), signal.SIGKILL)
    job.wait(PATIENCE)
    assert sorted(collected.result()["n"].to_pylist()) == list(range(1_000))
    wait_until(lambda: not os.path.exists(f"/proc/{sticking}"), "the stuck process to be gone")


def test_a_job_with_a_function_that_does_not_return_can_be_cancelled(start: Start, tmp_path: Path) -> None:
    stuck = tmp_path / "stuck"

    def stick(row: dict[str, Any]) -> dict[str, Any]:
        stuck.touch()
        time.sleep(3_600)
        return row

    pipeline = ps.Pipeline("stuck", runtime=RuntimeSettings(cancel_grace=0.3))
    numbers(pipeline).map(stick, returns={"n": int}, uid="stick").sink(ps.sinks.Discard(), uid="out")
    job = start(pipeline)
    wait_until(stuck.exists, "the function to be stuck")
    pids = list(job.workers().values())
    job.cancel()
    assert job.done()
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "the stuck processes to be gone")


# ---- strangers ----
def test_strangers_at_the_ports_do_not_disturb_a_job(start: Start, tmp_path: Path) -> None:
    collected = ps.sinks.Collect()
    pipeline = ps.Pipeline("calm", checkpoints=ps.Checkpoints(tmp_path / "checkpoints", every="50ms"))
    numbers(pipeline, count=None, rate=1_000).rebalance().sink(collected, uid="out")
    job = start(pipeline)
    wait_for_checkpoints(job, 1)
    master = job._driver.port
    for port in (master, *(worker.address.port for worker in job._driver.workers().values())):
        for says in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 70_000):
            with socket.create_connection(("127.0.0.1", port), 10) as stranger:
                try:
                    stranger.sendall(says)
                except OSError:  # shown the door already
                    continue
    stranger_config = WorkerConfig("127.0.0.1", master, secrets.token_bytes(32), None, RuntimeSettings())
    with pytest.raises(HandshakeError, match="is the secret right"):
        run_worker(stranger_config, lambda: pytest.fail("a stranger must not get as far as the graph"))
    wait_for_checkpoints(job, 2)
    job.stop(timeout=PATIENCE)
    assert job.status().restarts == 0
    found = np.sort(collected.result()["n"].to_numpy())
    for split in (0, 1):
        own = found[found % 2 == split]
        assert np.array_equal(own, np.arange(split, 2 * len(own), 2))


# ---- the checkpoint directory ----
ALL_IN_FILES = RuntimeSettings(layers=LayerSettings(inline=0))
"""However little there is to write, workers write files: there is something to damage, and a disk to be full."""


def counting(name: str, directory: Path, target: Any = None, **options: Any) -> ps.Pipeline:
    """A job with state that takes checkpoints until it is stopped."""
    pipeline = ps.Pipeline(name, checkpoints=ps.Checkpoints(directory, every="50ms"), runtime=ALL_IN_FILES, **options)
    stream = numbers(pipeline, count=None, rate=2_000).with_columns(key=pl.col("n") % 10)
    stream.key_by("key").reduce(n=ps.count(), uid="count").sink(target or ps.sinks.Discard(), uid="out")
    return pipeline


@pytest.fixture
def stopped(start: Start, tmp_path: Path) -> Path:
    """The directory of a job that was stopped with a checkpoint."""
    job = start(counting("first", tmp_path / "checkpoints"))
    wait_for_checkpoints(job, 1)
    job.stop(drain=False, timeout=PATIENCE)
    return tmp_path / "checkpoints"


def newest(directory: Path, suffix: str) -> Path:
    """The largest file of the kind in the newest complete checkpoint."""
    store = CheckpointStore(open_files(str(directory)), "first")
    folder = directory / store.directory_of(store.completed()[-1])
    return max(folder.glob(f"*{suffix}"), key=lambda path: path.stat().st_size)


def test_a_directory_that_cannot_be_written_is_named(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    story = failure_of(start(counting("nowhere", tmp_path / "file" / "checkpoints")))
    assert str(tmp_path / "file" / "checkpoints") in story
    assert "A part of the path is a file, not a directory" in story


def test_a_directory_of_another_job_is_refused(start: Start, stopped: Path) -> None:
    story = failure_of(start(counting("second", stopped)))
    assert "the checkpoint directory belongs to job 'first', this is job 'second'" in story


def test_a_truncated_data_file_is_named_and_not_restored(start: Start, stopped: Path) -> None:
    data = newest(stopped, ".data")
    size = data.stat().st_size
    os.truncate(data, size // 2)
    story = failure_of(start(counting("first", stopped)))
    assert data.name in story
    assert f"the file has {size // 2} bytes, at least {size} were written" in story
    assert "Nothing was restored" in story


def test_a_changed_data_file_is_named_and_not_restored(start: Start, stopped: Path) -> None:
    for data in newest(stopped, ".data").parent.glob("*.data"):
        data.write_bytes(bytes(byte ^ 0xFF for byte in data.read_bytes()))
    job = start(counting("first", stopped))
    story = failure_of(job)
    assert ".data" in story
    assert "checksum" in story
    assert job.status().restarts == 0


def test_an_unknown_format_is_refused(start: Start, stopped: Path) -> None:
    metadata = newest(stopped, ".json")
    metadata.write_text(metadata.read_text().replace('"format": 2', '"format": 99', 1))
    story = failure_of(start(counting("first", stopped)))
    assert f"{metadata.name} has format 99; this version of Penstock reads formats up to 2" in story


def log_entry(directory: Path) -> Path:
    return max((directory / "log").glob("*.json"))


def identity(directory: Path) -> Path:
    return directory / "penstock.json"


def metadata(directory: Path) -> Path:
    return newest(directory, ".json")


def data(directory: Path) -> Path:
    return newest(directory, ".data")


@pytest.mark.parametrize(
    ("victim", "damage", "advice"),
    [
        (metadata, Path.unlink, "choose another complete checkpoint of this directory by its number"),
        (data, Path.unlink, "choose another complete checkpoint of this directory by its number"),
        (log_entry, Path.write_bytes, "Put the file back from a copy of the directory"),
        (identity, Path.write_bytes, "choose another directory"),
    ],
)
def test_a_file_that_is_gone_or_empty_is_named_with_what_to_do(
    start: Start, stopped: Path, victim: Callable[[Path], Path], damage: Callable[..., Any], advice: str
) -> None:
    path = victim(stopped)
    damage(path, *([b""] if damage is Path.write_bytes else []))
    job = start(counting("first", stopped))
    story = failure_of(job)
    assert str(path.relative_to(stopped)) in story
    assert advice in story
    assert job.status().restarts == 0


def test_a_second_driver_takes_the_job_over_and_the_first_is_told(start: Start, tmp_path: Path) -> None:
    first = start(counting("first", tmp_path))
    wait_for_checkpoints(first, 1)
    second = start(counting("first", tmp_path))
    story = failure_of(first)
    assert "another driver has claimed this job's directory" in story
    assert "stop this one, or start it again to take over" in story
    wait_for_checkpoints(second, 1)
    second.stop(timeout=PATIENCE)


def test_a_damaged_savepoint_is_named_and_is_not_taken_over(start: Start, stopped: Path, tmp_path: Path) -> None:
    job = start(counting("first", stopped))
    wait_for_checkpoints(job, 1)
    job.stop(drain=False, savepoint=str(tmp_path / "saved"), timeout=PATIENCE)
    copied = max((tmp_path / "saved" / "data").glob("*.data"), key=lambda path: path.stat().st_size)
    copied.write_bytes(bytes(byte ^ 0xFF for byte in copied.read_bytes()))
    story = failure_of(start(counting("first", stopped), restore=str(tmp_path / "saved")))
    assert f"{copied}: part " in story
    assert "Nothing was copied or restored" in story
    again = start(counting("first", stopped))
    wait_for_checkpoints(again, 1)
    again.stop(timeout=PATIENCE)


def test_a_checkpoint_that_never_completed_cannot_be_restored(start: Start, stopped: Path) -> None:
    story = failure_of(start(counting("first", stopped), restore=999))
    assert "checkpoint 999 is not complete" in story
    assert "Complete ones: " in story


# ---- a full disk ----
class FullDisk(ps.KeyedFunction):
    """While the file is there, no process that runs this can write another byte to a file: as on a full disk."""

    total = ps.value(int, default=0)

    def __init__(self, full: Path):
        self._full = full

    def process(self, row: Any, ctx: Any) -> None:
        self._limit(0 if self._full.exists() else resource.RLIM_INFINITY)
        self.total.value += 1
        ctx.emit(n=row.n, total=self.total.value)

    def close(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, most: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def on_a_full_disk(directory: Path, sink: Any, **options: Any) -> ps.Pipeline:
    pipeline = ps.Pipeline("full", runtime=ALL_IN_FILES, **options)
    stream = numbers(pipeline, count=None, rate=1_000).with_columns(key=pl.col("n") % 10)
    stream.key_by("key").process(FullDisk(directory / "full"), returns={"n": int, "total": int}, uid="totals").sink(
        sink, uid="out"
    )
    return pipeline


def test_a_full_disk_fails_the_job_with_its_reason(start: Start, tmp_path: Path) -> None:
    job = start(
        on_a_full_disk(
            tmp_path,
            ps.sinks.Discard(),
            checkpoints=ps.Checkpoints(tmp_path / "checkpoints", every="50ms"),
            restart=ps.restart.none(),
        )
    )
    wait_for_checkpoints(job, 1)
    (tmp_path / "full").touch()
    story = failure_of(job)
    assert "write_failed" in story
    assert str(tmp_path / "checkpoints") in story
    assert "File too large" in story


def test_a_disk_that_is_full_for_a_while_costs_nothing(start: Start, tmp_path: Path) -> None:
    collected = ps.sinks.Collect()
    job = start(
        on_a_full_disk(
            tmp_path,
            collected,
            checkpoints=ps.Checkpoints(tmp_path / "checkpoints", every="50ms", tolerable_failures=2),
            restart=ps.restart.fixed_delay("100ms", attempts=1_000),
        )
    )
    wait_for_checkpoints(job, 1)
    (tmp_path / "full").touch()
    wait_until(lambda: job.status().restarts >= 1 or job.done(), job.status)
    (tmp_path / "full").unlink()
    wait_for_checkpoints(job, 2)
    job.stop(timeout=PATIENCE)
    rows = collected.polars().sort("n")
    for key in range(10):
        own = rows.filter(pl.col("n") % 10 == key).sort("total")
        assert own["total"].to_list() == list(range(1, len(own) + 1))
    assert rows["n"].n_unique() == len(rows)
