"""What the connectors' tests share: a clock that the test owns, contexts, and parts that were written and come back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.core.barrier import Barrier, Mode
from penstock.core.handles import KeyGroupRange
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.operators.base import OperatorContext, Polled, SourceOperator
from penstock.state.parts import CapturedPart, RestoredPart


@dataclass
class ManualClock:
    seconds: float = 0.0

    def now(self) -> float:
        return self.seconds

    def wall_ms(self) -> int:
        return int(self.seconds * 1000)


def context(
    subtask: int = 0,
    parallelism: int = 1,
    restored: Sequence[RestoredPart] = (),
    *,
    clock: ManualClock | None = None,
    attempt: int = 1,
    generation: int = 1,
    uid: str = "it",
    deployed_ms: int = 0,
) -> OperatorContext:
    return OperatorContext(
        uid=Uid(uid),
        name="it",
        subtask=subtask,
        parallelism=parallelism,
        key_groups=KeyGroupRange(0, 128),
        total_key_groups=128,
        attempt=Attempt(attempt),
        generation=Generation(generation),
        clock=clock or ManualClock(),
        restored=restored,
        restored_checkpoint=CheckpointId(1) if restored else None,
        job="job",
        deployed_ms=deployed_ms,
    )


def barrier(checkpoint: int) -> Barrier:
    return Barrier(CheckpointId(checkpoint), Mode.ALIGNED)


def written(parts: Iterable[CapturedPart], subtask: int) -> list[RestoredPart]:
    """Encodes the parts now and gives them back as a restore would."""
    restored = []
    for part in parts:
        content = b"".join(part.encode())
        restored.append(RestoredPart(part.name, part.kind, subtask, lambda content=content: memoryview(content)))
    return restored


def snapshot_of(operator: SourceOperator, subtask: int) -> list[RestoredPart]:
    return written(operator.snapshot(barrier(1)).parts, subtask)


def poll_all(operator: SourceOperator, max_rows: int = 1000, most_polls: int = 100_000) -> list[pa.RecordBatch]:
    """Everything a bounded source still has."""
    batches = []
    for _ in range(most_polls):
        polled = operator.poll(max_rows)
        if polled.batch is not None:
            assert 0 < polled.batch.num_rows <= max_rows
            batches.append(polled.batch)
        if polled.done:
            return batches
    raise AssertionError(f"the source was not done after {most_polls} polls")


def poll_rows(operator: SourceOperator, polls: int, max_rows: int) -> tuple[list[dict[str, object]], Polled | None]:
    """The rows of so many polls, and the last answer."""
    rows: list[dict[str, object]] = []
    polled = None
    for _ in range(polls):
        polled = operator.poll(max_rows)
        if polled.batch is not None:
            rows += polled.batch.to_pylist()
        if polled.done:
            break
    return rows, polled
