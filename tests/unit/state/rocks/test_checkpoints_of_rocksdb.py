"""Operators with state in RocksDB: checkpoints that share files, and restores from and into everything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.operators.test_layers_of_operators import Subtask
from tests.unit.state.harness import Job
from tests.unit.state.rocks.later import Later

from penstock.core.barrier import Purpose
from penstock.core.handles import PartHandle
from penstock.core.ids import CheckpointId
from penstock.core.settings import LayerSettings, RocksDBSettings
from penstock.operators.base import Operator
from penstock.operators.fold import FoldOperator
from penstock.operators.keyed import KeyedContext, KeyedFunction
from penstock.operators.process import ProcessOperator
from penstock.runtime.statelog import Captured
from penstock.state import declare
from penstock.state.rocks import backend, export
from penstock.state.rocks import map as rocks_map
from penstock.state.rocks.memory import Share
from penstock.state.tables import StateMismatch
from penstock.store.errors import CorruptCheckpoint
from penstock.store.layout import checkpoint_directory, part_path

SCHEMA = pa.schema([("key", pa.int64()), ("amount", pa.int64())])
EAGER = LayerSettings(small=0, share=100.0, changelog=True, flush_every=0.0)


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
    patch.setattr(rocks_map, "WORTH_MERGING", 0)
    yield later
    patch.undo()


class RocksSubtask(Subtask):
    """One operator with everything that its snapshots go through on their way to the store and back."""

    def __init__(
        self, later: Later, rocksdb: RocksDBSettings | None, make: Any = process, settings: LayerSettings = EAGER
    ) -> None:
        self.later = later
        super().__init__(make, settings, rocksdb)

    def restart(self, rocksdb: RocksDBSettings | None) -> None:
        """In another process, perhaps with another backend."""
        self.operator.close()
        self.rocksdb = rocksdb
        self.start()

    def merge(self) -> None:
        """All changes go into RocksDB's files."""
        backend_of_operator = self.operator._backend  # type: ignore[attr-defined]
        backend_of_operator.settle()
        self.later.run()
        backend_of_operator.settle()

    def whole_checkpoint(self) -> list[PartHandle]:
        """One that names RocksDB's files, with all changes in them."""
        self.checkpoint()
        self.merge()
        before, self.log._settings = self.log._settings, replace(self.settings, incremental=False)
        handles = self.checkpoint()
        self.log._settings = before
        return handles

    def savepoint(self) -> list[PartHandle]:
        taken = self.capture(Purpose.SAVEPOINT)
        self.finish_all()
        assert self.completes(*taken)
        return self.complete[taken[0]]


def tables(handles: Sequence[PartHandle]) -> dict[str, CheckpointId | None]:
    """The table files of a checkpoint, and which earlier one wrote each."""
    return {f"{handle.name}/{handle.piece}": handle.origin for handle in handles if handle.piece.endswith(".sst")}


# ---- whatever happens ----
ACTIONS = ["feed"] * 6 + ["checkpoint", "whole", "begin", "finish", "finish", "fail", "complete", "abort", "flush"]
ACTIONS += ["savepoint", "crash", "move", "merge", "settle"]
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 4), st.integers(0, 3)), min_size=10, max_size=40)


@pytest.mark.parametrize("make", [process, fold])
@given(steps=STEPS)
def test_a_restore_into_any_backend_gives_back_what_was_there_whatever_completed_and_failed(
    make: Any, settings: RocksDBSettings, later: Later, steps: list[tuple[str, int, int]]
) -> None:
    under_test = RocksSubtask(later, settings, make, replace(EAGER, most=3, worth=10.0))
    rows: list[tuple[int, int]] = []
    stored: list[tuple[int, int]] = []
    open: dict[CheckpointId, tuple[Captured, list[tuple[int, int]]]] = {}
    for action, key, amount in steps:
        match action:
            case "feed":
                rows.append((key, amount))
                under_test.feed((key, amount))
            case "checkpoint" | "whole":
                under_test.finish_all()
                under_test.checkpoint() if action == "checkpoint" else under_test.whole_checkpoint()
                stored, open = list(rows), {}
            case "begin" | "savepoint":
                checkpoint, captured = under_test.capture(
                    Purpose.SAVEPOINT if action == "savepoint" else Purpose.CHECKPOINT
                )
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
            case "merge":
                under_test.merge()
            case "settle":
                later.run()
            case "crash" | "move":
                rows, open = list(stored), {}
                stays = (under_test.rocksdb is not None) == (action == "crash")
                under_test.restart(settings if stays else None)
    model = RocksSubtask(later, None, make)  # in memory, never restored: it is fed again from the start
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
        assert any(part.piece.endswith(".sst") for part in parts)
    after = Job(process, ("key",), scales[1], restored=parts, rocksdb=settings if second else None)
    sizes = [len(operator._backend.states[0].map) for operator in after.subtasks]
    assert sum(sizes) == len({key for key, _ in rows}), "some keys are nowhere, or at several subtasks"
    expected = Job(process, ("key",)).feed(batch, batch)
    answers = sorted((row["key"], row["amount"]) for row in after.feed(batch).taken())
    assert answers == sorted((row["key"], row["amount"]) for row in expected.feed(batch).taken()[-len(answers) :])
    for operator in (*before.subtasks, *after.subtasks):
        operator.close()


