"""Parts that are too small for a file of their own: they are part of the metadata."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.store.samples import JOB, SUBTASKS, part, record_of, write_data

from penstock.core.handles import PartHandle
from penstock.core.ids import CheckpointId, SubtaskId, Uid
from penstock.core.record import SubtaskRecord
from penstock.simulation.files import MemoryFiles
from penstock.store import checkpoints
from penstock.store.checkpoints import CheckpointStore, UnknownFormat
from penstock.store.errors import CorruptCheckpoint
from penstock.store.parts import reader, write_parts

DIRECTORY = "checkpoints/1"
PARTS = {Uid("a"): [part("one", b"12345"), part("two", b"")], Uid("b"): [part("one", b"678")]}


def contents(files: MemoryFiles, handles: list[PartHandle]) -> list[bytes]:
    return [bytes(reader(files, DIRECTORY, handle)()) for handle in handles]


@pytest.mark.parametrize(("inline", "makes_a_file"), [(0, True), (7, True), (8, False), (100, False)])
def test_parts_make_a_file_if_together_they_are_too_large(inline: int, makes_a_file: bool) -> None:
    files = MemoryFiles()
    handles = write_parts(files, f"{DIRECTORY}/x.data", PARTS, inline)
    assert bool(files.list("")) == makes_a_file
    assert [handle.inline is None for handle in handles] == [makes_a_file] * 3
    assert contents(files, handles) == [b"12345", b"", b"678"]


def test_a_changed_byte_in_the_metadata_is_noticed() -> None:
    files = MemoryFiles()
    handle = write_parts(files, f"{DIRECTORY}/x.data", PARTS, 100)[0]
    with pytest.raises(CorruptCheckpoint, match=r"metadata of checkpoints/1.*part 'one' of operator 'a'.*checksum"):
        contents(files, [replace(handle, inline=b"12346")])


def test_a_checkpoint_of_small_parts_is_its_metadata_alone_and_later_ones_may_name_its_parts() -> None:
    files = MemoryFiles()
    store = CheckpointStore(files, JOB, 1)
    generation = store.claim().generation
    handles: dict[SubtaskId, list[PartHandle]] = {
        subtask: write_parts(files, f"{DIRECTORY}/{subtask}.data", PARTS, 100) for subtask in SUBTASKS
    }
    store.complete(record_of(1, generation, [SubtaskRecord(subtask, tuple(handles[subtask])) for subtask in SUBTASKS]))
    assert not [file for file in files.list("checkpoints") if file.path.endswith(".data")]
    later = [
        SubtaskRecord(subtask, tuple(handle.seen_from_later(CheckpointId(1)) for handle in handles[subtask]))
        for subtask in SUBTASKS
    ]
    store.complete(record_of(2, generation, later))
    store.clean()
    assert store.completed() == [2]
    for entry in store.load().subtasks:
        assert contents(files, list(entry.handles)) == [b"12345", b"", b"678"]


def test_few_committables_are_in_the_metadata_and_come_back_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "INLINE", 100)
    files = MemoryFiles()
    store = CheckpointStore(files, JOB)
    store.claim()
    few, many = {Uid("out"): (b"one \x00\xff", b"two")}, {Uid("out"): (b"x" * 101,)}
    store.complete(record_of(1, 1, write_data(files, 1, 1), few))
    assert store.load().committables == few
    store.complete(record_of(2, 1, write_data(files, 2, 1), many))
    assert store.load().committables == many
    assert store.load(CheckpointId(1)).committables == few
    written = [file.path for file in files.list("") if file.path.endswith(".committables")]
    assert written == ["checkpoints/2/g1.committables"]
    assert not store.clean().broken


def test_committables_in_damaged_metadata_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "INLINE", 100)
    files = MemoryFiles()
    store = CheckpointStore(files, JOB)
    store.claim()
    store.complete(record_of(1, 1, write_data(files, 1, 1), {Uid("out"): (b"prepared",)}))
    path = "checkpoints/1/g1.json"
    whole = bytes(files.read(path))
    for place in range(len(whole)):
        files.write(path, [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]])
        with pytest.raises((CorruptCheckpoint, UnknownFormat)):
            CheckpointStore(files, JOB).load()
