"""Keyed operators whose checkpoints hold only what changed: whatever completes, a restore gives the state back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.barrier import Barrier, Mode, Purpose
from penstock.core.handles import KeyGroupRange, PartHandle
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.core.settings import LayerSettings
from penstock.operators.aggregation import declare as aggregates
from penstock.operators.base import Emitted, Operator, OperatorContext
from penstock.operators.fold import FoldOperator
from penstock.operators.keyed import KeyedContext, KeyedFunction
from penstock.operators.process import ProcessOperator
from penstock.operators.reduce import ReduceOperator
from penstock.runtime.clock import SystemClock
from penstock.runtime.layering import Layers
from penstock.runtime.restored import RestoredSubtask
from penstock.simulation.files import MemoryFiles
from penstock.state import declare
from penstock.state.parts import OperatorSnapshot
from penstock.store.layout import checkpoint_directory
from penstock.store.parts import restored, write_parts

UID = Uid("op")
GROUPS = KeyGroupRange(0, 8)
SCHEMA = pa.schema([("key", pa.int64()), ("amount", pa.int64())])
EAGER = LayerSettings(most=5, share=100.0, small=0)


class Wallet(KeyedFunction):
    """Keeps the last amounts of a key; an amount of 0 clears everything, and its timer never fires."""

    amounts: Any = declare.list(int)
    total: Any = declare.value(int, default=0)

    def process(self, row: Any, ctx: KeyedContext) -> None:
        if row.amount == 0:
            self.amounts.clear()
            self.total.clear()
            ctx.cancel_timer(1_000 + row.key)
        else:
            self.amounts.append(row.amount)
            self.total.value += row.amount
            ctx.timer_at(1_000 + row.key)
        ctx.emit(key=row.key, amount=self.total.value)


def reduce() -> Operator:
    return ReduceOperator(("key",), {"n": aggregates.count(), "low": aggregates.min("amount")}, SCHEMA)


def fold() -> Operator:
    return FoldOperator(lambda a, b: {"key": a.key, "amount": a.amount + b.amount}, ("key",), SCHEMA)


def process() -> Operator:
    return ProcessOperator(Wallet, ("key",), SCHEMA, SCHEMA)


OPERATORS = pytest.mark.parametrize("make", [reduce, fold, process])


@dataclass
class Subtask:
    """One operator with everything that its snapshots go through on their way to the store and back."""

    make: Callable[[], Operator]
    settings: LayerSettings = EAGER
    files: MemoryFiles = field(default_factory=MemoryFiles)
    complete: dict[CheckpointId, list[PartHandle]] = field(default_factory=dict)
    base: CheckpointId | None = None
    last: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """From the newest complete checkpoint, or from scratch."""
        subtask = None if self.base is None else self._restored(self.base)
        self.layers = Layers() if subtask is None else subtask.layers(0)
        self.operator = self.make()
        self.operator.open(
            OperatorContext(
                UID,
                "op",
                0,
                1,
                GROUPS,
                8,
                Attempt(1),
                Generation(1),
                SystemClock(),
                restored=() if subtask is None else subtask.operator_parts(UID),
                restored_checkpoint=self.base,
                base=None if subtask is None else subtask.base_of(UID, 0, GROUPS),
                layers=self.settings,
            )
        )

    def _restored(self, checkpoint: CheckpointId) -> RestoredSubtask:
        directory = checkpoint_directory(checkpoint)
        parts = [restored(self.files, directory, 0, handle) for handle in self.complete[checkpoint]]
        return RestoredSubtask.of(checkpoint, reversed(parts))

    def feed(self, *rows: tuple[int, int]) -> list[dict[str, Any]]:
        out = Emitted()
        columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
        self.operator.process(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), 0, out)
        return [row for batch in out.batches for row in batch.to_pylist()]

    def capture(self, purpose: Purpose = Purpose.CHECKPOINT) -> tuple[CheckpointId, OperatorSnapshot]:
        self.last += 1
        base = None if purpose is Purpose.SAVEPOINT else self.base
        barrier = Barrier(CheckpointId(self.last), Mode.ALIGNED, purpose, base=base)
        return barrier.checkpoint, self.operator.snapshot(barrier)

    def write(self, checkpoint: CheckpointId, snapshot: OperatorSnapshot, completes: bool = True) -> list[PartHandle]:
        parts, below = self.layers.below({UID: snapshot.parts}, {UID: snapshot.unchanged})
        handles = write_parts(self.files, f"{checkpoint_directory(checkpoint)}/{self.last}.data", parts)
        if completes:
            self.layers.remember(checkpoint, [*below, *handles])
            self.complete[checkpoint], self.base = [*below, *handles], checkpoint
        return [*below, *handles]

    def checkpoint(self, completes: bool = True) -> list[PartHandle]:
        return self.write(*self.capture(), completes)


def layers_of(handles: Sequence[PartHandle]) -> list[int]:
    return [handle.layer for handle in handles if handle.key_groups is not None]


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["feed", "feed", "feed", "checkpoint", "abort", "hold", "savepoint", "crash"]),
        st.integers(0, 4),
        st.integers(0, 3),
    ),
    max_size=40,
)


@OPERATORS
@given(steps=STEPS)
def test_a_restore_gives_back_what_was_there_whatever_completed_and_failed(
    make: Callable[[], Operator], steps: list[Step]
) -> None:
    under_test = Subtask(make)
    model = Subtask(make)  # never restores: it is fed again from the start
    rows: list[tuple[int, int]] = []
    stored: list[tuple[int, int]] = []
    held: list[Any] = []
    for action, key, amount in steps:
        match action:
            case "feed":
                rows.append((key, amount))
                under_test.feed((key, amount))
            case "checkpoint":
                under_test.checkpoint()
                stored = list(rows)
            case "abort":
                under_test.checkpoint(completes=False)
            case "hold":
                held.append(under_test.capture())
            case "savepoint":
                under_test.capture(Purpose.SAVEPOINT)
            case "crash":
                rows = list(stored)
                under_test.start()
    for row in rows:
        model.feed(row)
    probes = [(key, 1) for key in range(5)]
    assert [under_test.feed(probe) for probe in probes] == [model.feed(probe) for probe in probes]


@OPERATORS
def test_a_snapshot_that_is_written_late_holds_what_was_there_when_it_was_taken(make: Callable[[], Operator]) -> None:
    under_test = Subtask(make)
    under_test.feed((1, 5), (2, 6), (3, 7))
    under_test.checkpoint()
    under_test.feed((2, 1), (4, 8))
    checkpoint, snapshot = under_test.capture()
    under_test.feed((1, 50), (2, 60), (3, 70), (4, 80), (5, 90))
    under_test.feed((2, 9), (4, 9))
    under_test.write(checkpoint, snapshot)
    under_test.start()
    expected = Subtask(make)
    expected.feed((1, 5), (2, 6), (3, 7))
    expected.feed((2, 1), (4, 8))
    probes = [(key, 1) for key in range(6)]
    assert [under_test.feed(probe) for probe in probes] == [expected.feed(probe) for probe in probes]


@OPERATORS
def test_a_checkpoint_without_changes_writes_nothing_but_names_all_layers(make: Callable[[], Operator]) -> None:
    under_test = Subtask(make)
    under_test.feed((1, 5))
    first = under_test.checkpoint()
    second = under_test.checkpoint()
    keyed = [handle for handle in second if handle.key_groups is not None]
    assert {handle.origin for handle in keyed} == {CheckpointId(1)}
    assert [replace(handle, origin=None) for handle in keyed] == [h for h in first if h.key_groups is not None]


@OPERATORS
def test_chains_are_bounded(make: Callable[[], Operator]) -> None:
    under_test = Subtask(make)
    longest = 0
    for number in range(20):
        under_test.feed((number, 1 + number))
        longest = max(longest, *layers_of(under_test.checkpoint()))
    assert longest == EAGER.most - 1


def test_changes_that_are_many_compared_with_the_state_are_not_worth_a_layer() -> None:
    under_test = Subtask(reduce, replace(EAGER, share=0.5))
    under_test.feed(*((key, 1) for key in range(10)))
    under_test.checkpoint()
    under_test.feed(*((key, 1) for key in range(4)))
    assert layers_of(under_test.checkpoint()) == [0, 1]
    under_test.feed(*((key, 1) for key in range(4)))
    assert layers_of(under_test.checkpoint()) == [0]


@pytest.mark.parametrize("settings", [replace(EAGER, incremental=False), replace(EAGER, small=100)])
def test_small_states_and_those_of_jobs_that_want_it_so_are_written_whole(settings: LayerSettings) -> None:
    under_test = Subtask(reduce, settings)
    for amount in range(3):
        under_test.feed((1, amount), (2, amount))
        assert layers_of(under_test.checkpoint()) == [0]


def test_a_restored_chain_is_continued() -> None:
    under_test = Subtask(reduce)
    under_test.feed((1, 1), (2, 2))
    under_test.checkpoint()
    under_test.feed((1, 1))
    under_test.checkpoint()
    under_test.start()
    under_test.feed((2, 1))
    assert layers_of(under_test.checkpoint()) == [0, 1, 2]
