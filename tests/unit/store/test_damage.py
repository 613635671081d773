"""Files that are missing, cut, flipped or from the future: each is named, and nothing is restored instead."""

from __future__ import annotations

import zlib

import pytest
from tests.unit.store.samples import JOB, expected, paths, read_all, take

from penstock.core.ids import CheckpointId
from penstock.simulation.files import MemoryFiles
from penstock.store import layout
from penstock.store.checkpoints import CheckpointStore, CorruptCheckpoint, UnknownFormat
from penstock.store.documents import FORMAT, Identity, seal, unseal


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    store = CheckpointStore(files, JOB)
    store.claim()
    for number in (1, 2):
        take(store, files, number, 1)
    return files


def store_on(files: MemoryFiles) -> CheckpointStore:
    return CheckpointStore(files, JOB)


def of_newest(files: MemoryFiles, suffix: str) -> str:
    return next(path for path in paths(files, "checkpoints/2") if path.endswith(suffix))


def overwrite(files: MemoryFiles, path: str, content: bytes) -> None:
    files.write(path, [content])


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("suffix", [".data", ".committables", ".json"])
def test_a_missing_file_is_named(files: MemoryFiles, suffix: str) -> None:
    victim = of_newest(files, suffix)
    files.delete(victim)
    for attempt in (lambda: store_on(files).load(), lambda: store_on(files).claim()):
        with pytest.raises(CorruptCheckpoint, match="missing") as raised:
            attempt()
        assert raised.value.path == victim
        assert victim in str(raised.value)
        assert "another complete checkpoint" in str(raised.value)


@pytest.mark.parametrize("suffix", [".data", ".committables", ".json"])
def test_a_truncated_file_is_named(files: MemoryFiles, suffix: str) -> None:
    victim = of_newest(files, suffix)
    overwrite(files, victim, bytes(files.read(victim))[:-1])
    with pytest.raises(CorruptCheckpoint) as raised:
        store_on(files).load()
    assert raised.value.path == victim


def test_an_older_checkpoint_can_be_chosen_when_the_newest_is_damaged(files: MemoryFiles) -> None:
    files.delete(of_newest(files, ".json"))
    claim = store_on(files).claim(CheckpointId(1))
    assert claim.newest is not None
    assert read_all(files, claim.newest) == expected(1)
    assert claim.next_id == 3


def test_every_flipped_bit_of_the_metadata_is_noticed(files: MemoryFiles) -> None:
    victim = of_newest(files, ".json")
    intact = bytes(files.read(victim))
    for at in range(len(intact)):
        overwrite(files, victim, flipped(intact, at))
        with pytest.raises((CorruptCheckpoint, UnknownFormat)):
            store_on(files).load()


def test_every_flipped_bit_of_a_log_entry_is_noticed_or_harmless(files: MemoryFiles) -> None:
    victim = layout.log_path(3)
    intact = bytes(files.read(victim))
    healthy = store_on(files).load()
    for at in range(len(intact)):
        overwrite(files, victim, flipped(intact, at))
        try:
            assert store_on(files).load() == healthy
        except (CorruptCheckpoint, UnknownFormat) as error:
            assert error.path == victim


def test_every_flipped_bit_of_the_committables_is_noticed(files: MemoryFiles) -> None:
    victim = of_newest(files, ".committables")
    intact = bytes(files.read(victim))
    for at in range(len(intact)):
        overwrite(files, victim, flipped(intact, at))
        with pytest.raises(CorruptCheckpoint, match="checksum"):
            store_on(files).load()


def test_a_flipped_bit_in_a_data_file_is_noticed_by_whoever_reads_the_part(files: MemoryFiles) -> None:
    victim = of_newest(files, ".data")
    overwrite(files, victim, flipped(bytes(files.read(victim)), 5))
    record = store_on(files).load()
    with pytest.raises(CorruptCheckpoint, match=r"part 'state' of operator 'read' \(bytes 0 to \d+\) has checksum"):
        read_all(files, record)


def test_metadata_of_another_checkpoint_under_this_name_is_refused(files: MemoryFiles) -> None:
    overwrite(files, of_newest(files, ".json"), bytes(files.read("checkpoints/1/g1.json")))
    with pytest.raises(CorruptCheckpoint, match="not the file that log entry 3 completed"):
        store_on(files).load()


def test_a_metadata_file_from_the_future_is_not_called_corrupt(files: MemoryFiles) -> None:
    overwrite(files, of_newest(files, ".json"), b'{"format": 7, "sealed": "in another way"}')
    with pytest.raises(UnknownFormat, match=r"checkpoints/2/g1.json has format 7.*up to 2.*version that wrote it"):
        store_on(files).load()


def test_a_log_entry_from_the_future_stops_the_driver(files: MemoryFiles) -> None:
    overwrite(files, layout.log_path(4), b'{"format": 7, "body": {"kind": "merge"}}')
    with pytest.raises(UnknownFormat, match=r"log/0000000004\.json"):
        store_on(files).claim()


def test_a_hole_in_the_log_is_reported(files: MemoryFiles) -> None:
    files.delete(layout.log_path(2))
    with pytest.raises(CorruptCheckpoint, match=r"log/0000000002.json: log entry 2 is missing.*entry 3 still needs it"):
        store_on(files).claim()


def test_a_damaged_identity_is_reported(files: MemoryFiles) -> None:
    overwrite(files, layout.IDENTITY, b"{}")
    with pytest.raises(CorruptCheckpoint, match=r"penstock\.json"):
        store_on(files).claim()


def test_files_that_are_no_log_entries_are_ignored(files: MemoryFiles) -> None:
    for name in ("log/README", "log/0000000009.json.bak", "log/7.json"):
        overwrite(files, name, b"not an entry")
    assert store_on(files).load().checkpoint == 2


def test_cleaning_keeps_everything_of_a_checkpoint_whose_metadata_cannot_be_read(files: MemoryFiles) -> None:
    store = CheckpointStore(files, JOB, keep=1)
    store.claim()
    before = paths(files, "checkpoints/2")
    victim = of_newest(files, ".json")
    overwrite(files, victim, b"{}")
    report = store.clean()
    assert report.broken == (2,)
    assert paths(files, "checkpoints/2") == before
    assert store.load(CheckpointId(1)).checkpoint == 1


def test_a_document_is_readable_for_people_and_its_checksum_is_over_the_body() -> None:
    document = seal(Identity("a job"))
    assert b'"job": "a job"' in document
    assert document.startswith(b'{"format": %d,' % FORMAT)
    assert unseal("here", memoryview(document), Identity) == Identity("a job")
    with pytest.raises(CorruptCheckpoint, match="here: its content has checksum"):
        unseal("here", memoryview(document.replace(b"a job", b"b job")), Identity)


def test_a_document_with_a_right_checksum_but_a_wrong_body_is_refused() -> None:
    body = b'{"jobs": 1}'
    document = b'{"format": 1, "crc32": %d, "body": %s}' % (zlib.crc32(body), body)
    with pytest.raises(CorruptCheckpoint, match="not a readable document"):
        unseal("here", memoryview(document), Identity)
