"""Sinks that measure instead of keep: one is slow on purpose, one notes when each attempt first had output."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.connectors.base import Committer, SinkWriter
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.operators.base import OperatorContext


class _NothingToCommit:
    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None: ...

    def recover(
        self, checkpoint: CheckpointId | None, committables: Sequence[bytes], generation: Generation, attempt: Attempt
    ) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Slow:
    """Takes `seconds_per_row` for every row and forgets it."""

    seconds_per_row: float

    def writer(self) -> SinkWriter:
        return _SlowWriter(self.seconds_per_row)

    def committer(self, uid: Uid, job: str) -> Committer:
        return _NothingToCommit()

    def check(self, schema: pa.Schema) -> None: ...


class _SlowWriter(SinkWriter):
    def __init__(self, seconds_per_row: float):
        self._seconds_per_row = seconds_per_row

    def write(self, batch: pa.RecordBatch) -> None:
        time.sleep(batch.num_rows * self._seconds_per_row)


@dataclass(frozen=True)
class FirstOutput:
    """Writes the wall clock into `directory/<attempt>-<subtask>` at the first row of each attempt."""

    directory: str

    def writer(self) -> SinkWriter:
        return _FirstOutputWriter(self.directory)

    def committer(self, uid: Uid, job: str) -> Committer:
        return _NothingToCommit()

    def check(self, schema: pa.Schema) -> None: ...

    def attempts(self) -> dict[int, float]:
        """When each attempt had its first output, on any subtask, in seconds since the epoch."""
        firsts: dict[int, float] = {}
        for path in Path(self.directory).iterdir():
            text = path.read_text()
            if text:
                attempt = int(path.name.split("-")[0])
                firsts[attempt] = min(float(text), firsts.get(attempt, float("inf")))
        return firsts


class _FirstOutputWriter(SinkWriter):
    def __init__(self, directory: str):
        self._directory = directory
        self._seen = False

    def open(self, context: OperatorContext) -> None:
        self._path = os.path.join(self._directory, f"{context.attempt}-{context.subtask}")

    def write(self, batch: pa.RecordBatch) -> None:
        if not self._seen:
            self._seen = True
            Path(self._path).write_text(str(time.time()))
