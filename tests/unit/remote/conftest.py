"""Jobs that can be reached, in a place of the test's own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.remote.fake import FakeJob

from penstock.remote import registry
from penstock.remote.handling import Handler
from penstock.remote.server import Door


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where jobs are found; its path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="ps-", dir="/tmp") as directory:
        monkeypatch.setattr(registry, "places", lambda: [Path(directory, "penstock")])
        yield Path(directory, "penstock")


@pytest.fixture
def open_job(place: Path) -> Iterator[Callable[..., tuple[FakeJob, Door]]]:
    doors = []

    def opened(name: str = "orders", directory: str | None = None) -> tuple[FakeJob, Door]:
        job = FakeJob(name)
        doors.append(Door(name, directory, Handler(job)))
        return job, doors[-1]

    yield opened
    for door in doors:
        door.close()
