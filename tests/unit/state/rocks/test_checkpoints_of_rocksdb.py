"""Operators with state in RocksDB: checkpoints that share files, and restores from and into everything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.state.harness import EAGER, Job
from tests.unit.state.rocks.later import Later

from penstock.core.barrier import Barrier, Mode, Purpose
from penstock.core.handles import KeyGroupRange, PartHandle
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.core.settings import LayerSettings, RocksDBSettings
from penstock.operators.base import Emitted, Operator, OperatorContext
from penstock.operators.fold import FoldOperator
from penstock.operators.keyed import KeyedContext, KeyedFunction
from penstock.operators.process import ProcessOperator
from penstock.runtime.clock import SystemClock
from penstock.runtime.layering import Layers
from penstock.runtime.restored import RestoredSubtask
from penstock.simulation.files import MemoryFiles
from penstock.state import declare
from penstock.state.parts import OperatorSnapshot
from penstock.state.rocks import backend, export
from penstock.state.rocks.memory import Share
from penstock.state.tables import StateMismatch
from penstock.store.errors import CorruptCheckpoint
from penstock.store.layout import checkpoint_directory
from penstock.store.parts import restored, write_parts

UID = Uid("op")
GROUPS = KeyGroupRange(0, 8)
SCHEMA = pa.schema([("key", pa.int64()), ("amount", pa.int64())])


class Wallet(KeyedFunction):
    """Keeps the amounts of a key; an amount of 0 clears everything."""

    amounts: Any = declare.list(int)
    total: Any = declare.value(int, default=0)

    def process(self, row: Any, ctx: KeyedContext) -> None:
        if row.amount == 0:
            self.amounts.clear()
            self.total.clear()
        else:
            self.amounts.append(row.amount)
            self.total.value += row.amount
        assert sum(self.amounts.value) == self.total.value
        ctx.emit(key=row.key, amount=self.total.value * 100 + len(self.amounts))


def process() -> Operator:
    return ProcessOperator(Wallet, ("key",), SCHEMA, SCHEMA)


def fold() -> Operator:
    return FoldOperator(lambda a, b: {"key": a.key, "amount": a.amount + b.amount}, ("key",), SCHEMA)


@pytest.fixture(scope="module")
def settings(rocks_directory: str) -> RocksDBSettings:
    return RocksDBSettings(16 << 20, rocks_directory)


@pytest.fixture(scope="module")
def later() -> Iterator[Later]:
    patch, later = pytest.MonkeyPatch(), Later()
    patch.setattr(backend, "_threads", lambda: later)
    patch.setattr(Share, "_FIRST", 4)
    yield later
    patch.undo()


@dataclass
class Subtask:
    """One operator with everything that its snapshots go through on their way to the store and back."""

    later: Later
    rocksdb: RocksDBSettings | None
    make: Any = process
    layers: LayerSettings = EAGER
    files: MemoryFiles = field(default_factory=MemoryFiles)
    complete: dict[CheckpointId, list[PartHandle]] = field(default_factory=dict)
    base: CheckpointId | None = None
    newest: CheckpointId | None = None
    last: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """From the newest complete checkpoint or savepoint, or from scratch."""
        subtask = None if self.newest is None else self._restored(self.newest)
        self.known = Layers() if subtask is None else subtask.layers(0)
        self.base = self.newest
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
                base=None if subtask is None else subtask.base_of(UID, 0, GROUPS),
                layers=self.layers,
                rocksdb=self.rocksdb,
            )
        )

    def restart(self, rocksdb: RocksDBSettings | None) -> None:
        self.operator.close()
        self.rocksdb = rocksdb
        self.start()

    def _restored(self, checkpoint: CheckpointId) -> RestoredSubtask:
        directory = checkpoint_directory(checkpoint)
        parts = [restored(self.files, directory, 0, handle) for handle in self.complete[checkpoint]]
        return RestoredSubtask.of(checkpoint, reversed(parts))

    def feed(self, *rows: tuple[int, int]) -> list[dict[str, Any]]:
        out = Emitted()
        columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
        self.operator.process(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), 0, out)
        return [row for batch in out.batches for row in batch.to_pylist()]

    def capture(self, purpose: Purpose = Purpose.CHECKPOINT) -> tuple[Barrier, OperatorSnapshot]:
        self.last += 1
        base = None if purpose is Purpose.SAVEPOINT else self.base
        barrier = Barrier(CheckpointId(self.last), Mode.ALIGNED, purpose, base=base)
        return barrier, self.operator.snapshot(barrier)

    def write(self, barrier: Barrier, snapshot: OperatorSnapshot, completes: bool = True) -> list[PartHandle]:
        checkpoint = barrier.checkpoint
        parts, below = self.known.below({UID: snapshot.parts}, {UID: snapshot.unchanged})
        handles = write_parts(self.files, f"{checkpoint_directory(checkpoint)}/{self.last}.data", parts)
        if completes:
            self.known.remember(checkpoint, [*below, *handles])
            self.complete[checkpoint], self.newest = [*below, *handles], checkpoint
            if barrier.purpose is not Purpose.SAVEPOINT:
                self.base = checkpoint
        return [*below, *handles]

    def checkpoint(self, completes: bool = True, purpose: Purpose = Purpose.CHECKPOINT) -> list[PartHandle]:
        return self.write(*self.capture(purpose), completes)

    def merged_checkpoint(self) -> list[PartHandle]:
        """One after which everything is in RocksDB's files, and one that names them."""
        self.checkpoint()
        self.later.run()
        self.operator._backend.settle()  # type: ignore[attr-defined]
        return self.checkpoint()


