"""What a connector is: a source that can be replayed, a sink that prepares and commits.

Both descriptions (`Source`, `Sink`) are small immutable values that the user makes and Spark's closure serialisation
ships; the working parts (`SourceOperator`, `SinkWriter`, `Committer`) are made from them where they run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from penstock.core.ids import CheckpointId, Uid
from penstock.operators.base import OperatorContext, SourceOperator
from penstock.state.parts import CapturedPart


class Source(Protocol):
    """Where records come from. Replayable: the same positions give the same records."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def bounded(self) -> bool: ...

    def operator(self) -> SourceOperator:
        """The reader for one subtask. Positions are kept as a `UNION` part, so that any parallelism can pick them
        up."""
        ...


class SinkWriter:
    """Takes batches on a subtask; at a barrier it prepares what the driver will commit once the checkpoint is complete.

    Exactly-once rests on this: nothing that a writer does before the commit is visible to readers of the target;
    `prepare` makes
    everything written since the last barrier durable and describes it; commits are idempotent by checkpoint id.
    """

    def open(self, context: OperatorContext) -> None:
        """`context.restored` holds the parts that `capture` returned. Leftovers of older attempts that no complete
        checkpoint
        names may be removed here."""

    def write(self, batch: pa.RecordBatch) -> None:
        raise NotImplementedError

    def prepare(self, checkpoint: CheckpointId) -> Sequence[bytes]:
        """Descriptions (committables) of everything written since the last `prepare`. Runs on the task's thread:
        keep it short. If the checkpoint is aborted (`on_abort`), the same data must be part of the next `prepare`'s answer."""
        return ()

    def capture(self) -> Sequence[CapturedPart]:
        """The writer's own state beside committables, if any."""
        return ()

    def on_complete(self, checkpoint: CheckpointId) -> None:
        """For sinks that must commit from the process that prepared."""

    def on_abort(self, checkpoint: CheckpointId) -> None:
        """The checkpoint will not complete; what it prepared is not committed under its id."""

    def close(self) -> None: ...


class Committer(Protocol):
    """Runs on the driver, one per sink, in the order of checkpoints."""

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        """Makes visible what the writers prepared. Idempotent: called again for the newest complete checkpoint after
        every
        restart of the driver, and after a failure in the middle."""
        ...

    def discard(self, committables: Sequence[bytes]) -> None:
        """Removes what was prepared under a checkpoint that will never complete. Best effort."""
        ...

    def close(self) -> None: ...


class Sink(Protocol):
    """Where records go."""

    def writer(self) -> SinkWriter: ...

    def committer(self, uid: Uid, job: str) -> Committer: ...

    def check(self, schema: pa.Schema) -> None:
        """At build time: raises a `ValueError` that says what is wrong with the target or the schema."""
        ...
