"""From a path to a checkpoint, and from a program's file to its pipeline: what the commands that look at both need."""

from __future__ import annotations

import re
import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.api.pipeline import Pipeline, captured_start
from penstock.core.ids import CheckpointId
from penstock.core.record import CheckpointRecord
from penstock.store import layout
from penstock.store.checkpoints import CheckpointStore
from penstock.store.documents import Identity, unseal
from penstock.store.opening import open_files

_OF_A_CHECKPOINT = re.compile(r"(?P<root>.*?)/?checkpoints/(?P<number>\d+)/?")


@dataclass(frozen=True)
class OpenedCheckpoint:
    record: CheckpointRecord
    complete: list[CheckpointId]
    """All that can be restored."""
    statistics: dict[str, object] | None
    """What was recorded when it was taken."""


def open_checkpoint(path: str, checkpoint: int | None = None) -> OpenedCheckpoint:
    """The newest complete checkpoint of a job's directory, the named one, or the one whose own directory `path` is.
    Verifies it as a restore does. Changes nothing."""
    match = _OF_A_CHECKPOINT.fullmatch(path)
    if match is not None:
        path, checkpoint = match["root"] or ".", int(match["number"])
    files = open_files(path)
    try:
        identity = unseal(layout.IDENTITY, files.read(layout.IDENTITY), Identity)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is no checkpoint directory: it has no {layout.IDENTITY}. Give the directory that the pipeline's "
            "Checkpoints name, or <that directory>/checkpoints/<number>"
        ) from None
    store = CheckpointStore(files, identity.job)
    record = store.load(None if checkpoint is None else CheckpointId(checkpoint))
    entries = [entry for entry in store.statistics() if entry.get("checkpoint") == record.checkpoint]
    return OpenedCheckpoint(record, store.completed(), entries[-1] if entries else None)


def pipeline_of(program: str) -> Pipeline:
    """The pipeline that a program would start: it is run up to that point."""
    if not Path(program).is_file():
        raise FileNotFoundError(f"there is no program {program}")
    names: dict[str, Any] = {}
    with captured_start() as captured:
        names = runpy.run_path(program, run_name="__main__")
    made = captured or [value for value in names.values() if isinstance(value, Pipeline)]
    if not made:
        raise ValueError(f"{program} makes no pipeline that could be compared: it calls neither run() nor start()")
    return made[0]
