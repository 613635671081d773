"""Every kind of file, damaged in every way: each damage is refused with the name of the file and with what to do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.store.samples import JOB, part, record_of, write_data
from typer.testing import CliRunner

from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.core.record import CheckpointRecord, SubtaskRecord
from penstock.runtime.control.messages import Restore
from penstock.runtime.replay import read_restored
from penstock.store import layout
from penstock.store.checkpoints import CheckpointStore
from penstock.store.documents import FORMAT
from penstock.store.errors import CorruptCheckpoint, UnknownFormat
from penstock.store.local import LocalFiles
from penstock.store.parts import write_parts
from penstock.store.savepoints import find_snapshot, seal_savepoint

Damage = Callable[[Path], None]


# ---- what can happen to a file ----
def deleted(path: Path) -> None:
    path.unlink()


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    """In the middle: there is content, whatever the kind of file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def from_the_future(path: Path) -> None:
    now = b'{"format": %d,' % FORMAT
    assert now in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(now, b'{"format": %d,' % (FORMAT + 1)))


DAMAGES = (deleted, truncated, emptied, flipped)
DOCUMENT_DAMAGES = (*DAMAGES, from_the_future)


# ---- a job whose newest checkpoint has files of every kind ----
def layered_checkpoint(store: CheckpointStore, files: LocalFiles) -> None:
    """Checkpoint 2: what subtask 0 of the source wrote for it is a layer on what it wrote for checkpoint 1, the others
    share a file of their worker."""
    first = record_of(1, 1, write_data(files, 1, 1))
    store.complete(first)
    top, *others = write_data(files, 2, 1)
    base = first.subtasks[0].handles[0].seen_from_later(CheckpointId(1))
    layered = replace(top, handles=(base, replace(top.handles[0], layer=1)))
    path = layout.shared_path(CheckpointId(2), Generation(1), Attempt(1), 0, 1, 1)
    parts = {Uid(entry.subtask.chain): [part("state", b"shared by the subtasks" * 3)] for entry in others}
    shared = write_parts(files, path, parts)
    sharing = [SubtaskRecord(entry.subtask, (own,)) for entry, own in zip(others, shared, strict=True)]
    store.complete(record_of(2, 1, [layered, *sharing]))
    for entry in others:
        files.delete(f"checkpoints/2/{entry.handles[0].path}")


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("intact")
    files = LocalFiles(str(root / "job"))
    store = CheckpointStore(files, JOB)
    store.claim()
    layered_checkpoint(store, files)
    store.export(CheckpointId(2), LocalFiles(str(root / "saved")))
    snapshot = find_snapshot(str(root / "saved"))
    with_output = replace(snapshot.record, committables={Uid("out"): (b"prepared",)})
    shutil.copytree(root / "saved" / "data", root / "offline" / "data")
    seal_savepoint(LocalFiles(str(root / "offline")), with_output)
    return root


