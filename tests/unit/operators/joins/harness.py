"""Runs joins as a job would: several subtasks, checkpoints of layers, restores at any parallelism; and adds up what
they put out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from tests.unit.operators.windows.harness import Subtask, WindowJob
from tests.unit.state.harness import KEY_GROUPS

from penstock.core.ids import Cut
from penstock.kernels.partition import key_groups_of, partition
from penstock.operators.base import OperatorContext
from penstock.operators.joins.shape import JoinSide
from penstock.runtime.elements import MIN_WATERMARK
from penstock.state.parts import RestoredPart


@dataclass
class JoinJob(WindowJob):
    """`key` is that of the left side."""

    sides: tuple[JoinSide, ...] = ()
    same_share: bool = True

    def _context(self, subtask: Subtask, restored: Sequence[RestoredPart]) -> OperatorContext:
        return replace(super()._context(subtask, restored), same_share=self.same_share)

    def feed_side(self, input: int, *batches: pa.RecordBatch) -> JoinJob:
        for batch in batches:
            shares = partition(batch, self.sides[input].key, KEY_GROUPS, self.parallelism)
            for subtask, share in zip(self.subtasks, shares, strict=True):
                if share is not None:
                    subtask.operator.process(share, input, subtask.out)
        return self

    def times_of(self, input: int, batch: pa.RecordBatch) -> list[int]:
        """The event time of every row's key."""
        groups = key_groups_of(batch, self.sides[input].key, KEY_GROUPS).tolist()
        return [self.times.get(group, MIN_WATERMARK) for group in groups]

    def restart(self, parallelism: int, *, whole: bool = True) -> None:
        """At the same parallelism, subtasks go on with the layers that they had."""
        former, self.same_share = self.subtasks, parallelism == self.parallelism
        super().restart(parallelism, whole=whole)
        if self.same_share:
            for subtask, before in zip(self.subtasks, former, strict=True):
                subtask.layers, subtask.cut = before.layers, 1
                for state in subtask.operator.logged():
                    state.mark(Cut(1), Cut(1))


def result(job: WindowJob) -> Counter[Any]:
    """What is left of a changelog; of another stream, all of it. Nothing may be taken back before it was put out."""
    rows: Counter[Any] = Counter()
    for subtask in job.subtasks:
        for batch in subtask.out.batches:
            for row in batch.to_pylist():
                kind = row.pop("op", "insert")
                rows[frozen(row)] += 1 if kind == "insert" else -1
                assert rows[frozen(row)] >= 0, f"{row} was taken back, but is not there"
    return +rows


def frozen(row: dict[str, Any]) -> Any:
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in row.items())


def answered(table: pa.Table) -> Counter[Any]:
    return Counter(frozen(row) for row in table.to_pylist())
