"""A sink that keeps nothing but a count: for measurements, and for jobs that matter by their side effects."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec
import pyarrow as pa

from penstock.connectors.base import Committer, SinkWriter
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.operators.base import OperatorContext


class _Count(msgspec.Struct, frozen=True, array_like=True):
    """How many rows one writer took between two barriers; the rest of the fields make it unique."""

    generation: int
    attempt: int
    subtask: int
    checkpoint: int
    rows: int


_REMEMBERED = 10_000
"""Counts that may be named again: only those of the last few checkpoints are, so the memory of a long job stays
bounded."""


class Discard:
    """Drops its rows. `rows` is how many were committed, on the driver, since the job's fresh start or this
    driver's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[Uid, int] = {}
        self._known: dict[tuple[Uid, _Count], None] = {}

    @property
    def rows(self) -> int:
        with self._lock:
            return sum(self._rows.values())

    def writer(self) -> SinkWriter:
        return _DiscardWriter()

    def committer(self, uid: Uid, job: str) -> Committer:
        return _DiscardCommitter(self, uid)

    def check(self, schema: pa.Schema) -> None:
        """Everything can be dropped."""

    def __reduce__(self) -> tuple[type[Discard], tuple[()]]:
        # Only the driver's own object counts; what travels to the workers makes writers.
        return (Discard, ())

    def _add(self, uid: Uid, committables: Sequence[bytes]) -> None:
        counts = [msgspec.msgpack.decode(committable, type=_Count) for committable in committables]
        with self._lock:
            for count in counts:
                if (uid, count) not in self._known:
                    self._known[uid, count] = None
                    self._rows[uid] = self._rows.get(uid, 0) + count.rows
            while len(self._known) > max(_REMEMBERED, len(counts)):
                del self._known[next(iter(self._known))]

    def _clear(self, uid: Uid) -> None:
        with self._lock:
            self._rows.pop(uid, None)


class _DiscardWriter(SinkWriter):
    def __init__(self) -> None:
        self._rows = 0

    def open(self, context: OperatorContext) -> None:
        self._context = context

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows

    def prepare(self, checkpoint: CheckpointId) -> Sequence[bytes]:
        if not self._rows:
            return ()
        where = self._context
        count = _Count(where.generation, where.attempt, where.subtask, checkpoint, self._rows)
        self._rows = 0
        return (msgspec.msgpack.encode(count),)


class _DiscardCommitter:
    def __init__(self, sink: Discard, uid: Uid):
        self._sink = sink
        self._uid = uid

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        self._sink._add(self._uid, committables)

    def recover(
        self,
        checkpoint: CheckpointId | None,
        committables: Sequence[bytes],
        generation: Generation,
        attempt: Attempt,
    ) -> None:
        if checkpoint is None:
            self._sink._clear(self._uid)
        self._sink._add(self._uid, committables)

    def close(self) -> None:
        """Nothing is held."""
