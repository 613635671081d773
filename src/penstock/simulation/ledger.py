"""What was committed to the sinks of a run, by all of its drivers, in order.

Every sink of a simulated job is a production sink in a wrapper: the wrapper notes what the committer is told to make
visible and refuses to believe that a checkpoint may be committed that the store has not completed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from penstock.connectors.base import Committer, Sink, SinkWriter
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.simulation.faults import Point
from penstock.simulation.witness import Witness


class Ledger:
    """`check` looks at what a sink's readers see right after a commit."""

    def __init__(
        self,
        witness: Witness,
        reach: Callable[[Point], None],
        check: Callable[[Uid, CheckpointId], None],
        *,
        checkpointing: bool,
    ) -> None:
        self.witness, self.reach, self.check, self.checkpointing = witness, reach, check, checkpointing
        self._committed: dict[Uid, dict[bytes, None]] = {}

    def note(self, uid: Uid, committables: Sequence[bytes]) -> None:
        known = self._committed.setdefault(uid, {})
        for committable in committables:
            known.setdefault(committable)

    def committed(self, uid: Uid) -> list[bytes]:
        """Each committable once, in the order of the commits."""
        return list(self._committed.get(uid, ()))


class WatchedSink:
    """Implements `connectors.base.Sink` around another one."""

    def __init__(self, inner: Sink, ledger: Ledger, driver: int) -> None:
        self.inner, self._ledger, self._driver = inner, ledger, driver

    def writer(self) -> SinkWriter:
        return self.inner.writer()

    def committer(self, uid: Uid, job: str) -> Committer:
        return _WatchedCommitter(self.inner.committer(uid, job), self._ledger, uid, self._driver)

    def check(self, schema: pa.Schema) -> None:
        self.inner.check(schema)


class _WatchedCommitter:
    def __init__(self, inner: Committer, ledger: Ledger, uid: Uid, driver: int) -> None:
        self._inner, self._ledger, self._uid, self._driver = inner, ledger, uid, driver
        self._last = CheckpointId(0)

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        witness = self._ledger.witness
        if self._ledger.checkpointing:
            if checkpoint not in witness.completed:
                witness.object(f"driver {self._driver} commits {self._uid} for checkpoint {checkpoint}, not complete")
            if checkpoint < self._last:
                witness.object(f"driver {self._driver} commits {self._uid} {checkpoint} after {self._last}")
        self._last = checkpoint
        self._ledger.reach(Point.COMMIT)
        self._inner.commit(checkpoint, committables)
        self._committed(checkpoint, committables)
        self._ledger.reach(Point.COMMIT_DONE)

    def recover(
        self,
        checkpoint: CheckpointId | None,
        committables: Sequence[bytes],
        generation: Generation,
        attempt: Attempt,
    ) -> None:
        if checkpoint is not None and checkpoint not in self._ledger.witness.completed:
            self._ledger.witness.object(f"driver {self._driver} restores checkpoint {checkpoint}, not complete")
        self._ledger.reach(Point.COMMIT)
        self._inner.recover(checkpoint, committables, generation, attempt)
        if checkpoint is not None:
            self._committed(checkpoint, committables)
        self._ledger.reach(Point.COMMIT_DONE)

    def _committed(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        self._ledger.note(self._uid, committables)
        if checkpoint == self._ledger.witness.newest:
            self._ledger.check(self._uid, checkpoint)

    def close(self) -> None:
        self._inner.close()