def names(handles: Sequence[PartHandle]) -> list[str]:
    return sorted(handle.name for handle in handles if handle.key_groups is not None)


def tables(handles: Sequence[PartHandle]) -> dict[str, CheckpointId | None]:
    """The table files of a checkpoint, and which earlier one wrote each."""
    return {handle.name: handle.origin for handle in handles if handle.name.endswith(".sst")}


# ---- whatever happens ----
Step = tuple[str, int, int]
FAULTS = ["abort", "hold", "savepoint", "crash", "run", "move"]
ACTIONS = ["feed"] * 6 + ["checkpoint"] * 2 + ["merged checkpoint", *FAULTS]
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 4), st.integers(0, 3)), min_size=10, max_size=40)


@pytest.mark.parametrize("make", [process, fold])
@given(steps=STEPS)
def test_a_restore_into_any_backend_gives_back_what_was_there_whatever_completed_and_failed(
    make: Any, settings: RocksDBSettings, later: Later, steps: list[Step]
) -> None:
    under_test = Subtask(later, settings, make)
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
            case "merged checkpoint":
                under_test.merged_checkpoint()
                stored = list(rows)
            case "abort":
                under_test.checkpoint(completes=False)
            case "hold":
                held.append(under_test.capture())
            case "savepoint":
                under_test.checkpoint(purpose=Purpose.SAVEPOINT)
                stored = list(rows)
            case "run":
                later.run()
            case "crash":
                rows = list(stored)
                under_test.restart(under_test.rocksdb)
            case "move":
                rows = list(stored)
                under_test.restart(None if under_test.rocksdb else settings)
    model = Subtask(later, None, make)  # in memory, never restored: it is fed again from the start
    for row in rows:
        model.feed(row)
    probes = [(key, 1) for key in range(5)]
    assert [under_test.feed(probe) for probe in probes] == [model.feed(probe) for probe in probes]
    under_test.operator.close()


AMOUNTS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), min_size=1, max_size=60)
BACKENDS = st.booleans()


@given(rows=AMOUNTS, first=BACKENDS, second=BACKENDS, scales=st.lists(st.integers(1, 4), min_size=2, max_size=2))
def test_state_is_the_same_at_any_other_parallelism_and_in_any_other_backend(
    settings: RocksDBSettings,
    later: Later,
    rows: list[tuple[int, int]],
    first: bool,
    second: bool,
    scales: list[int],
) -> None:
    columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    before = Job(process, ("key",), scales[0], rocksdb=settings if first else None).feed(batch)
    before.snapshot()
    later.run()
    before.feed(batch)
    parts = before.snapshot()
    if first:
        assert any(part.name.endswith(".sst") for part in parts)
    after = Job(process, ("key",), scales[1], restored=parts, rocksdb=settings if second else None)
    sizes = [len(operator._backend.states[0].map) for operator in after.subtasks]
    assert sum(sizes) == len({key for key, _ in rows}), "some keys are nowhere, or at several subtasks"
    expected = Job(process, ("key",)).feed(batch, batch)
    answers = sorted((row["key"], row["amount"]) for row in after.feed(batch).taken())
    assert answers == sorted((row["key"], row["amount"]) for row in expected.feed(batch).taken()[-len(answers) :])
    for operator in (*before.subtasks, *after.subtasks):
        operator.close()


