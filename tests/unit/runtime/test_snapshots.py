"""Snapshots are written off the task's thread; those of aborted checkpoints leave no file, whatever comes first."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock.core.ids import Attempt, ChainId, CheckpointId, Generation, SubtaskId, Uid
from penstock.core.settings import LayerSettings
from penstock.runtime.clock import SystemClock
from penstock.runtime.pool import Pool
from penstock.runtime.ports import Note, WriteFailed, WriteId, Written
from penstock.runtime.snapshots import AttemptFiles, PooledSnapshotWriter
from penstock.state.parts import Buffer, CapturedPart, PartKind
from penstock.store.local import LocalFiles
from penstock.store.parts import reader

UID = Uid("sums")
ONLY_FILES = LayerSettings(inline=0, shared=0)


class Rig:
    def __init__(self, directory: Path, settings: LayerSettings = ONLY_FILES):
        self.pool = Pool("snapshots", 1)
        self.files = LocalFiles(str(directory))
        self.notes: queue.SimpleQueue[Note] = queue.SimpleQueue()
        subtask = SubtaskId(ChainId("sums"), 1)
        around = AttemptFiles.of(self.files, self.pool, SystemClock(), Generation(2), Attempt(5), settings, [subtask])
        self.writer = PooledSnapshotWriter(around, subtask, self.notes.put)

    def next(self) -> Note:
        return self.notes.get(timeout=10)

    def settle(self) -> None:
        """Waits until the pool has done everything that was submitted before."""
        done = threading.Event()
        self.pool.submit(done.set)
        assert done.wait(10)

    def stored(self) -> Sequence[str]:
        return [info.path for info in self.files.list("")]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    assert made.pool.close(10)


class Gate:
    """A part whose encoding waits until the test lets it go on."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def part(self) -> CapturedPart:
        return CapturedPart("state", PartKind.LIST, self._encode)

    def _encode(self) -> Sequence[Buffer]:
        self.reached.set()
        assert self.open.wait(10)
        return [b"late"]


def plain(content: bytes) -> CapturedPart:
    return CapturedPart("state", PartKind.LIST, lambda: [content])


def test_what_was_written_can_be_read_by_its_handle(rig: Rig) -> None:
    rig.writer.write(WriteId(CheckpointId(7), 0), {UID: [plain(b"hello"), plain(b"world")]})
    written = rig.next()
    assert isinstance(written, Written)
    assert written.write == (7, 0)
    assert [bytes(reader(rig.files, "checkpoints/7", handle)()) for handle in written.handles] == [b"hello", b"world"]


def test_nothing_to_write_is_written_without_a_file(rig: Rig) -> None:
    rig.writer.write(WriteId(CheckpointId(7), 0), {})
    written = rig.next()
    assert isinstance(written, Written)
    assert list(written.handles) == []
    assert rig.stored() == []


def test_an_encoder_that_raises_is_told_to_the_task(rig: Rig) -> None:
    def broken() -> Sequence[Buffer]:
        raise ValueError("cannot be encoded")

    rig.writer.write(WriteId(CheckpointId(7), 0), {UID: [CapturedPart("state", PartKind.LIST, broken)]})
    assert rig.next() == WriteFailed(WriteId(CheckpointId(7), 0), "ValueError: cannot be encoded")


def test_dropping_removes_what_was_written(rig: Rig) -> None:
    rig.writer.write(WriteId(CheckpointId(7), 0), {UID: [plain(b"a")]})
    rig.writer.write(WriteId(CheckpointId(7), 1), {UID: [plain(b"b")]})
    rig.writer.write(WriteId(CheckpointId(8), 0), {UID: [plain(b"c")]})
    assert [type(rig.next()) for _ in range(3)] == [Written] * 3
    rig.writer.drop(WriteId(CheckpointId(7), 0))
    rig.settle()
    assert rig.stored() == ["checkpoints/7/g2-a5-sums-1-1.data", "checkpoints/8/g2-a5-sums-1-0.data"]


def test_a_drop_before_the_write_begins_prevents_it(rig: Rig) -> None:
    gate = Gate()
    rig.writer.write(WriteId(CheckpointId(6), 0), {UID: [gate.part()]})
    rig.writer.write(WriteId(CheckpointId(7), 0), {UID: [plain(b"a")]})
    rig.writer.drop(WriteId(CheckpointId(7), 0))
    gate.open.set()
    rig.settle()
    assert rig.next().write.checkpoint == 6  # type: ignore[union-attr]
    assert rig.notes.empty()
    assert rig.stored() == ["checkpoints/6/g2-a5-sums-1-0.data"]


def test_a_drop_during_the_write_removes_the_file_afterwards(rig: Rig) -> None:
    gate = Gate()
    rig.writer.write(WriteId(CheckpointId(7), 0), {UID: [gate.part()]})
    assert gate.reached.wait(10)
    rig.writer.drop(WriteId(CheckpointId(7), 0))
    gate.open.set()
    rig.settle()
    assert rig.notes.empty()
    assert rig.stored() == []


def test_a_pool_says_when_a_job_does_not_end_in_time() -> None:
    pool, gate, dropped = Pool("stuck", 1), Gate(), threading.Event()
    pool.submit(lambda: list(gate.part().encode()).clear())
    pool.submit(dropped.set)
    assert gate.reached.wait(10)
    assert not pool.close(0.01)
    gate.open.set()
    assert pool.close(10)
    assert not dropped.is_set()


@pytest.fixture
def inlining(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, LayerSettings(inline=8, shared=16))
    yield made
    assert made.pool.close(10)


def small(content: bytes) -> CapturedPart:
    return CapturedPart("position", PartKind.LIST, lambda: [content], small=True)


def test_small_parts_are_there_at_once_though_the_pool_is_busy(inlining: Rig) -> None:
    gate = Gate()
    inlining.pool.submit(lambda: list(gate.part().encode()).clear())
    assert gate.reached.wait(10)
    inlining.writer.write(WriteId(CheckpointId(7), 0), {UID: [small(b"few")]})
    written = inlining.notes.get_nowait()
    gate.open.set()
    assert isinstance(written, Written)
    assert [handle.inline for handle in written.handles] == [b"few"]


@pytest.mark.parametrize("length", [12, 100])
def test_parts_that_are_not_so_small_after_all_become_files(inlining: Rig, length: int) -> None:
    content = bytes(range(length))
    inlining.writer.write(WriteId(CheckpointId(7), 0), {UID: [small(content)]})
    written = inlining.next()
    assert isinstance(written, Written)
    assert [bytes(reader(inlining.files, "checkpoints/7", handle)()) for handle in written.handles] == [content]


def test_a_small_part_that_cannot_be_encoded_fails_its_write(inlining: Rig) -> None:
    def broken() -> Sequence[Buffer]:
        raise ValueError("no position")

    inlining.writer.write(WriteId(CheckpointId(7), 0), {UID: [CapturedPart("p", PartKind.LIST, broken, small=True)]})
    failed = inlining.next()
    assert isinstance(failed, WriteFailed) and "no position" in failed.error
