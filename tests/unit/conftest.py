"""What unit tests of several packages share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest
from tests.unit.state.harness import Chosen

from penstock.core.settings import RocksDBSettings
from penstock.state.rocks import map as rocks_map
from penstock.state.rocks.memory import Share


@pytest.fixture(scope="session")
def rocks_directory() -> Iterator[str]:
    """In memory where that is possible: RocksDB waits for the disk after every file."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as directory:
        yield directory


@pytest.fixture(scope="module", params=["memory", "rocksdb"])
def every_backend(request: pytest.FixtureRequest, rocks_directory: str) -> Iterator[str]:
    """Runs a module's tests with keyed state in memory, and in RocksDB where at most two changes wait in memory."""
    if request.param == "memory":
        yield request.param
        return
    patch = pytest.MonkeyPatch()
    patch.setattr(Share, "_FIRST", 2)
    patch.setattr(rocks_map, "WORTH_MERGING", 0)
    patch.setattr(Chosen, "rocksdb", RocksDBSettings(16 << 20, rocks_directory))
    yield request.param
    patch.undo()
