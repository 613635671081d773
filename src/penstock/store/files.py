"""The few file operations that checkpoints and file sinks are built from.

Paths are strings with `/`, relative to the root that the file system was opened on. All of them raise `OSError` (its
subclasses
`FileNotFoundError`, `FileExistsError` where they fit) and are safe to call from several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.state.parts import Buffer


@dataclass(frozen=True, slots=True)
class FileInfo:
    path: str
    size: int
    modified: float
    """Seconds since the epoch."""


class FileWriter(Protocol):
    """A file that grows chunk by chunk. Used from one thread at a time."""

    def write(self, chunk: Buffer) -> None: ...

    def close(self) -> int:
        """Makes the file durable and returns its size. Nothing may be said about the file before this has returned."""
        ...

    def abandon(self) -> None:
        """Gives the file up without making it durable; it may be left behind, whole or in part. Never raises."""
        ...


class DataFiles(Protocol):
    """As much as writing snapshots needs."""

    def write_in_place(self, path: str, chunks: Iterable[Buffer]) -> int:
        """Writes a whole file durably, under its own name from the start: for places that nobody reads before they are
        told to. A crash may leave a part of it, which `list` shows. Otherwise as `Files.write`, and cheaper."""
        ...

    def delete(self, path: str) -> None:
        """No error if it does not exist."""
        ...


class Files(DataFiles, Protocol):
    def write(self, path: str, chunks: Iterable[Buffer]) -> int:
        """Writes a whole file durably and visible all at once (temporary name, fsync, rename); replaces an older one.
        Makes missing directories. Returns the bytes written."""
        ...

    def open_write(self, path: str) -> FileWriter:
        """Opens a file for writing piece by piece, under its own name: for places that nobody reads before they are
        told to. Replaces an older one; makes missing directories. A crash may leave a part of it, which `list`
        shows."""
        ...

    def create(self, path: str, content: bytes) -> None:
        """As `write`, but raises `FileExistsError` if the path exists: of several contenders exactly one succeeds."""
        ...

    def read(self, path: str, offset: int = 0, length: int | None = None) -> memoryview: ...

    def list(self, directory: str) -> Sequence[FileInfo]:
        """Every file below the directory, at any depth; empty if there is none. Temporary files are not listed."""
        ...

    def names(self, directory: str) -> Sequence[str]:
        """What there is in the directory itself, as paths, in any order; nothing if there is no such directory.
        Temporary files are left out, directories need not be. Costs less than `list`."""
        ...

    def move(self, source: str, target: str) -> None:
        """Atomic; replaces the target. `FileNotFoundError` if the source does not exist."""
        ...

    def exists(self, path: str) -> bool: ...

    def remove_stale(self, directory: str) -> int:
        """Removes what writers that were killed left behind below the directory: temporary files that nobody has
        touched for an hour. Returns how many."""
        ...
