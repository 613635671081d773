"""Runs window operators as a job would: several subtasks, whose event time may differ, checkpoints of layers, restores
at any parallelism."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
from hypothesis import strategies as st
from tests.unit.state.harness import KEY_GROUPS, ManualClock

from penstock.core.barrier import Barrier, Mode
from penstock.core.ids import Attempt, CheckpointId, Cut, Generation, Uid
from penstock.core.keygroups import range_of
from penstock.kernels.partition import key_groups_of, partition
from penstock.operators.base import Emitted, Operator, OperatorContext
from penstock.runtime.elements import MAX_WATERMARK, MIN_WATERMARK
from penstock.state.parts import Encode, KeyGroupRange, PartKind, RestoredPart

BARRIER = Barrier(CheckpointId(1), Mode.ALIGNED)
Step = tuple[str, Any]


def steps(row: st.SearchStrategy[Any], times: st.SearchStrategy[int]) -> st.SearchStrategy[list[Step]]:
    """What can happen to a job, in any order."""
    return st.lists(
        st.one_of(
            st.tuples(st.just("rows"), st.lists(row, min_size=1, max_size=10)),
            st.tuples(st.just("watermark"), times),
            st.tuples(st.just("watermark of one"), st.tuples(times, st.integers(0, 2))),
            st.tuples(st.just("step"), st.none()),
            st.tuples(st.just("restart"), st.tuples(st.integers(1, 3), st.booleans())),
            st.tuples(st.just("checkpoint"), st.booleans()),
        ),
        max_size=14,
    )


class Oracle(Protocol):
    def feed(self, rows: list[Any], watermarks: list[int]) -> None:
        """Rows come, each at the event time of its key."""
        ...


@dataclass
class Subtask:
    """One subtask with the layers of its last checkpoints."""

    index: int
    own: KeyGroupRange
    operator: Operator
    out: Emitted = field(default_factory=Emitted)
    cut: int = 0
    layers: dict[str, list[bytes]] = field(default_factory=dict)

    def checkpoint(self, *, whole: bool) -> list[RestoredPart]:
        """Encoded at once; see `capture` for later."""
        return self.capture(whole=whole)()

    def capture(self, *, whole: bool) -> Callable[[], list[RestoredPart]]:
        self.cut += 1
        encoders: list[tuple[str, Encode | None, bool]] = []
        for state in self.operator.logged():
            state.mark(Cut(self.cut), Cut(self.cut - 1))
            if not whole and self.cut > 1 and state.changed_since(Cut(self.cut - 1)) is not None:
                encoders.append((state.name, state.changes(Cut(self.cut - 1)), False))
            else:
                pieces = state.whole(portable=False)
                encoders.append((state.name, pieces[0].encode if pieces else None, True))
        others = list(self.operator.snapshot(BARRIER).parts)

        def write() -> list[RestoredPart]:
            parts = []
            for name, encode, is_base in encoders:
                layers = [] if is_base else self.layers[name]
                self.layers[name] = layers + ([] if encode is None else [b"".join(encode())])
                parts += [
                    self._part(name, PartKind.KEYED, content, layer) for layer, content in enumerate(self.layers[name])
                ]
            for part in others:
                parts.append(self._part(part.name, part.kind, b"".join(part.encode()), 0))
            return parts

        return write

    def _part(self, name: str, kind: PartKind, content: bytes, layer: int) -> RestoredPart:
        own = self.own if kind is PartKind.KEYED else None
        return RestoredPart(name, kind, self.index, lambda: memoryview(content), own, layer=layer)


@dataclass
class WindowJob:
    make: Callable[[], Operator]
    key: tuple[str, ...]
    parallelism: int = 1
    restored: Sequence[RestoredPart] = ()
    clock: ManualClock = field(default_factory=ManualClock)
    times: dict[int, int] = field(default_factory=dict)
    """By key group: its event time."""

    def __post_init__(self) -> None:
        self.start(self.parallelism, self.restored)

    def start(self, parallelism: int, restored: Sequence[RestoredPart] = ()) -> None:
        self.parallelism = parallelism
        self.subtasks = []
        for index in range(parallelism):
            own = range_of(KEY_GROUPS, parallelism, index)
            subtask = Subtask(index, own, self.make())
            subtask.operator.open(self._context(subtask, restored))
            self.subtasks.append(subtask)

    def _context(self, subtask: Subtask, restored: Sequence[RestoredPart]) -> OperatorContext:
        parts = [part for part in restored if part.key_groups is None or part.key_groups.overlaps(subtask.own)]
        return OperatorContext(
            uid=Uid("op"),
            name="op",
            subtask=subtask.index,
            parallelism=self.parallelism,
            key_groups=subtask.own,
            total_key_groups=KEY_GROUPS,
            attempt=Attempt(1),
            generation=Generation(1),
            clock=self.clock,
            restored=parts,
            restored_checkpoint=CheckpointId(1) if parts else None,
        )

    def feed(self, *batches: pa.RecordBatch) -> WindowJob:
        for batch in batches:
            shares = partition(batch, self.key, KEY_GROUPS, self.parallelism) if self.key else [batch]
            for subtask, share in zip(self.subtasks, shares, strict=True):
                if share is not None:
                    subtask.operator.process(share, 0, subtask.out)
        return self

    def groups(self, batch: pa.RecordBatch) -> list[int]:
        return key_groups_of(batch, self.key, KEY_GROUPS).tolist() if self.key else [0] * batch.num_rows

    def watermark(self, time: int, *, only: int | None = None) -> WindowJob:
        """To all subtasks, or to one of them."""
        for subtask in self.subtasks:
            if only is None or subtask.index == only % self.parallelism:
                subtask.operator.on_watermark(time, subtask.out)
                for group in range(subtask.own.start, subtask.own.end):
                    self.times[group] = max(self.times.get(group, MIN_WATERMARK), time)
        return self

    def step(self) -> WindowJob:
        """What is due goes on by one portion."""
        for subtask in self.subtasks:
            due = subtask.operator.next_timer()
            if due is not None and due <= self.clock.ms:
                subtask.operator.on_timer(self.clock.ms, subtask.out)
        return self

    def tick(self, ms: int) -> WindowJob:
        """The clock reaches `ms`; all that is due happens."""
        self.clock.ms = ms
        while any((due := subtask.operator.next_timer()) is not None and due <= ms for subtask in self.subtasks):
            self.step()
        return self

    def settle(self) -> WindowJob:
        return self.tick(self.clock.ms)

    def checkpoint(self, *, whole: bool = True) -> list[RestoredPart]:
        return [part for subtask in self.subtasks for part in subtask.checkpoint(whole=whole)]

    def restart(self, parallelism: int, *, whole: bool = True) -> None:
        """What was put out so far stays."""
        parts, before = self.checkpoint(whole=whole), [subtask.out for subtask in self.subtasks]
        self.start(parallelism, parts)
        for out in before:
            self.subtasks[0].out.batches.extend(out.batches)
            for name, batches in out.sides.items():
                self.subtasks[0].out.sides.setdefault(name, []).extend(batches)

    def run(self, steps: Sequence[Step], batch: Callable[[list[Any]], pa.RecordBatch], oracle: Oracle) -> None:
        """Through all steps to the end of time."""
        for kind, what in steps:
            if kind == "rows":
                records = batch(what)
                oracle.feed(what, [self.times.get(group, MIN_WATERMARK) for group in self.groups(records)])
                self.feed(records)
            elif kind == "watermark":
                self.watermark(what)
            elif kind == "watermark of one":
                self.watermark(what[0], only=what[1])
            elif kind == "step":
                self.step()
            elif kind == "checkpoint":
                self.checkpoint(whole=what)
            else:
                self.restart(what[0], whole=what[1])
        self.end()

    def end(self) -> WindowJob:
        return self.watermark(MAX_WATERMARK)

    def rows(self) -> list[dict[str, Any]]:
        """All that was put out."""
        return [row for subtask in self.subtasks for batch in subtask.out.batches for row in batch.to_pylist()]

    def side(self, name: str) -> list[dict[str, Any]]:
        batches = [batch for subtask in self.subtasks for batch in subtask.out.sides.get(name, ())]
        return [row for batch in batches for row in batch.to_pylist()]
