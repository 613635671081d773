"""From a path to a checkpoint, and from a program's file to its pipeline: what the commands that look at both need."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.api.pipeline import Pipeline, captured_start
from penstock.core.ids import CheckpointId
from penstock.core.record import CheckpointRecord
from penstock.graph.errors import PipelineError
from penstock.store import layout
from penstock.store.addresses import absolute_address
from penstock.store.checkpoints import CheckpointStore, job_of
from penstock.store.files import Files
from penstock.store.opening import open_files
from penstock.store.savepoints import NoSnapshot, Snapshot, find_snapshot, retained


@dataclass(frozen=True)
class OpenedCheckpoint:
    snapshot: Snapshot
    complete: list[CheckpointId]
    """All of the same job that can be restored; none beside a savepoint."""
    statistics: dict[str, object] | None
    """What was recorded when it was taken; None of a savepoint, whose metadata has the figures of its subtasks."""

    @property
    def record(self) -> CheckpointRecord:
        return self.snapshot.record


def open_checkpoint(path: str, checkpoint: int | None = None) -> OpenedCheckpoint:
    """A savepoint; or of a job's directory the newest complete checkpoint, the named one, or the one whose own
    directory `path` is. Verifies it as a restore does. Changes nothing."""
    address = absolute_address(path)
    if checkpoint is not None:
        snapshot = retained(_files_of_a_job(address), CheckpointId(checkpoint), f"{address}/checkpoints/{checkpoint}")
    else:
        snapshot = find_snapshot(address)
    if snapshot.is_savepoint:
        return OpenedCheckpoint(snapshot, [], None)
    store = CheckpointStore(snapshot.files, job_of(snapshot.files))
    entries = [entry for entry in store.statistics() if entry.get("checkpoint") == snapshot.record.checkpoint]
    return OpenedCheckpoint(snapshot, store.completed(), entries[-1] if entries else None)


def _files_of_a_job(address: str) -> Files:
    files = open_files(address)
    if not files.exists(layout.IDENTITY):
        raise NoSnapshot(
            f"{address} is no checkpoint directory of a job (no {layout.IDENTITY}): only there a checkpoint is chosen "
            "by its number"
        )
    return files


def pipeline_of(program: str) -> Pipeline:
    """The pipeline that a program would start: it is run up to that point."""
    if not Path(program).is_file():
        raise FileNotFoundError(f"there is no program {program}")
    names: dict[str, Any] = {}
    with captured_start() as captured:
        names = runpy.run_path(program, run_name="__main__")
    made = captured or [value for value in names.values() if isinstance(value, Pipeline)]
    if not made:
        raise PipelineError(f"{program} makes no pipeline that could be compared: it calls neither run() nor start()")
    return made[0]
