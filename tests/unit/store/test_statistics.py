"""Figures of checkpoints, kept for those who come later."""

from __future__ import annotations

import pytest
from tests.unit.store.samples import JOB, paths

from penstock.core.causes import Cause
from penstock.core.handles import SnapshotFigures
from penstock.simulation.files import MemoryFiles
from penstock.store import layout
from penstock.store.checkpoints import CheckpointStore, CorruptCheckpoint
from penstock.store.statistics import ENTRIES_PER_FILE, FILES, LONGEST_ENTRY


def driver(files: MemoryFiles) -> CheckpointStore:
    store = CheckpointStore(files, JOB)
    store.claim()
    return store


def test_figures_outlive_their_driver_in_their_order() -> None:
    files = MemoryFiles()
    for generation in range(1, 13):
        driver(files).record_statistics({"generation": generation})
    assert [entry["generation"] for entry in driver(files).statistics()] == list(range(1, 13))


def test_anything_that_the_coordinator_knows_can_be_recorded() -> None:
    store = driver(MemoryFiles())
    store.record_statistics({"checkpoint": 1, "cause": Cause.EXPIRED, "subtasks": [SnapshotFigures(sync_ms=1.5)]})
    (entry,) = store.statistics()
    assert entry["cause"] == "expired"
    assert isinstance(entry["subtasks"], list)
    assert entry["subtasks"][0]["sync_ms"] == 1.5


def test_only_the_newest_entries_are_kept() -> None:
    files = MemoryFiles()
    store = driver(files)
    total = ENTRIES_PER_FILE * (FILES + 2) + 1
    for number in range(total):
        store.record_statistics({"number": number})
    assert len(paths(files, layout.STATISTICS)) == FILES
    kept = [entry["number"] for entry in store.statistics()]
    assert kept == list(range(total - len(kept), total))
    assert len(kept) > ENTRIES_PER_FILE * (FILES - 1)


def test_an_entry_that_is_too_long_keeps_its_figures_and_loses_its_details() -> None:
    store = driver(MemoryFiles())
    store.record_statistics({"checkpoint": 5, "reason": "x" * LONGEST_ENTRY, "subtasks": ["y"] * 10, "bytes": None})
    (entry,) = store.statistics()
    assert entry["checkpoint"] == 5
    assert entry["bytes"] is None
    assert "subtasks" not in entry
    assert len(str(entry)) < 4_000
    assert "bytes" in str(entry["shortened"])


def test_a_damaged_file_is_named() -> None:
    files = MemoryFiles()
    store = driver(files)
    store.record_statistics({"checkpoint": 1})
    (path,) = paths(files, layout.STATISTICS)
    files.write(path, [b'{"checkpoint": \n'])
    with pytest.raises(CorruptCheckpoint, match=r"statistics/g1-000001\.jsonl: not readable.*may be deleted"):
        store.statistics()


def test_an_entry_that_could_not_be_written_is_written_with_the_next() -> None:
    files = MemoryFiles()
    store = driver(files)

    def fail(operation: str, path: str) -> None:
        raise OSError("no answer")

    files.before = fail
    with pytest.raises(OSError, match="no answer"):
        store.record_statistics({"checkpoint": 1})
    files.before = lambda operation, path: None
    store.record_statistics({"checkpoint": 2})
    assert [entry["checkpoint"] for entry in store.statistics()][-1] == 2
