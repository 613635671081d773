"""A sink whose committed rows come to the driver: for tests, notebooks and small results.

A writer keeps its batches until the barrier and then puts them, as Arrow IPC streams of bounded size, into its
committables; they travel with the acknowledgement and are part of the checkpoint's record. The committer adds them to
the driver's own `Collect` object, each one once, in the order of the commits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from penstock.connectors.base import Committer, SinkWriter
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.operators.base import OperatorContext

if TYPE_CHECKING:
    import polars as pl

CHUNK_BYTES = 16 << 20
"""What one committable holds at most (a single row may exceed it)."""


MOST_BYTES = 100 << 20
"""What one subtask may bring to the driver with one checkpoint."""


class _Name(msgspec.Struct, frozen=True, array_like=True):
    """Unique among all that a sink's writers ever prepare."""

    generation: int
    attempt: int
    subtask: int
    number: int


class _Chunk(msgspec.Struct, frozen=True, array_like=True):
    name: _Name
    stream: bytes


class Collect:
    """Brings the committed rows to the driver: `result()`, `rows()` or `polars()`, at any time, also while the job
    runs.

    `on_commit` is called on the driver with every newly committed piece; if it raises, the commit is tried again. The
    rows are kept in the driver's memory: those committed since the job's fresh start, or since this driver was started,
    with what its restored checkpoint committed last.
    """

    def __init__(self, on_commit: Callable[[pa.Table], None] | None = None):
        self._on_commit = on_commit
        self._lock = threading.Lock()
        self._schema: pa.Schema | None = None
        self._committed: dict[tuple[Uid, _Name], pa.Table] = {}

    def result(self) -> pa.Table:
        with self._lock:
            tables = list(self._committed.values())
            schema = self._schema
        if schema is None:
            raise RuntimeError("this Collect is not part of a pipeline yet: use it in .sink(...) and run the pipeline")
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def rows(self) -> list[dict[str, Any]]:
        return self.result().to_pylist()

    def polars(self) -> pl.DataFrame:
        import polars as pl

        frame = pl.from_arrow(self.result())
        assert isinstance(frame, pl.DataFrame)
        return frame

    def writer(self) -> SinkWriter:
        return _CollectWriter()

    def committer(self, uid: Uid, job: str) -> Committer:
        return _CollectCommitter(self, uid)

    def check(self, schema: pa.Schema) -> None:
        with self._lock:
            if self._schema is not None and not self._schema.equals(schema):
                raise ValueError(
                    f"one Collect cannot take streams of different schemas: it has {_line(self._schema)}, this one is"
                    f" {_line(schema)}. Use a Collect of its own for each stream"
                )
            self._schema = schema

    def __reduce__(self) -> tuple[type[Collect], tuple[()]]:
        # Only the driver's own object has results; what travels to the workers makes writers.
        return (Collect, ())

    def _add(self, uid: Uid, committables: Sequence[bytes]) -> None:
        for committable in committables:
            chunk = msgspec.msgpack.decode(committable, type=_Chunk)
            with self._lock:
                known = (uid, chunk.name) in self._committed
            if known:
                continue
            table = pa.ipc.open_stream(chunk.stream).read_all()
            if self._on_commit is not None:
                self._on_commit(table)
            with self._lock:
                self._schema = self._schema or table.schema
                self._committed[uid, chunk.name] = table

    def _clear(self, uid: Uid) -> None:
        with self._lock:
            self._committed = {name: table for name, table in self._committed.items() if name[0] != uid}


def _line(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


class _CollectWriter(SinkWriter):
    """Packs while it writes, so that little is left to do at the barrier."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._chunks: list[bytes] = []
        self._packed = 0
        self._number = 0

    def open(self, context: OperatorContext) -> None:
        self._context = context

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._packed + self._bytes > MOST_BYTES:
            raise ValueError(
                f"Collect is for small results: this subtask has more than {MOST_BYTES >> 20} MB for one checkpoint."
                " Aggregate or filter before, take checkpoints more often, or use sinks.Files"
            )
        if self._bytes >= CHUNK_BYTES:
            self._pack()

    def prepare(self, checkpoint: CheckpointId) -> Sequence[bytes]:
        self._pack()
        chunks, self._chunks, self._packed = self._chunks, [], 0
        return chunks

    def _pack(self) -> None:
        self._chunks += [self._chunk(batches) for batches in _bounded(self._batches, CHUNK_BYTES)]
        self._packed += self._bytes
        self._batches, self._bytes = [], 0

    def _chunk(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        self._number += 1
        where = self._context
        name = _Name(where.generation, where.attempt, where.subtask, self._number)
        return msgspec.msgpack.encode(_Chunk(name, stream.getvalue().to_pybytes()))


def _bounded(batches: Sequence[pa.RecordBatch], limit: int) -> list[list[pa.RecordBatch]]:
    """Groups of batches of at most `limit` bytes each; a batch that exceeds it alone is cut by rows."""
    groups: list[list[pa.RecordBatch]] = []
    room = 0
    for batch in batches:
        for piece in _cut(batch, limit):
            if not groups or piece.nbytes > room:
                groups.append([])
                room = limit
            groups[-1].append(piece)
            room -= piece.nbytes
    return groups


def _cut(batch: pa.RecordBatch, limit: int) -> list[pa.RecordBatch]:
    if batch.nbytes <= limit or batch.num_rows == 1:
        return [batch]
    half = batch.num_rows // 2
    return _cut(batch.slice(0, half), limit) + _cut(batch.slice(half), limit)


class _CollectCommitter:
    def __init__(self, sink: Collect, uid: Uid):
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
        """Nothing is held: the result stays with the user's object."""