# ---- what is written ----
def test_a_whole_state_names_the_files_again_that_are_in_the_store_already(
    settings: RocksDBSettings, later: Later
) -> None:
    under_test = RocksSubtask(later, settings)
    under_test.feed(*((key, 1) for key in range(1_000)))
    first = under_test.whole_checkpoint()
    under_test.feed((3, 1))
    second = under_test.whole_checkpoint()
    shared = tables(first).keys() & tables(second).keys()
    written = [handle for handle in second if handle.origin == under_test.newest]
    assert shared
    assert None not in {tables(second)[name] for name in shared}
    assert sum(handle.length for handle in written) < sum(handle.length for handle in first) / 5


def test_a_checkpoint_after_a_small_change_adds_a_layer_to_the_files(settings: RocksDBSettings, later: Later) -> None:
    under_test = RocksSubtask(later, settings)
    under_test.feed(*((key, 1) for key in range(1_000)))
    before = under_test.whole_checkpoint()
    under_test.feed((3, 1))
    after = under_test.checkpoint()
    assert tables(after).keys() == tables(before).keys()
    assert sorted((handle.name, handle.layer) for handle in after if handle.origin == under_test.newest) == [
        ("amounts", 1),
        ("total", 1),
    ]


def test_a_checkpoint_without_changes_writes_no_state(settings: RocksDBSettings, later: Later) -> None:
    under_test = RocksSubtask(later, settings)
    under_test.feed((1, 5), (2, 6))
    under_test.whole_checkpoint()
    assert None not in {handle.origin for handle in under_test.checkpoint()}


def test_what_went_into_the_files_since_the_last_checkpoint_is_stored_as_files(
    settings: RocksDBSettings, later: Later
) -> None:
    under_test = RocksSubtask(later, settings)
    under_test.feed(*((key, 1) for key in range(100)))
    before = under_test.checkpoint()
    under_test.feed(*((key, 1) for key in range(100)))
    under_test.merge()
    after = under_test.checkpoint()
    assert not tables(before)
    assert tables(after)
    under_test.restart(settings)
    assert under_test.feed((3, 1)) == [{"key": 3, "amount": 303}]


def test_after_a_restore_the_files_that_were_put_back_are_named_again(settings: RocksDBSettings, later: Later) -> None:
    under_test = RocksSubtask(later, settings)
    under_test.feed(*((key, 1) for key in range(100)))
    before = under_test.whole_checkpoint()
    under_test.restart(settings)
    after = under_test.whole_checkpoint()
    assert tables(after).keys() == tables(before).keys()
    assert None not in tables(after).values()


def test_files_of_a_new_database_are_not_taken_for_those_of_an_old_one(settings: RocksDBSettings, later: Later) -> None:
    under_test = RocksSubtask(later, settings)
    under_test.feed(*((key, 1) for key in range(100)))
    before = under_test.whole_checkpoint()
    under_test.make = lambda: ProcessOperator(Wider, ("key",), SCHEMA, SCHEMA)
    under_test.restart(settings)  # writes everything anew, as another type
    after = under_test.whole_checkpoint()
    of_total = [name for name in tables(after) if name.startswith("total/")]
    assert of_total
    assert not tables(before).keys() & set(of_total)


def test_what_was_taken_at_the_barrier_is_written_however_late(settings: RocksDBSettings, later: Later) -> None:
    under_test = RocksSubtask(later, settings)
    under_test.feed(*((key, 1) for key in range(100)))
    under_test.whole_checkpoint()
    under_test.feed((3, 5))
    under_test.merge()
    checkpoint, captured = under_test.capture()
    for _ in range(3):
        under_test.feed(*((key, 7) for key in range(100)))
        under_test.merge()
    under_test.operator.close()  # its working files are gone, but not those that the snapshot still needs
    under_test.finish_all()
    assert under_test.completes(checkpoint, captured)
    under_test.start()
    assert under_test.feed((3, 1), (4, 1)) == [{"key": 3, "amount": 703}, {"key": 4, "amount": 202}]