# ---- what is written ----
def test_a_small_change_writes_a_small_file_and_names_the_others_again(settings: RocksDBSettings, later: Later) -> None:
    under_test = Subtask(later, settings)
    under_test.feed(*((key, 1) for key in range(1_000)))
    first = under_test.merged_checkpoint()
    under_test.feed((3, 1))
    second = under_test.merged_checkpoint()
    shared = tables(first).keys() & tables(second).keys()
    written = [handle for handle in second if handle.origin is None]
    assert shared
    assert {tables(second)[name] for name in shared} <= {CheckpointId(1), CheckpointId(2)}
    assert sum(handle.length for handle in written) < sum(handle.length for handle in first) / 5


def test_a_checkpoint_without_changes_writes_no_state(settings: RocksDBSettings, later: Later) -> None:
    under_test = Subtask(later, settings)
    under_test.feed((1, 5), (2, 6))
    under_test.merged_checkpoint()
    again = under_test.checkpoint()
    assert [handle.name for handle in again if handle.origin is None and handle.key_groups is not None] == []
    assert "total#rocksdb" in names(again)


def test_after_a_restore_the_files_that_were_put_back_are_named_again(settings: RocksDBSettings, later: Later) -> None:
    under_test = Subtask(later, settings)
    under_test.feed(*((key, 1) for key in range(100)))
    before = under_test.merged_checkpoint()
    under_test.restart(settings)
    after = under_test.checkpoint()
    assert tables(after).keys() == tables(before).keys()
    assert None not in tables(after).values()


def test_what_was_taken_at_the_barrier_is_written_however_late(settings: RocksDBSettings, later: Later) -> None:
    under_test = Subtask(later, settings)
    under_test.feed(*((key, 1) for key in range(100)))
    under_test.merged_checkpoint()
    under_test.feed((3, 5))
    taken = under_test.capture()
    for _ in range(3):
        under_test.feed(*((key, 7) for key in range(100)))
        under_test.merged_checkpoint()
    under_test.operator.close()  # its working files are gone, but not those that the snapshot still needs
    under_test.write(*taken)
    under_test.start()
    assert under_test.feed((3, 1), (4, 1)) == [{"key": 3, "amount": 703}, {"key": 4, "amount": 202}]


def test_a_job_that_is_not_incremental_writes_every_file_every_time(settings: RocksDBSettings, later: Later) -> None:
    under_test = Subtask(later, settings, layers=replace(EAGER, incremental=False))
    under_test.feed((1, 5))
    under_test.merged_checkpoint()
    assert {handle.origin for handle in under_test.checkpoint()} == {None}


def test_a_state_that_is_small_is_written_as_in_memory(settings: RocksDBSettings, later: Later) -> None:
    under_test = Subtask(later, settings, layers=LayerSettings(small=1_000))
    under_test.feed((1, 5))
    assert names(under_test.merged_checkpoint()) == ["amounts", "total"]


def test_a_savepoint_holds_no_files_of_rocksdb_but_several_of_keyed_state(
    settings: RocksDBSettings, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "FILE_SIZE", 1_000)
    under_test = Subtask(later, settings)
    under_test.feed(*((key, key + 1) for key in range(2_000)))
    under_test.merged_checkpoint()
    under_test.feed((3, 5), (2_001, 7), (4, 0))
    saved = under_test.checkpoint(purpose=Purpose.SAVEPOINT)
    assert names(saved)[:2] == ["amounts", "amounts#1"]
    assert not tables(saved)
    for backend_now in (None, settings):
        under_test.restart(backend_now)
        answers = {row["key"]: row["amount"] for row in under_test.feed(*((key, 1) for key in range(2_002)))}
        assert answers.pop(3) == (4 + 5 + 1) * 100 + 3
        assert (answers.pop(2_001), answers.pop(4), answers.pop(2_000)) == (802, 101, 101)
        assert answers == {key: (key + 2) * 100 + 2 for key in range(2_000) if key not in (3, 4)}


