"""User state in RocksDB on real workers, one of which is killed."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from tests.spark.support import accounts
from tests.spark.support.jobs import PATIENCE, kill_worker, wait_for_checkpoints, wait_until

import penstock as ps
from penstock.core.settings import LayerSettings
from penstock.observe.opening import open_checkpoint


def test_state_in_rocksdb_survives_a_killed_worker_exactly(start: Any, tmp_path: Path) -> None:
    working = tmp_path / "working"
    pipeline = ps.Pipeline(
        "accounts",
        parallelism=2,
        backend=ps.RocksDB(memory="16MB", directory=working),
        checkpoints=ps.Checkpoints(tmp_path / "checkpoints", every="100ms"),
        restart=ps.restart.fixed_delay(0, attempts=100),
        # However little has changed, it goes into RocksDB.
        runtime=ps.RuntimeSettings(layers=LayerSettings(small=0)),
    )
    accounts.build(pipeline, ps.sinks.Files(tmp_path / "accounts"), count=None, slow=True)
    job = start(pipeline)
    wait_for_checkpoints(job, 4)
    kill_worker(job, Random(1))
    wait_until(lambda: job.status().restarts >= 1, job.status)
    wait_for_checkpoints(job, 2)
    # One for each worker: what the killed one left was removed by the one that took its place.
    assert len(list(working.glob("*/*.lock"))) == 2
    job.stop(timeout=PATIENCE)
    assert accounts.problems(accounts.committed(tmp_path / "accounts")) == []
    record = open_checkpoint(str(tmp_path / "checkpoints"), None).record
    names = {handle.name for entry in record.subtasks for handle in entry.handles}
    assert {"spent#rocksdb", "orders#rocksdb"} <= names
