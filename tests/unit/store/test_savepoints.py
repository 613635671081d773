"""Savepoints: checkpoints that leave their directory, and come into another."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.store.samples import JOB, content_of, expected, paths, read_all, record_of, take, write_data

from penstock.core.ids import CheckpointId
from penstock.store.checkpoints import CheckpointStore, NotComplete
from penstock.store.errors import CorruptCheckpoint
from penstock.store.local import LocalFiles
from penstock.store.savepoints import METADATA, NoSnapshot, find_snapshot, remove_savepoint


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job's directory with checkpoints 1 and 2."""
    files = LocalFiles(str(tmp_path / "job"))
    store = CheckpointStore(files, JOB)
    store.claim()
    take(store, files, 1, 1)
    take(store, files, 2, 1)
    return tmp_path / "job"


def exported(job: Path, target: Path, checkpoint: int = 2) -> Path:
    CheckpointStore(LocalFiles(str(job)), JOB).export(CheckpointId(checkpoint), LocalFiles(str(target)))
    return target


def test_a_savepoint_holds_the_state_and_no_output(job: Path, tmp_path: Path) -> None:
    snapshot = find_snapshot(str(exported(job, tmp_path / "saved")))
    assert snapshot.is_savepoint and snapshot.record.checkpoint == 2 and not snapshot.record.committables


def test_a_savepoint_can_be_moved_and_its_job_be_gone(job: Path, tmp_path: Path) -> None:
    shutil.move(exported(job, tmp_path / "saved"), tmp_path / "elsewhere")
    shutil.rmtree(job)
    files = LocalFiles(str(tmp_path / "second"))
    claim = CheckpointStore(files, "a fork").claim(find_snapshot(str(tmp_path / "elsewhere")))
    assert claim.newest is not None and claim.newest.graph.job == "a fork"
    assert read_all(files, claim.newest) == expected(2)


def test_what_was_copied_in_is_the_newest_checkpoint_from_then_on(job: Path, tmp_path: Path) -> None:
    saved = exported(job, tmp_path / "saved", 1)
    claim = CheckpointStore(LocalFiles(str(job)), JOB).claim(find_snapshot(str(saved)))
    assert claim.newest is not None and (claim.newest.checkpoint, claim.next_id) == (3, 4)
    shutil.rmtree(saved)
    again = CheckpointStore(LocalFiles(str(job)), JOB).claim()
    assert again.newest == claim.newest
    assert read_all(LocalFiles(str(job)), again.newest) == expected(1)


def test_a_savepoint_of_several_layers_stands_alone(tmp_path: Path) -> None:
    """Its parts are in the directories of several checkpoints."""
    files = LocalFiles(str(tmp_path / "job"))
    store = CheckpointStore(files, JOB)
    store.claim()
    first = take(store, files, 1, 1)
    entries = write_data(files, 2, 1)
    shared = first.subtasks[0].handles[0].seen_from_later(CheckpointId(1))
    layered = replace(entries[0], handles=(shared, replace(entries[0].handles[0], layer=1)))
    store.complete(record_of(2, 1, [layered, *entries[1:]]))
    exported(tmp_path / "job", tmp_path / "saved")
    shutil.rmtree(tmp_path / "job")
    fork = LocalFiles(str(tmp_path / "fork"))
    newest = CheckpointStore(fork, JOB).claim(find_snapshot(str(tmp_path / "saved"))).newest
    assert newest is not None and [handle.layer for handle in newest.subtasks[0].handles] == [0, 1]
    assert read_all(fork, newest)[entries[0].subtask] == content_of(2, entries[0].subtask)
    assert {handle.origin for entry in newest.subtasks for handle in entry.handles} == {None}


def test_any_retained_checkpoint_can_be_forked_by_its_path(job: Path, tmp_path: Path) -> None:
    for address, checkpoint in ((job, 2), (job / "checkpoints" / "1", 1)):
        files = LocalFiles(str(tmp_path / f"fork of {checkpoint}"))
        claim = CheckpointStore(files, "fork").claim(find_snapshot(str(address)))
        assert claim.newest is not None and read_all(files, claim.newest) == expected(checkpoint)
        assert not claim.newest.committables
    assert CheckpointStore(LocalFiles(str(job)), JOB).completed() == [1, 2]


def test_the_same_job_in_another_directory_commits_what_its_checkpoint_names(job: Path, tmp_path: Path) -> None:
    claim = CheckpointStore(LocalFiles(str(tmp_path / "moved")), JOB).claim(find_snapshot(str(job)))
    assert claim.newest is not None and any(claim.newest.committables.values())


def test_a_checkpoint_that_is_not_complete_cannot_be_forked(job: Path) -> None:
    (job / "checkpoints" / "7").mkdir()
    with pytest.raises(NotComplete, match=r"checkpoint 7 is not complete.*Complete ones: 1, 2"):
        find_snapshot(str(job / "checkpoints" / "7"))


def test_where_nothing_is_the_error_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(NoSnapshot, match=f"{METADATA}.*penstock.json.*checkpoints/12"):
        find_snapshot(str(tmp_path))


def test_a_savepoint_without_its_metadata_is_none(job: Path, tmp_path: Path) -> None:
    saved = exported(job, tmp_path / "saved")
    (saved / METADATA).unlink()
    with pytest.raises(NoSnapshot):
        find_snapshot(str(saved))
    exported(job, saved)
    assert find_snapshot(str(saved)).is_savepoint


@pytest.mark.parametrize("damage", ["missing", "the file has 1 bytes"])
def test_a_damaged_savepoint_is_refused_by_the_name_of_the_file(job: Path, tmp_path: Path, damage: str) -> None:
    saved = exported(job, tmp_path / "saved")
    victim = saved / "data" / "1.data"
    victim.unlink() if damage == "missing" else victim.write_bytes(b"x")
    with pytest.raises(CorruptCheckpoint, match=rf"data/1\.data: .*{damage}.*another one"):
        find_snapshot(str(saved))


def test_there_is_one_savepoint_in_a_directory(job: Path, tmp_path: Path) -> None:
    exported(job, tmp_path / "saved")
    with pytest.raises(FileExistsError, match="a directory of its own"):
        exported(job, tmp_path / "saved", 1)
    assert find_snapshot(str(tmp_path / "saved")).record.checkpoint == 2


def test_a_claimed_savepoint_is_removed_whole(job: Path, tmp_path: Path) -> None:
    saved = exported(job, tmp_path / "saved")
    remove_savepoint(find_snapshot(str(saved)))
    assert paths(LocalFiles(str(saved))) == []


def test_a_checkpoint_that_is_being_copied_is_not_cleaned_away(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path / "job"))
    store = CheckpointStore(files, JOB, keep=1)
    store.claim()
    take(store, files, 1, 1)
    store.hold(CheckpointId(1))
    take(store, files, 2, 1)
    assert store.clean().retained == (1, 2)
    store.release(CheckpointId(1))
    assert store.clean().retained == (2,)


def test_parts_within_the_metadata_come_along(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path / "job"))
    store = CheckpointStore(files, JOB)
    store.claim()
    entries = write_data(files, 1, 1)
    few = replace(entries[0].handles[0], path="", offset=0, inline=content_of(1, entries[0].subtask))
    store.complete(record_of(1, 1, [replace(entries[0], handles=(few,)), *entries[1:]]))
    saved = exported(tmp_path / "job", tmp_path / "saved", 1)
    fork = LocalFiles(str(tmp_path / "fork"))
    newest = CheckpointStore(fork, "fork").claim(find_snapshot(str(saved))).newest
    assert newest is not None and read_all(fork, newest) == expected(1)