def test_a_state_that_is_small_is_stored_as_in_memory(
    settings: RocksDBSettings, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocks_map, "WORTH_MERGING", 1_000)
    under_test = RocksSubtask(later, settings)
    under_test.feed((1, 5))
    assert [(handle.name, handle.piece) for handle in under_test.whole_checkpoint()] == [("amounts", ""), ("total", "")]


def test_a_savepoint_holds_no_files_of_rocksdb_but_several_of_keyed_state(
    settings: RocksDBSettings, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "FILE_SIZE", 1_000)
    under_test = RocksSubtask(later, settings)
    under_test.feed(*((key, key + 1) for key in range(2_000)))
    under_test.whole_checkpoint()
    under_test.feed((3, 5), (2_001, 7), (4, 0))
    saved = under_test.savepoint()
    assert len([handle for handle in saved if handle.name == "total"]) == 8
    assert not tables(saved)
    for backend_now in (None, settings):
        under_test.restart(backend_now)
        answers = {row["key"]: row["amount"] for row in under_test.feed(*((key, 1) for key in range(2_002)))}
        assert answers.pop(3) == (4 + 5 + 1) * 100 + 3
        assert (answers.pop(2_001), answers.pop(4), answers.pop(2_000)) == (802, 101, 101)
        assert answers == {key: (key + 2) * 100 + 2 for key in range(2_000) if key not in (3, 4)}


# ---- what is refused ----
def damage(under_test: RocksSubtask, handle: PartHandle) -> None:
    assert under_test.newest is not None
    path = part_path(checkpoint_directory(under_test.newest), handle)
    content = bytearray(under_test.files.read(path))
    content[handle.offset + handle.length // 2] ^= 0xFF
    under_test.files.write(path, [bytes(content)])


@pytest.mark.parametrize("restores_into_rocksdb", [True, False])
def test_a_damaged_file_is_named(settings: RocksDBSettings, later: Later, restores_into_rocksdb: bool) -> None:
    under_test = RocksSubtask(later, settings)
    under_test.feed(*((key, 1) for key in range(100)))
    handles = under_test.whole_checkpoint()
    victim = next(handle for handle in handles if handle.name == "total" and handle.piece.endswith(".sst"))
    damage(under_test, victim)
    with pytest.raises(CorruptCheckpoint, match=r"part 'total' of operator 'op' .* has checksum"):
        under_test.restart(settings if restores_into_rocksdb else None)


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        (".rocksdb", r"the state 'total' of subtask 0 .* of the one that says what they are the checkpoint has 0"),
        (".sst", r"consists of [0-9]+ table files, but the checkpoint lacks \['[0-9a-f]+-[0-9]+.sst'"),
    ],
)
def test_a_checkpoint_that_lacks_a_file_is_refused(
    settings: RocksDBSettings, later: Later, lost: str, message: str
) -> None:
    under_test = RocksSubtask(later, settings)
    under_test.feed(*((key, 1) for key in range(100)))
    under_test.whole_checkpoint()
    assert under_test.newest is not None
    handles = under_test.complete[under_test.newest]
    left = [handle for handle in handles if handle.name != "total" or not handle.piece.endswith(lost)]
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
    under_test = RocksSubtask(later, settings)
    under_test.feed(*((key, key + 1) for key in range(100)))
    under_test.whole_checkpoint()
    under_test.make = lambda: ProcessOperator(Wider, ("key",), SCHEMA, SCHEMA)
    under_test.restart(settings if into_rocksdb else None)
    assert under_test.feed((7, 1)) == [{"key": 7, "amount": 17}]
    under_test.make = lambda: ProcessOperator(Narrower, ("key",), SCHEMA, SCHEMA)
    with pytest.raises(StateMismatch, match="the state 'total' was stored as value state of int, but is declared as"):
        under_test.restart(settings if into_rocksdb else None)


@pytest.mark.parametrize("restores_into_rocksdb", [True, False])
def test_another_key_is_refused(settings: RocksDBSettings, later: Later, restores_into_rocksdb: bool) -> None:
    under_test = RocksSubtask(later, settings)
    under_test.feed(*((key, 1) for key in range(100)))
    under_test.whole_checkpoint()
    under_test.make = lambda: ProcessOperator(Wallet, ("key", "amount"), SCHEMA, SCHEMA)
    with pytest.raises(StateMismatch, match="was stored under the key key: int64, but the program keys the stream by"):
        under_test.restart(settings if restores_into_rocksdb else None)
