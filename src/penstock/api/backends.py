"""Where a pipeline keeps its state: in memory, in memory with all snapshots in files, or in RocksDB."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Final

from penstock.core.settings import RocksDBSettings, RuntimeSettings
from penstock.graph.errors import PipelineError

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?")
_LEAST: Final = 16 << 20
"""Below this, RocksDB spends its time writing tiny files."""


@dataclass(frozen=True)
class RocksDB:
    """User state (`process`, `transform_with_state`, `reduce` with a function) in RocksDB, on the workers' disks.

    >>> RocksDB(memory="1GB").settings.memory
    1073741824
    """

    memory: str | int = "256MB"
    """For all RocksDB state of a worker process together; "512MB", "2GB" or a number of bytes. 1 KB is 1024 bytes."""
    directory: str | os.PathLike[str] | None = None
    """Where the workers keep their working files, on a local disk of theirs; None: the system's temporary directory."""

    def __post_init__(self) -> None:
        _ = self.settings  # every value is checked where it was written

    @property
    def settings(self) -> RocksDBSettings:
        memory = _bytes(self.memory)
        if memory is None or memory < _LEAST:
            raise PipelineError(
                f'RocksDB: memory={self.memory!r} must be a size of at least 16MB: write "256MB", "2GB" or a number of '
                "bytes"
            )
        return RocksDBSettings(memory, None if self.directory is None else os.fspath(self.directory))


def with_backend(runtime: RuntimeSettings, backend: str | RocksDB) -> RuntimeSettings:
    """The settings of a pipeline with that backend."""
    if backend == "memory":
        return runtime
    if backend == "files":
        return replace(runtime, layers=replace(runtime.layers, inline=0))
    if backend == "rocksdb":
        backend = RocksDB()
    if not isinstance(backend, RocksDB):
        raise PipelineError(
            f"backend={backend!r} does not exist; choose from 'memory', 'files', 'rocksdb' and "
            'ps.RocksDB(memory="1GB", directory="/local/disk")'
        )
    if find_spec("rocksdict") is None:
        raise PipelineError(
            "backend='rocksdb' needs the package rocksdict, here and on the workers: pip install penstock[rocksdb]"
        )
    return replace(runtime, rocksdb=backend.settings)


def _bytes(size: object) -> int | None:
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    match = _SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    if match is None:
        return None
    number, prefix = match.groups()
    return int(float(number) * _UNITS[prefix])