@pytest.fixture
def directory(intact: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(intact, tmp_path, dirs_exist_ok=True)
    return tmp_path


def read_everything(files: LocalFiles, record: CheckpointRecord, directory: str) -> None:
    """As workers do it."""
    for entry in record.subtasks:
        handles = [(entry.subtask.index, handle) for handle in entry.handles]
        restored = read_restored(files, Restore(record.checkpoint, directory, handles, False))
        for own in restored.parts.values():
            for one in own:
                one.read()


def restore(root: Path) -> None:
    """What the next start of the job does."""
    files = LocalFiles(str(root / "job"))
    newest = CheckpointStore(files, JOB).claim().newest
    assert newest is not None
    read_everything(files, newest, CheckpointStore.directory_of(newest.checkpoint))


def begin_from(saved: str) -> Callable[[Path], None]:
    def begin(root: Path) -> None:
        """What the start of a job does that begins from a savepoint."""
        files = LocalFiles(str(root / "fork"))
        newest = CheckpointStore(files, JOB).claim(find_snapshot(str(root / saved))).newest
        assert newest is not None
        read_everything(files, newest, CheckpointStore.directory_of(newest.checkpoint))

    return begin


RESTORABLE = ("restore=<number>", "Put the file back from a copy")
FROM_COPY = ("Put the file back from a copy of the directory",)
ANOTHER_SAVEPOINT = ("choose another",)
NEWER = ("Run the job with the version that wrote it, or a newer one",)

FILES_OF_A_JOB = {
    "metadata": ("checkpoints/2/g1.json", RESTORABLE),
    "committables": ("checkpoints/2/g1.committables", RESTORABLE),
    "data of a subtask": ("checkpoints/2/g1-a1-read-0-0.data", RESTORABLE),
    "data that subtasks share": ("checkpoints/2/g1-a1.w0-1-1.data", RESTORABLE),
    "a layer in another directory": ("checkpoints/1/g1-a1-read-0-0.data", RESTORABLE),
    "log entry": ("log/0000000003.json", FROM_COPY),
    "identity": ("penstock.json", ("choose another directory",)),
}
FILES_OF_A_SAVEPOINT = {
    "metadata": ("offline", "savepoint.json"),
    "committables": ("offline", "committables"),
    "data": ("saved", "data/0.data"),
}


def refusal(attempt: Callable[[Path], None], root: Path) -> tuple[str, str]:
    """Named file and message."""
    with pytest.raises((CorruptCheckpoint, UnknownFormat)) as raised:
        attempt(root)
    return raised.value.path, str(raised.value)


def cases_of(kinds: dict[str, tuple[str, tuple[str, ...]]]) -> list[tuple[str, Damage]]:
    return [
        (kind, damage)
        for kind, (path, _) in kinds.items()
        for damage in (DOCUMENT_DAMAGES if path.endswith(".json") else DAMAGES)
    ]


@pytest.mark.parametrize(("kind", "damage"), cases_of(FILES_OF_A_JOB))
def test_a_damaged_file_of_a_job_is_named_with_what_to_do(kind: str, damage: Damage, directory: Path) -> None:
    path, advice = FILES_OF_A_JOB[kind]
    if (kind, damage) == ("log entry", deleted):
        # The last entry of a log cannot be missed. Any other that counts is.
        path = "log/0000000002.json"
    damage(directory / "job" / path)
    named, message = refusal(restore, directory)
    assert named == path
    assert message.startswith(path)
    for sentence in NEWER if damage is from_the_future else advice:
        assert sentence in message


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        (kind, damage)
        for kind, (_, path) in FILES_OF_A_SAVEPOINT.items()
        for damage in (DOCUMENT_DAMAGES if path.endswith(".json") else DAMAGES)
        if (kind, damage) != ("metadata", deleted)  # then there is no savepoint
    ],
)
def test_a_damaged_file_of_a_savepoint_is_named_with_what_to_do(kind: str, damage: Damage, directory: Path) -> None:
    saved, path = FILES_OF_A_SAVEPOINT[kind]
    damage(directory / saved / path)
    named, message = refusal(begin_from(saved), directory)
    assert named == str(directory / saved / path)
    for sentence in NEWER if damage is from_the_future else ANOTHER_SAVEPOINT:
        assert sentence in message


def test_what_is_intact_is_restored(directory: Path) -> None:
    """Or else the tests above would say nothing."""
    restore(directory)
    for saved in ("saved", "offline"):
        shutil.rmtree(directory / "fork", ignore_errors=True)
        begin_from(saved)(directory)


def test_a_damaged_savepoint_does_not_become_a_checkpoint_of_the_job(directory: Path) -> None:
    """The job's own newest checkpoint stays what it begins from next time."""
    flipped(directory / "saved" / "data" / "0.data")
    store = CheckpointStore(LocalFiles(str(directory / "job")), JOB)
    with pytest.raises(CorruptCheckpoint, match="Nothing was copied or restored"):
        store.claim(find_snapshot(str(directory / "saved")))
    assert store.completed() == [1, 2]
    restore(directory)


def test_a_damaged_checkpoint_does_not_become_a_savepoint(directory: Path) -> None:
    flipped(directory / "job" / "checkpoints/1/g1-a1-read-0-0.data")
    store = CheckpointStore(LocalFiles(str(directory / "job")), JOB)
    with pytest.raises(CorruptCheckpoint, match=r"checkpoints/1/g1-a1-read-0-0.data: part 'state' of operator 'read'"):
        store.export(CheckpointId(2), LocalFiles(str(directory / "second")))
    assert not (directory / "second" / "savepoint.json").exists()


def test_a_damaged_checkpoint_of_another_job_is_named_with_its_address(directory: Path) -> None:
    flipped(directory / "job" / "checkpoints/1/g1-a1-read-0-0.data")
    for address in (directory / "job", directory / "job" / "checkpoints" / "2"):
        with pytest.raises(CorruptCheckpoint) as raised:
            CheckpointStore(LocalFiles(str(directory / "fork")), "fork").claim(find_snapshot(str(address)))
        assert raised.value.path == str(directory / "job" / "checkpoints/1/g1-a1-read-0-0.data")


@pytest.mark.parametrize("damage", DOCUMENT_DAMAGES)
@pytest.mark.parametrize("kind", ["metadata", "log entry"])
def test_penstock_inspect_refuses_what_a_restore_would_refuse(kind: str, damage: Damage, directory: Path) -> None:
    from penstock.cli import app

    path, _ = FILES_OF_A_JOB[kind]
    if (kind, damage) == ("log entry", deleted):
        path = "log/0000000002.json"
    damage(directory / "job" / path)
    result = CliRunner().invoke(app, ["inspect", str(directory / "job")])
    assert isinstance(result.exception, CorruptCheckpoint | UnknownFormat)
    assert path in str(result.exception)
