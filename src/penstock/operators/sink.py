"""The end of a chain: hands batches to a sink's writer and carries what it prepared until a checkpoint is complete.

Theory of operation. A writer says at a barrier what it wrote since the last one (its committables). Which checkpoint
will complete is not known then: this one may be aborted, and with several under way a later one may complete while an
earlier one never does. So a committable is named in the snapshot of *every* checkpoint from the one that prepared it to
the first one that is known to be complete: whichever checkpoint completes first, all output before its barrier is in
its record. Committing is idempotent for each committable, so naming one twice does no harm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from penstock.connectors.base import SinkWriter
from penstock.core.barrier import Barrier
from penstock.core.ids import CheckpointId
from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.state.parts import OperatorSnapshot


class SinkOperator(Operator):
    def __init__(self, writer: SinkWriter):
        self._writer = writer
        self._where = "a sink that was never opened"
        self._unconfirmed: dict[CheckpointId, Sequence[bytes]] = {}
        """Committables by the checkpoint that first named them, in the order of their writing."""

    def open(self, context: OperatorContext) -> None:
        self._where = f"sink {context.uid!r}, subtask {context.subtask} of {context.parallelism}"
        with self._named("opening"):
            self._writer.open(context)

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        with self._named("writing"):
            self._writer.write(batch)

    def finish(self, out: Collector) -> None:
        with self._named("finishing"):
            self._writer.finish()

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        with self._named(f"preparing checkpoint {barrier.checkpoint}"):
            prepared = tuple(self._writer.prepare(barrier.checkpoint))
            if prepared:
                self._unconfirmed[barrier.checkpoint] = prepared
            parts = self._writer.capture()
        return OperatorSnapshot(parts, tuple(c for group in self._unconfirmed.values() for c in group))

    def on_complete(self, checkpoint: CheckpointId) -> None:
        self._unconfirmed = {named: group for named, group in self._unconfirmed.items() if named > checkpoint}
        with self._named(f"completing checkpoint {checkpoint}"):
            self._writer.on_complete(checkpoint)

    def on_abort(self, checkpoint: CheckpointId) -> None:
        with self._named(f"aborting checkpoint {checkpoint}"):
            self._writer.on_abort(checkpoint)

    def close(self) -> None:
        self._writer.close()

    @contextmanager
    def _named(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            error.add_note(f"while {doing}, in {self._where}")
            raise
