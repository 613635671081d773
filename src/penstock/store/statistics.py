"""Figures of completed and failed checkpoints, kept beside them so that they outlive the driver. Bounded in size.

JSON lines, in files of up to `ENTRIES_PER_FILE`: a file is written anew with more entries until it is full; the oldest
files go when there are more than `FILES`. Every driver starts a file of its own, so drivers never write into each
other's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import msgspec

from penstock.core.ids import Generation
from penstock.store import layout
from penstock.store.errors import CorruptCheckpoint
from penstock.store.files import Files

ENTRIES_PER_FILE = 32
FILES = 32
LONGEST_ENTRY = 1 << 20
_LONGEST_TEXT = 2_000


class Statistics:
    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._path: str | None = None
        self._number = 0

    def record(self, generation: Generation, *entries: Mapping[str, object]) -> None:
        with self._lock:
            rest = [_line(entry) for entry in entries]
            while rest:
                if self._path is None or len(self._lines) >= ENTRIES_PER_FILE:
                    self._begin(generation)
                assert self._path is not None
                room = ENTRIES_PER_FILE - len(self._lines)
                self._lines, rest = self._lines + rest[:room], rest[room:]
                self._files.write(self._path, self._lines)

    def read(self) -> Iterator[dict[str, object]]:
        """All entries that are kept, oldest first."""
        for path in self._paths():
            for line in bytes(self._files.read(path)).splitlines():
                try:
                    yield msgspec.json.decode(line, type=dict[str, object])
                except msgspec.DecodeError as error:
                    advice = "Statistics are not needed for a restore: the file may be deleted"
                    raise CorruptCheckpoint(path, f"not readable as statistics: {error}", advice) from error

    def _begin(self, generation: Generation) -> None:
        for path in self._paths()[: -(FILES - 1)]:
            self._files.delete(path)
        self._number += 1
        self._path = layout.statistics_path(generation, self._number)
        self._lines = []

    def _paths(self) -> list[str]:
        found = ((layout.statistics_order(file.path), file.path) for file in self._files.list(layout.STATISTICS))
        return [path for order, path in sorted((o, path) for o, path in found if o is not None)]


def _line(entry: Mapping[str, object]) -> bytes:
    line = msgspec.json.encode(dict(entry))
    if len(line) > LONGEST_ENTRY:
        # What is left out are the figures of single subtasks; those of the whole checkpoint and its cause stay.
        short = {
            key: _shortened(value)
            for key, value in entry.items()
            if value is None or isinstance(value, str | int | float)
        }
        line = msgspec.json.encode({**short, "shortened": f"the entry had {len(line)} bytes"})
    return line + b"\n"


def _shortened(value: object) -> object:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else value
