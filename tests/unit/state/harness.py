"""Runs keyed operators as a job would: several subtasks, snapshots encoded later, restores at any parallelism."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.core.barrier import Barrier, Mode
from penstock.core.ids import Attempt, CheckpointId, Cut, Generation, Uid
from penstock.core.keygroups import range_of
from penstock.core.settings import RocksDBSettings
from penstock.kernels.partition import partition
from penstock.operators.base import Emitted, Operator, OperatorContext
from penstock.state.parts import CapturedPart, PartKind, RestoredPart

KEY_GROUPS = 16


class Chosen:
    """Where jobs keep their state that say nothing about it (see `tests/unit/conftest.py`)."""

    rocksdb: RocksDBSettings | None = None


BARRIER = Barrier(CheckpointId(1), Mode.ALIGNED)
CUT = Cut(1)


@dataclass
class ManualClock:
    ms: int = 0

    def now(self) -> float:
        return self.ms / 1000

    def wall_ms(self) -> int:
        return self.ms


@dataclass
class Captured:
    """A snapshot of one subtask between capture and write."""

    subtask: int
    parts: Sequence[CapturedPart]

    def encode(self) -> list[RestoredPart]:
        return [self._written(part) for part in self.parts]

    def _written(self, part: CapturedPart) -> RestoredPart:
        content = b"".join(part.encode())
        return RestoredPart(
            part.name, part.kind, self.subtask, lambda: memoryview(content), part.key_groups, piece=part.piece
        )


@dataclass
class Job:
    """All subtasks of one keyed operator."""

    make: Callable[[], Operator]
    key: tuple[str, ...]
    parallelism: int = 1
    restored: Sequence[RestoredPart] = ()
    clock: ManualClock = field(default_factory=ManualClock)
    rocksdb: RocksDBSettings | None = field(default_factory=lambda: Chosen.rocksdb)

    def __post_init__(self) -> None:
        self.subtasks = [self.make() for _ in range(self.parallelism)]
        self.out = [Emitted() for _ in range(self.parallelism)]
        for index, operator in enumerate(self.subtasks):
            operator.open(self._context(index))

    def _context(self, index: int) -> OperatorContext:
        own = range_of(KEY_GROUPS, self.parallelism, index)
        parts = [
            part
            for part in self.restored
            if part.kind is not PartKind.KEYED or (part.key_groups is not None and part.key_groups.overlaps(own))
        ]
        return OperatorContext(
            uid=Uid("op"),
            name="op",
            subtask=index,
            parallelism=self.parallelism,
            key_groups=own,
            total_key_groups=KEY_GROUPS,
            attempt=Attempt(1),
            generation=Generation(1),
            clock=self.clock,
            restored=parts,
            restored_checkpoint=CheckpointId(1) if parts else None,
            rocksdb=self.rocksdb,
        )

    def feed(self, *batches: pa.RecordBatch) -> Job:
        for batch in batches:
            for index, part in enumerate(partition(batch, self.key, KEY_GROUPS, self.parallelism)):
                if part is not None:
                    self.subtasks[index].process(part, 0, self.out[index])
        return self

    def watermark(self, time: int) -> Job:
        for operator, out in zip(self.subtasks, self.out, strict=True):
            operator.on_watermark(time, out)
        return self

    def tick(self, ms: int) -> Job:
        """The clock reaches `ms`; what is due fires, in as many steps as it wants."""
        self.clock.ms = ms
        for operator, out in zip(self.subtasks, self.out, strict=True):
            while (due := operator.next_timer()) is not None and due <= ms:
                operator.on_timer(ms, out)
        return self

    def capture(self) -> list[Captured]:
        """In the backend's own form."""
        return [Captured(index, captured(operator, portable=False)) for index, operator in enumerate(self.subtasks)]

    def snapshot(self) -> list[RestoredPart]:
        return written(self.capture())

    def taken(self) -> list[dict[str, Any]]:
        """What was put out since the last call, subtask by subtask."""
        rows = [row for out in self.out for batch in out.batches for row in batch.to_pylist()]
        for out in self.out:
            out.batches.clear()
        return rows


def captured(operator: Operator, cut: Cut = CUT, portable: bool = True) -> list[CapturedPart]:
    """Everything that the operator would store, whole."""
    parts = list(operator.snapshot(BARRIER).parts)
    for state in operator.logged():
        state.mark(cut, cut)
        parts += [
            CapturedPart(state.name, PartKind.KEYED, piece.encode, state.key_groups, piece=piece.name)
            for piece in state.whole(portable)
        ]
    return parts


def written(captured: Sequence[Captured]) -> list[RestoredPart]:
    return [part for one in captured for part in one.encode()]
