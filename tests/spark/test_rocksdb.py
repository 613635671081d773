"""User state in RocksDB on real workers, one of which is killed."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from tests.spark.support import accounts
from tests.spark.support.jobs import PATIENCE, kill_worker, wait_for_checkpoints, wait_until

import penstock as ps
from penstock.observe.opening import open_checkpoint


def databases(directory: Path) -> dict[tuple[int, str], str]:
    """The databases whose files the newest checkpoint holds, by subtask and state."""
    record = open_checkpoint(str(directory), None).record
    handles = [(entry.subtask.index, handle) for entry in record.subtasks for handle in entry.handles]
    tables = [(index, handle) for index, handle in handles if handle.piece.endswith(".sst")]
    return {(index, handle.name): handle.piece.partition("-")[0] for index, handle in tables}


def test_state_in_rocksdb_survives_a_killed_worker_exactly(start: Any, tmp_path: Path) -> None:
    working = tmp_path / "working"
    pipeline = ps.Pipeline(
        "accounts",
        parallelism=2,
        backend=ps.RocksDB(memory="16MB", directory=working),
        # All of them stay: this test looks into them while the job runs.
        checkpoints=ps.Checkpoints(tmp_path / "checkpoints", every="100ms", keep=10_000),
        restart=ps.restart.fixed_delay(0, attempts=100),
    )
    accounts.build(pipeline, ps.sinks.Files(tmp_path / "accounts"), count=None, slow=True)
    job = start(pipeline)
    wait_for_checkpoints(job, 1)
    wait_until(lambda: len(databases(tmp_path / "checkpoints")) == 4, job.status)
    before = databases(tmp_path / "checkpoints")
    kill_worker(job, Random(1))
    wait_until(lambda: job.status().restarts >= 1, job.status)
    wait_for_checkpoints(job, 2)
    # Their files were put back, not copied into new databases.
    assert databases(tmp_path / "checkpoints") == before
    # One for each worker: what the killed one left was removed by the one that took its place.
    assert len(list(working.glob("*/*.lock"))) == 2
    job.stop(timeout=PATIENCE)
    assert accounts.problems(accounts.committed(tmp_path / "accounts")) == []
