"""A job and its Spark job: too few slots, errors that reach the user, and a Spark job that somebody cancels."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.spark.support.jobs import PATIENCE, wait_for_checkpoints, wait_until

import penstock as ps
from penstock.core.orders import JobState
from penstock.spark.job import JobFailed
from penstock.spark.slots import TooFewSlots, offered_slots


def numbers(pipeline: ps.Pipeline, count: int | None, rate: float | None = None) -> ps.Stream:
    return pipeline.source(ps.sources.Generator(count, {"n": lambda i: i}, rate=rate), uid="numbers")


def collected(sink: ps.sinks.Collect) -> list[int]:
    return sorted(sink.result()["n"].to_pylist())


def test_jobs_run_one_after_another_in_the_same_processes(start: Any) -> None:
    for _ in range(2):
        sink = ps.sinks.Collect()
        pipeline = ps.Pipeline("numbers", parallelism=2)
        numbers(pipeline, 10_000).rebalance().sink(sink, uid="out")
        result = start(pipeline).wait(PATIENCE)
        assert result.state is JobState.FINISHED
        assert collected(sink) == list(range(10_000))


def test_two_jobs_run_side_by_side(start: Any, tmp_path: Path) -> None:
    sinks = [ps.sinks.Collect(), ps.sinks.Collect()]
    jobs = []
    for number, sink in enumerate(sinks):
        checkpoints = ps.Checkpoints(tmp_path / str(number), every="100ms")
        pipeline = ps.Pipeline(f"job-{number}", parallelism=2, checkpoints=checkpoints)
        numbers(pipeline, 5_000).rebalance().sink(sink, uid="out")
        jobs.append(start(pipeline))
    for job, sink in zip(jobs, sinks, strict=True):
        job.wait(PATIENCE)
        assert collected(sink) == list(range(5_000))


def test_a_job_that_needs_more_slots_than_there_are_is_refused_before_it_starts(spark: Any) -> None:
    offered = offered_slots(spark.sparkContext.master, spark.sparkContext.getConf())
    assert offered is not None
    pipeline = ps.Pipeline("wide", parallelism=offered, spares=2, spark=spark)
    numbers(pipeline, 10).sink(ps.sinks.Discard(), uid="out")
    with pytest.raises(TooFewSlots, match=rf"needs {offered + 2} slots .*the cluster offers {offered}: lower"):
        pipeline.start()


def test_a_function_that_raises_reaches_the_user_with_operator_row_and_traceback(start: Any) -> None:
    def check(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 77:
            raise ValueError("seventy-seven is not welcome")
        return row

    pipeline = ps.Pipeline("raises", parallelism=2, restart=ps.restart.none())
    numbers(pipeline, 1_000).map(check, returns={"n": int}, uid="check").sink(ps.sinks.Discard(), uid="out")
    with pytest.raises(JobFailed) as failed:
        start(pipeline).wait(PATIENCE)
    story = str(failed.value)
    for expected in ("'check'", "subtask", "seventy-seven is not welcome", "test_deployment.py", "{n: "):
        assert expected in story
    assert failed.value.error is not None
    assert failed.value.error.uid == "check"


def _fails_to_load() -> Any:
    raise ModuleNotFoundError("No module named 'only_on_the_driver'")


class OnlyOnTheDriver:
    """Pickles well, and cannot be unpickled anywhere."""

    def __reduce__(self) -> Any:
        return _fails_to_load, ()


def test_a_function_that_workers_cannot_load_is_told_at_once(start: Any) -> None:
    only_here = OnlyOnTheDriver()
    pipeline = ps.Pipeline("unloadable", parallelism=2)
    mapped = numbers(pipeline, 10).map(lambda row: {**row, "n": hash(only_here)}, returns={"n": int}, uid="map")
    mapped.sink(ps.sinks.Discard(), uid="out")
    with pytest.raises(JobFailed, match="No module named 'only_on_the_driver'"):
        start(pipeline).wait(PATIENCE)


def test_a_checkpoint_directory_that_cannot_be_used_is_named(start: Any, tmp_path: Path) -> None:
    file_in_the_way = tmp_path / "file"
    file_in_the_way.write_text("not a directory")
    pipeline = ps.Pipeline("unwritable", parallelism=2, checkpoints=ps.Checkpoints(file_in_the_way / "checkpoints"))
    numbers(pipeline, 10).sink(ps.sinks.Discard(), uid="out")
    with pytest.raises((JobFailed, OSError), match="file"):
        start(pipeline).wait(PATIENCE)


def test_a_cancelled_spark_job_is_submitted_again_and_nothing_is_lost(start: Any, spark: Any, tmp_path: Path) -> None:
    sink = ps.sinks.Collect()
    checkpoints = ps.Checkpoints(tmp_path / "checkpoints", every="100ms")
    pipeline = ps.Pipeline("cancelled", parallelism=2, checkpoints=checkpoints)
    numbers(pipeline, None, rate=2_000).rebalance().sink(sink, uid="out")
    job = start(pipeline)
    wait_for_checkpoints(job, 2)
    before = set(job.workers().values())
    spark.sparkContext.cancelAllJobs()
    wait_until(lambda: not before & set(job.workers().values()), lambda: f"{before} to be replaced: {job.workers()}")
    wait_for_checkpoints(job, 2)
    job.stop(timeout=PATIENCE)
    rows = collected(sink)
    for source in (0, 1):
        mine = [n for n in rows if n % 2 == source]
        assert mine == list(range(source, 2 * len(mine), 2))
    assert rows


def test_stopping_without_draining_continues_where_it_stopped(start: Any, tmp_path: Path) -> None:
    committed: list[int] = []
    for _ in range(2):
        sink = ps.sinks.Collect(on_commit=lambda table: committed.extend(table["n"].to_pylist()))
        pipeline = ps.Pipeline("pauses", parallelism=2, checkpoints=ps.Checkpoints(tmp_path / "c", every="100ms"))
        numbers(pipeline, None, rate=2_000).rebalance().sink(sink, uid="out")
        job = start(pipeline)
        wait_for_checkpoints(job, 2)
        assert job.stop(drain=False, timeout=PATIENCE).state is JobState.CANCELLED
    for source in (0, 1):
        mine = sorted({n for n in committed if n % 2 == source})
        assert mine == list(range(source, 2 * len(mine), 2))


def test_an_interrupt_cancels_the_job_that_run_waits_for(spark: Any, tmp_path: Path) -> None:
    interrupted = threading.Event()

    def interrupt(_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            os.kill(os.getpid(), signal.SIGINT)

    before = set(threading.enumerate())
    pipeline = ps.Pipeline("interrupted", parallelism=2, checkpoints=ps.Checkpoints(tmp_path, every="100ms"))
    numbers(pipeline, None, rate=2_000).sink(ps.sinks.Collect(on_commit=interrupt), uid="out")
    with pytest.raises(KeyboardInterrupt):
        pipeline.run()
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not [name for name in left if "interrupted" in name or "control" in name or "master" in name]
