"""What a connector is: a source that can be replayed, a sink that prepares and commits.

Both descriptions (`Source`, `Sink`) are small immutable values that the user makes and Spark's closure serialisation
ships; the working parts (`SourceOperator`, `SinkWriter`, `Committer`) are made from them where they run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
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
    `prepare` describes everything written since the last barrier; every committable names its piece of output uniquely,
    for all checkpoints and attempts, so that committing it twice is the same as committing it once.

    A writer need not care about aborted checkpoints: `SinkOperator` repeats a committable in every later checkpoint
    until one of them is known to be complete.
    """

    def open(self, context: OperatorContext) -> None:
        """`context.restored` holds the parts that `capture` returned. What the restored checkpoint prepared is
        committed already, and what older attempts left behind is removed (`Committer.recover`): a writer begins with
        nothing."""

    def write(self, batch: pa.RecordBatch) -> None:
        raise NotImplementedError

    def prepare(self, checkpoint: CheckpointId) -> Sequence[bytes]:
        """Descriptions (committables) of everything written since the last `prepare`. Runs on the task's thread: keep
        it short. If it raises, the next `prepare` must still answer with this data."""
        return ()

    def capture(self) -> Sequence[CapturedPart]:
        """Called right after `prepare`: the writer's own state beside committables, if any. The parts are encoded off
        the task's thread and before the checkpoint is acknowledged, which is the place to finish and sync prepared
        output."""
        return ()

    def finish(self) -> None:
        """All input has ended: everything written must be durable when this returns. One `prepare` follows, whose parts
        may go unwritten in a job without checkpoints."""

    def on_complete(self, checkpoint: CheckpointId) -> None:
        """For sinks that must commit from the process that prepared."""

    def on_abort(self, checkpoint: CheckpointId) -> None:
        """The checkpoint will not complete; what it prepared is part of the next one."""

    def close(self) -> None:
        """Called once, also after a failed `open`. Must not raise and not block. What was prepared must stay: a
        checkpoint that names it may have completed."""


class Committer(Protocol):
    """Runs on the driver, one per sink, in the order of checkpoints.

    What a complete checkpoint names must be committed before a later record stops naming it. A writer stops naming a
    committable once it was told of the completion, which may be before the commit has happened: whoever writes a
    checkpoint's record adds the committables of complete checkpoints whose commit has not returned yet.
    """

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        """Makes visible what the writers prepared. Idempotent for each committable: called again after a failure in the
        middle, and for committables that an earlier checkpoint named already."""
        ...

    def recover(
        self,
        checkpoint: CheckpointId | None,
        committables: Sequence[bytes],
        generation: Generation,
        attempt: Attempt,
    ) -> None:
        """Called before every attempt starts, the first one included: commits what the restored checkpoint names
        (again), then removes whatever older attempts and generations prepared beside it. `checkpoint` is None on a
        fresh start; `generation` and `attempt` are those that are about to start."""
        ...

    def close(self) -> None:
        """The job is over on this driver. Must not raise."""
        ...


class Sink(Protocol):
    """Where records go."""

    def writer(self) -> SinkWriter: ...

    def committer(self, uid: Uid, job: str) -> Committer: ...

    def check(self, schema: pa.Schema) -> None:
        """At build time: raises a `ValueError` that says what is wrong with the target or the schema."""
        ...