# ---- what is refused ----
def damage(files: MemoryFiles, handle: PartHandle) -> None:
    path = f"{checkpoint_directory(CheckpointId(handle.origin or 2))}/{handle.path}"
    content = bytearray(files.read(path))
    content[handle.offset + handle.length // 2] ^= 0xFF
    files.write(path, [bytes(content)])


@pytest.mark.parametrize("restores_into_rocksdb", [True, False])
def test_a_damaged_file_is_named(settings: RocksDBSettings, later: Later, restores_into_rocksdb: bool) -> None:
    under_test = Subtask(later, settings)
    under_test.feed(*((key, 1) for key in range(100)))
    handles = under_test.merged_checkpoint()
    victim = next(handle for handle in handles if handle.name.startswith("total#") and handle.name.endswith(".sst"))
    damage(under_test.files, victim)
    with pytest.raises(CorruptCheckpoint, match=rf"part '{victim.name}' of operator 'op' .* has checksum"):
        under_test.restart(settings if restores_into_rocksdb else None)


@pytest.mark.parametrize(
    ("lost", "message"),
    [("#rocksdb", r"but not the part 'total#rocksdb'"), (".sst", r"lacks \['[0-9]+.sst'\]: restore another")],
)
def test_a_checkpoint_that_lacks_a_file_is_refused(
    settings: RocksDBSettings, later: Later, lost: str, message: str
) -> None:
    under_test = Subtask(later, settings)
    under_test.feed(*((key, 1) for key in range(100)))
    under_test.merged_checkpoint()
    assert under_test.newest is not None
    left = [h for h in under_test.complete[under_test.newest] if not (h.name.startswith("total") and lost in h.name)]
    under_test.complete[under_test.newest] = left
    with pytest.raises(StateMismatch, match=message):
        under_test.restart(settings)


class Wider(KeyedFunction):
    amounts: Any = declare.list(int)
    total: Any = declare.value(float, default=0.0)

    def process(self, row: Any, ctx: KeyedContext) -> None:
        self.total.value += 0.5
        ctx.emit(key=row.key, amount=int(self.total.value * 2))


class Narrower(KeyedFunction):
    amounts: Any = declare.list(int)
    total: Any = declare.value(bytes, default=b"")

    def process(self, row: Any, ctx: KeyedContext) -> None:
        raise AssertionError


@pytest.mark.parametrize("into_rocksdb", [True, False])
def test_a_type_that_has_become_wider_is_read_and_any_other_refused(
    settings: RocksDBSettings, later: Later, into_rocksdb: bool
) -> None:
    under_test = Subtask(later, settings)
    under_test.feed(*((key, key + 1) for key in range(100)))
    under_test.merged_checkpoint()
    under_test.make = lambda: ProcessOperator(Wider, ("key",), SCHEMA, SCHEMA)
    under_test.restart(settings if into_rocksdb else None)
    assert under_test.feed((7, 1)) == [{"key": 7, "amount": 17}]
    under_test.make = lambda: ProcessOperator(Narrower, ("key",), SCHEMA, SCHEMA)
    with pytest.raises(StateMismatch, match="the state 'total' was stored as value state of int, but is declared as"):
        under_test.restart(settings if into_rocksdb else None)


@pytest.mark.parametrize("restores_into_rocksdb", [True, False])
def test_another_key_is_refused(settings: RocksDBSettings, later: Later, restores_into_rocksdb: bool) -> None:
    under_test = Subtask(later, settings)
    under_test.feed(*((key, 1) for key in range(100)))
    under_test.merged_checkpoint()
    under_test.make = lambda: ProcessOperator(Wallet, ("key", "amount"), SCHEMA, SCHEMA)
    with pytest.raises(StateMismatch, match="was stored under the key key: int64, but the program keys the stream by"):
        under_test.restart(settings if restores_into_rocksdb else None)
