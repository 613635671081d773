"""Keyed operators whose checkpoints hold only what changed: whatever completes, a restore gives the state back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.barrier import Purpose
from penstock.core.handles import KeyGroupRange, PartHandle
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.core.settings import LayerSettings, RocksDBSettings
from penstock.operators.aggregation import declare as aggregates
from penstock.operators.base import Emitted, Operator, OperatorContext
from penstock.operators.fold import FoldOperator
from penstock.operators.keyed import KeyedContext, KeyedFunction
from penstock.operators.process import ProcessOperator
from penstock.operators.reduce import ReduceOperator
from penstock.runtime.clock import SystemClock
from penstock.runtime.ports import STATE, WriteId
from penstock.runtime.restored import RestoredSubtask
from penstock.runtime.statelog import Captured, Progress, StateLog
from penstock.simulation.files import MemoryFiles
from penstock.state import columnmap, declare
from penstock.state.parts import CapturedPart
from penstock.store.layout import checkpoint_directory
from penstock.store.parts import restored, write_parts

UID = Uid("op")
GROUPS = KeyGroupRange(0, 8)
SCHEMA = pa.schema([("key", pa.int64()), ("amount", pa.int64())])
EAGER = LayerSettings(most=5, share=100.0, small=0, changelog=True, flush_every=0.0)


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


class Memory(KeyedFunction):
    """Keeps one value of a key, in columns; an amount of 0 clears it, one of 2 leaves that of an even key as it is."""

    last: Any = declare.value(tuple[int, str | None], default=(0, None))

    def process(self, row: Any, ctx: KeyedContext) -> None:
        count, text = self.last.value
        if row.amount == 0:
            self.last.clear()
        elif row.amount != 2 or row.key % 2:
            self.last.value = (count + row.amount, None if row.amount == 3 else f"{text}-{row.amount}")
        ctx.emit(key=row.key, amount=count * 1_000 + len(text or ""))


def reduce() -> Operator:
    return ReduceOperator(("key",), {"n": aggregates.count(), "low": aggregates.min("amount")}, SCHEMA)


def fold() -> Operator:
    return FoldOperator(lambda a, b: {"key": a.key, "amount": a.amount + b.amount}, ("key",), SCHEMA)


def process() -> Operator:
    return ProcessOperator(Wallet, ("key",), SCHEMA, SCHEMA)


def process_in_columns() -> Operator:
    return ProcessOperator(Memory, ("key",), SCHEMA, SCHEMA)


@pytest.fixture(autouse=True, scope="module")
def tables_in_columns_are_made_anew_early() -> Iterator[None]:
    with mock.patch.object(columnmap, "LEAST_ABSENT", 1):
        yield


OPERATORS = pytest.mark.parametrize("make", [reduce, fold, process, process_in_columns])


@dataclass
class Writer:
    """Implements `SnapshotWriter`; a write is done when the test says so."""

    files: MemoryFiles
    attempt: int = 0
    waiting: list[tuple[WriteId, Mapping[Uid, Sequence[CapturedPart]]]] = field(default_factory=list)
    dropped: list[WriteId] = field(default_factory=list)

    def write(self, write: WriteId, parts: Mapping[Uid, Sequence[CapturedPart]], inline: bool = True) -> None:
        self.waiting.append((write, parts))

    def skip(self, write: WriteId) -> None:
        """Nothing is shared here."""

    def drop(self, write: WriteId) -> None:
        self.dropped.append(write)
        self.files.delete(self.path(write))

    def path(self, write: WriteId) -> str:
        return f"{checkpoint_directory(write.checkpoint)}/a{self.attempt}-{write.ticket}.data"


@dataclass
class Subtask:
    """One operator with everything that its snapshots go through on their way to the store and back."""

    make: Callable[[], Operator]
    settings: LayerSettings = EAGER
    rocksdb: RocksDBSettings | None = None
    files: MemoryFiles = field(default_factory=MemoryFiles)
    complete: dict[CheckpointId, list[PartHandle]] = field(default_factory=dict)
    newest: CheckpointId | None = None
    last: int = 0

    def __post_init__(self) -> None:
        self.writer = Writer(self.files)
        self.start()

    def start(self) -> None:
        """From the newest complete checkpoint, or from scratch. What was under way is lost."""
        self.writer = Writer(self.files, self.writer.attempt + 1)
        self.log = StateLog(self.settings, self.writer)
        subtask = None if self.newest is None else self._restored(self.newest)
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
                restored_checkpoint=self.newest,
                rocksdb=self.rocksdb,
            )
        )
        for state in self.operator.logged():
            stored = [] if subtask is None else subtask.layers(UID, state.name, 0, GROUPS)
            self.log.add(UID, state, stored, self.newest or CheckpointId(0))

    def _restored(self, checkpoint: CheckpointId) -> RestoredSubtask:
        directory = checkpoint_directory(checkpoint)
        parts = [restored(self.files, directory, 0, handle) for handle in self.complete[checkpoint]]
        return RestoredSubtask.of(checkpoint, reversed(parts))

    def feed(self, *rows: tuple[int, int]) -> list[dict[str, Any]]:
        out = Emitted()
        columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
        self.operator.process(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), 0, out)
        return [row for batch in out.batches for row in batch.to_pylist()]

    def capture(self, purpose: Purpose = Purpose.CHECKPOINT) -> tuple[CheckpointId, Captured]:
        self.last += 1
        return CheckpointId(self.last), self.log.capture(CheckpointId(self.last), purpose, {})

    def finish(self, place: int = 0, fail: bool = False) -> None:
        """One of the writes that wait."""
        if not self.writer.waiting:
            return
        write, parts = self.writer.waiting.pop(place % len(self.writer.waiting))
        if fail:
            self.log.failed(write, "disk full")
        else:
            self.log.written(write, write_parts(self.files, self.writer.path(write), parts), 0.0)

    def finish_all(self) -> None:
        while self.writer.waiting:
            self.finish()

    def completes(self, checkpoint: CheckpointId, captured: Captured) -> bool:
        """Completes the checkpoint, if all that it needs is written and no later one is complete."""
        if any(write.progress is not Progress.DURABLE for write in captured.writes):
            return False
        if self.newest is None or checkpoint > self.newest:
            self.complete[checkpoint], self.newest = captured.handles(), checkpoint
            self.log.complete(checkpoint)
        return True

    def checkpoint(self) -> list[PartHandle]:
        taken = self.capture()
        self.finish_all()
        assert self.completes(*taken)
        return self.complete[taken[0]]


def layers_of(handles: Sequence[PartHandle]) -> list[int]:
    return [handle.layer for handle in handles]


KEYS = 9
Step = tuple[str, int, int]
ACTIONS = ["feed"] * 4 + [
    "checkpoint",
    "begin",
    "finish",
    "finish",
    "fail",
    "complete",
    "abort",
    "flush",
    "savepoint",
    "crash",
]
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, KEYS - 1), st.integers(0, 3)), max_size=50)


@OPERATORS
@given(steps=STEPS)
def test_a_restore_gives_back_what_was_there_whatever_completed_and_failed(
    make: Callable[[], Operator], steps: list[Step]
) -> None:
    under_test = Subtask(make, replace(EAGER, most=3, worth=10.0))
    model = Subtask(make)  # never restores: it is fed again from the start
    rows: list[tuple[int, int]] = []
    stored: list[tuple[int, int]] = []
    open: dict[CheckpointId, tuple[Captured, list[tuple[int, int]]]] = {}
    for action, key, amount in steps:
        match action:
            case "feed":
                rows.append((key, amount))
                under_test.feed((key, amount))
            case "checkpoint":
                under_test.finish_all()
                under_test.checkpoint()
                stored, open = list(rows), {}
            case "begin" | "savepoint":
                purpose = Purpose.SAVEPOINT if action == "savepoint" else Purpose.CHECKPOINT
                checkpoint, captured = under_test.capture(purpose)
                open[checkpoint] = (captured, list(rows))
            case "flush":
                under_test.log.flush(float(len(rows)))
            case "finish" | "fail":
                under_test.finish(key, fail=action == "fail")
            case "complete":
                for checkpoint, (captured, then) in list(open.items()):
                    if under_test.completes(checkpoint, captured):
                        stored = then
                        open = {later: kept for later, kept in open.items() if later > checkpoint}
                        break
            case "abort" if open:
                checkpoint = sorted(open)[key % len(open)]
                del open[checkpoint]
                under_test.log.abort(checkpoint)
            case "crash":
                rows, open = list(stored), {}
                under_test.start()
    for row in rows:
        model.feed(row)
    probes = [(key, 1) for key in range(KEYS)]
    assert [under_test.feed(probe) for probe in probes] == [model.feed(probe) for probe in probes]


@OPERATORS
def test_a_snapshot_that_is_written_late_holds_what_was_there_when_it_was_taken(make: Callable[[], Operator]) -> None:
    under_test = Subtask(make)
    under_test.feed((1, 5), (2, 6), (3, 7))
    under_test.checkpoint()
    under_test.feed((2, 1), (4, 8))
    taken = under_test.capture()
    under_test.feed((1, 50), (2, 60), (3, 70), (4, 80), (5, 90))
    under_test.feed((2, 9), (4, 9))
    under_test.finish_all()
    assert under_test.completes(*taken)
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
    assert {handle.origin for handle in second} == {CheckpointId(1)}
    assert second == first


@OPERATORS
def test_chains_are_bounded(make: Callable[[], Operator]) -> None:
    under_test = Subtask(make)
    under_test.feed(*((number, 1 + number) for number in range(50)))
    lengths = []
    for number in range(40):
        under_test.feed((number, 1 + number))
        lengths.append(len(set(layers_of(under_test.checkpoint()))))
    assert max(lengths) == EAGER.most
    assert lengths.count(1) <= 1, "it is rewritten in the background: no checkpoint but the first waits for the whole"


def test_no_checkpoint_waits_for_a_state_that_is_rewritten() -> None:
    under_test = Subtask(reduce)
    under_test.feed(*((key, 1) for key in range(50)))
    for key in range(EAGER.most - 2):
        under_test.checkpoint()
        under_test.feed((key, 1))
    under_test.checkpoint()
    under_test.feed((1, 1))
    taken = under_test.capture()
    assert len(under_test.writer.waiting) == 2
    under_test.finish()
    assert under_test.completes(*taken)
    under_test.feed((2, 1))
    under_test.finish()  # the rewritten one
    assert len(layers_of(under_test.checkpoint())) == 2


def test_changes_that_are_most_of_the_state_are_not_worth_a_layer() -> None:
    under_test = Subtask(reduce)
    under_test.feed(*((key, 1) for key in range(10)))
    under_test.checkpoint()
    under_test.feed(*((key, 1) for key in range(5)))
    assert layers_of(under_test.checkpoint()) == [0, 1]
    under_test.feed(*((key, 1) for key in range(6)))
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


def test_what_an_aborted_checkpoint_wrote_is_part_of_the_next_one() -> None:
    under_test = Subtask(reduce)
    under_test.feed(*((key, 1) for key in range(10)))
    expired, _ = under_test.capture()
    under_test.log.abort(expired)  # while its upload goes on
    under_test.feed((1, 1))
    handles = under_test.checkpoint()
    assert [(handle.layer, handle.origin) for handle in handles] == [(0, expired), (1, expired + 1)]
    assert under_test.writer.dropped == []


def test_a_checkpoint_waits_for_what_an_aborted_one_is_still_writing() -> None:
    under_test = Subtask(reduce)
    under_test.feed(*((key, 1) for key in range(10)))
    expired, _ = under_test.capture()
    under_test.log.abort(expired)
    under_test.feed((1, 1))
    taken = under_test.capture()
    under_test.finish(1)
    assert not under_test.completes(*taken)
    under_test.finish()
    assert under_test.completes(*taken)


def test_what_no_checkpoint_will_name_is_removed() -> None:
    under_test = Subtask(reduce)
    under_test.feed((1, 1), (2, 1))
    expired, _ = under_test.capture()
    under_test.finish_all()
    under_test.log.abort(expired)
    assert under_test.writer.dropped == []
    under_test.feed((1, 1), (2, 1))  # most of it: the next one is whole
    under_test.checkpoint()
    assert under_test.writer.dropped == [WriteId(expired, STATE)]


def test_after_a_failed_write_the_changes_since_the_last_durable_layer_are_written() -> None:
    under_test = Subtask(reduce)
    under_test.feed(*((key, 1) for key in range(20)))
    under_test.checkpoint()
    for key in range(3):
        under_test.feed((key, 1))
        under_test.capture()
    under_test.finish(1, fail=True)
    under_test.finish_all()
    under_test.feed((9, 1))
    assert layers_of(under_test.checkpoint()) == [0, 1, 2]
    under_test.start()
    assert under_test.feed((0, 1), (1, 1), (2, 1), (9, 1), (10, 1)) == [
        {"key": key, "n": 2 if key == 10 else 3, "low": 1} for key in (0, 1, 2, 9, 10)
    ]


def test_flushes_leave_a_checkpoint_little_to_write() -> None:
    under_test = Subtask(reduce)
    under_test.feed(*((key, 1) for key in range(20)))
    under_test.checkpoint()
    under_test.feed((1, 1), (2, 1), (3, 1))
    under_test.log.flush(1.0)
    under_test.finish_all()
    handles = under_test.checkpoint()
    assert layers_of(handles) == [0, 1]
    assert {handle.origin for handle in handles} == {CheckpointId(1)}, "nothing was left to write for it"


def test_flushes_do_not_pile_up_behind_a_slow_store() -> None:
    under_test = Subtask(reduce)
    under_test.feed(*((key, 1) for key in range(20)))
    under_test.checkpoint()
    for key in range(5):
        under_test.feed((key, 1))
        under_test.log.flush(1.0 + key)
    assert len(under_test.writer.waiting) == 1
