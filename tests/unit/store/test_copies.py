"""Copies on the worker's own disk are read instead of the store, and trusted for nothing."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore
from tests.unit.store.samples import part

from penstock.core.handles import PartHandle
from penstock.core.ids import Attempt, ChainId, CheckpointId, Generation, SubtaskId, Uid
from penstock.runtime.copies import AttemptCopies
from penstock.runtime.pool import Pool
from penstock.simulation.files import MemoryFiles
from penstock.store import copies as copies_module
from penstock.store.copies import ABANDONED_AFTER, CopyingFiles, LocalCopies, SlotCopies
from penstock.store.errors import CorruptCheckpoint
from penstock.store.layout import checkpoint_directory, data_path
from penstock.store.objects import ObjectFiles
from penstock.store.parts import reader, write_parts

ADDRESS = "s3://bucket/orders"


def path_of(checkpoint: int, generation: int = 1, slot: int = 0) -> str:
    subtask = SubtaskId(ChainId("total"), slot)
    return data_path(CheckpointId(checkpoint), Generation(generation), Attempt(1), subtask, 0)


class Rig:
    """A worker in slot 0 of 2 that keeps copies of what it writes to a store whose reads are counted."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.operations: Counter[str] = Counter()
        self.store = MemoryFiles(before=lambda operation, path: self.operations.update([operation]))
        self.local = LocalCopies(ADDRESS, str(base))
        self.copies = self.of(1, 0)

    def of(self, generation: int, slot: int, slots: int = 2) -> SlotCopies:
        return self.local.of(Generation(generation), Attempt(1), slot, slots)

    def write(self, checkpoint: int, content: bytes, copies: SlotCopies | None = None) -> list[PartHandle]:
        used = copies or self.copies
        path = path_of(checkpoint, used._generation, used._slot)
        halves = [part("first", content[:3]), part("second", content[3:])]
        return write_parts(CopyingFiles(self.store, used), path, {Uid("total"): halves})

    def read(self, checkpoint: int, handles: list[PartHandle], copies: SlotCopies | None = None) -> bytes:
        directory = checkpoint_directory(CheckpointId(checkpoint))
        return b"".join(reader(self.store, directory, handle, copies or self.copies)() for handle in handles)

    def copied(self) -> list[str]:
        """Where copies are, below the job's directory."""
        files = (path for path in self.base.rglob("*") if path.is_file() and path.name != "lock")
        return sorted("/".join(path.relative_to(self.base).parts[2:]) for path in files)

    def copy(self) -> Path:
        (path,) = [path for path in self.base.rglob("*.data")]
        return path


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.local.close()


# ---- reading ----
def test_what_a_worker_has_written_it_does_not_read_from_the_store(rig: Rig) -> None:
    handles = rig.write(1, b"the state")
    assert rig.read(1, handles) == b"the state"
    assert rig.operations["read"] == 0
    assert (rig.copies.read_bytes, rig.copies.missed_bytes, rig.copies.damaged) == (9, 0, 0)


def test_it_is_the_same_with_an_object_store(tmp_path: Path) -> None:
    store = ObjectFiles(MemoryStore(), "memory://")
    copies = LocalCopies(ADDRESS, str(tmp_path)).of(Generation(1), Attempt(1), 0, 1)
    handles = write_parts(CopyingFiles(store, copies), path_of(1), {Uid("total"): [part("state", b"the state")]})
    store.delete(path_of(1))
    assert bytes(reader(store, "checkpoints/1", handles[0], copies)()) == b"the state"


def test_the_worker_that_takes_a_dead_ones_slot_finds_its_copies(rig: Rig) -> None:
    handles = rig.write(1, b"the state")
    replacement = LocalCopies(ADDRESS, str(rig.base)).of(Generation(1), Attempt(1), 0, 2)
    assert rig.read(1, handles, replacement) == b"the state"
    assert rig.operations["read"] == 0


def test_the_next_driver_of_the_job_finds_them_too(rig: Rig) -> None:
    handles = rig.write(1, b"the state")
    assert rig.read(1, handles, rig.of(2, 0)) == b"the state"
    assert rig.operations["read"] == 0


def test_at_another_parallelism_copies_of_other_slots_of_the_host_are_found(rig: Rig) -> None:
    handles = rig.write(1, b"the state", rig.of(1, 1))
    assert rig.read(1, handles, rig.of(1, 0, slots=1)) == b"the state"
    assert rig.operations["read"] == 0


def test_another_job_does_not_see_them(rig: Rig) -> None:
    handles = rig.write(1, b"the state")
    other = LocalCopies("s3://bucket/payments", str(rig.base)).of(Generation(1), Attempt(1), 0, 2)
    assert rig.read(1, handles, other) == b"the state"
    assert rig.operations["read"] == 2


# ---- what may be wrong with a copy ----
def test_a_missing_copy_is_read_from_the_store(rig: Rig) -> None:
    handles = rig.write(1, b"the state")
    rig.copy().unlink()
    assert rig.read(1, handles) == b"the state"
    assert (rig.copies.read_bytes, rig.copies.missed_bytes, rig.copies.damaged) == (0, 9, 0)


@pytest.mark.parametrize(
    ("copy", "damaged_parts"), [(b"the slate", 1), (b"The state", 1), (b"the", 1), (b"", 2), (b"the state and more", 0)]
)
def test_a_damaged_part_is_read_from_the_store_and_the_others_are_not(
    rig: Rig, copy: bytes, damaged_parts: int
) -> None:
    handles = rig.write(1, b"the state")
    rig.copy().write_bytes(copy)
    assert rig.read(1, handles) == b"the state"
    assert rig.copies.damaged == rig.operations["read"] == damaged_parts


def test_a_part_that_is_damaged_in_the_store_too_is_refused(rig: Rig) -> None:
    handles = rig.write(1, b"the state")
    rig.copy().unlink()
    rig.store.write(path_of(1), [b"the slate"])
    with pytest.raises(CorruptCheckpoint):
        rig.read(1, handles)


@given(
    content=st.binary(min_size=1, max_size=200),
    damage=st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=5)), max_size=3),
)
def test_whatever_happens_to_a_copy_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, damage: list[tuple[int, bytes]]
) -> None:
    rig = Rig(tmp_path_factory.mktemp("base"))
    handles = rig.write(1, content)
    for place, other in damage:
        whole = rig.copy().read_bytes()
        rig.copy().write_bytes(whole[:place] + other + whole[place + len(other) :])
    assert rig.read(1, handles) == content
    rig.local.close()


# ---- writing ----
def test_a_file_that_the_store_does_not_take_leaves_no_copy(rig: Rig) -> None:
    def full(operation: str, path: str) -> None:
        if operation == "write":
            raise OSError("the store is full")

    rig.store.after = full
    with pytest.raises(OSError, match="the store is full"):
        rig.write(1, b"the state")
    assert rig.copied() == []


def test_a_copy_that_cannot_be_made_does_not_disturb_the_write(rig: Rig) -> None:
    (directory,) = [path.parent for path in rig.base.rglob("lock")]
    (directory / "g1").write_text("in the way")
    handles = rig.write(1, b"the state")
    assert rig.read(1, handles) == b"the state"
    assert rig.operations["read"] == 2


def test_a_copy_that_breaks_off_is_removed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    class FullDisk:
        def write(self, chunk: object) -> int:
            raise OSError("the local disk is full")

        def close(self) -> None:
            pass

    monkeypatch.setattr(copies_module, "_opened", lambda path, mode: FullDisk())
    handles = rig.write(1, b"the state")
    assert rig.copied() == []
    assert rig.read(1, handles) == b"the state"


def test_a_discarded_file_loses_its_copy(rig: Rig) -> None:
    rig.write(1, b"the state")
    CopyingFiles(rig.store, rig.copies).delete(path_of(1))
    assert rig.copied() == []
    assert not rig.store.exists(path_of(1))


# ---- cleaning ----
def test_when_a_checkpoint_is_complete_only_what_it_or_a_later_one_names_stays(rig: Rig) -> None:
    pool = Pool("cleaning", 1)
    attempt = AttemptCopies(rig.copies, pool)
    first, second, third = (rig.write(checkpoint, b"the state") for checkpoint in (1, 2, 3))
    rig.write(4, b"not yet acknowledged")
    attempt.acknowledged(CheckpointId(1), first)
    attempt.acknowledged(CheckpointId(2), second)
    attempt.acknowledged(CheckpointId(3), [*(handle.seen_from_later(CheckpointId(1)) for handle in first), *third])
    attempt.completed(CheckpointId(3))
    done = threading.Event()
    pool.submit(done.set)
    assert done.wait(10)
    assert pool.close(10)
    assert rig.copied() == [f"g1/0/{path_of(checkpoint)}" for checkpoint in (1, 3, 4)]


def test_a_worker_cleans_its_own_slot_and_those_that_are_gone(rig: Rig) -> None:
    for slot in range(4):
        rig.write(1, b"the state", rig.of(1, slot, slots=4))
    rig.of(2, 0, slots=2).clean((), ())
    assert rig.copied() == [f"g1/1/{path_of(1, slot=1)}"]


def test_the_copies_of_a_newer_driver_are_not_touched(rig: Rig) -> None:
    rig.write(1, b"the state", rig.of(3, 0))
    rig.of(2, 0).clean((), ())
    assert rig.copied() == [f"g3/0/{path_of(1, generation=3)}"]


# ---- directories ----
def test_nobody_else_can_look_into_them(rig: Rig) -> None:
    rig.write(1, b"the state")
    (root,) = rig.base.iterdir()
    assert root.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    root = tmp_path / f"penstock-{os.getuid()}"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(PermissionError, match="others have no access"):
        LocalCopies(ADDRESS, str(tmp_path))


def test_a_link_to_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / f"penstock-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="others have no access"):
        LocalCopies(ADDRESS, str(tmp_path))


@pytest.mark.parametrize(("held", "age", "stays"), [(False, 2.0, False), (True, 2.0, True), (False, 0.5, True)])
def test_a_job_that_is_gone_for_long_loses_its_copies_when_another_starts(
    rig: Rig, held: bool, age: float, stays: bool
) -> None:
    rig.write(1, b"the state")
    (lock,) = rig.base.rglob("lock")
    if not held:
        rig.local.close()
    then = time.time() - age * ABANDONED_AFTER
    os.utime(lock, (then, then))
    LocalCopies("s3://bucket/payments", str(rig.base)).close()
    assert lock.exists() == stays
    assert bool(rig.copied()) == stays


def test_the_last_worker_of_a_host_removes_the_copies_of_a_job_that_is_over(rig: Rig) -> None:
    rig.write(1, b"the state")
    other = LocalCopies(ADDRESS, str(rig.base))
    rig.local.close(job_is_over=True)
    assert rig.copied() != []
    other.close(job_is_over=True)
    assert rig.copied() == []


def test_a_job_that_comes_back_is_not_gone(rig: Rig) -> None:
    handles = rig.write(1, b"the state")
    rig.local.close()
    (lock,) = rig.base.rglob("lock")
    os.utime(lock, (0, 0))
    again = LocalCopies(ADDRESS, str(rig.base))
    assert rig.read(1, handles, again.of(Generation(2), Attempt(1), 0, 2)) == b"the state"
    assert rig.operations["read"] == 0
    again.close()
