"""One RocksDB: batches in, many keys at once out, and its files as they are, for a checkpoint.

RocksDB never changes a table file once it is written. `link` flushes what is in memory and links all files that make up
the database at that moment into a directory of their own: a picture of the database that stays, whatever is compacted
away later, and costs no copy.
"""

from __future__ import annotations

import shutil
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from rocksdict import AccessType, Checkpoint, Rdict, ReadOptions, WriteBatch

from penstock.state.parts import Buffer
from penstock.state.rocks.memory import SharedMemory, without_log
from penstock.state.rocks.workdir import Workdir

TABLE_SUFFIX: Final = ".sst"
_CHUNK: Final = 1 << 20

Record = tuple[bytes, bytes]


class Database:
    """Open for reading and writing. Any thread may use it; one at a time writes."""

    def __init__(
        self,
        workdir: Workdir,
        memory: SharedMemory,
        identity: str | None = None,
        files: Mapping[str, Iterable[Buffer]] | None = None,
    ):
        """A new one, or the one of that identity that the files make up."""
        self._workdir = workdir
        self._identity = identity or uuid.uuid4().hex[:16]
        """RocksDB numbers its tables from the beginning in every new database; the numbers are used once in the life
        of a database and of those that are restored from it."""
        self._path = workdir.new("database")
        self._path.mkdir()
        weakref.finalize(self, shutil.rmtree, self._path, True)
        write_files(self._path, files or {})
        self._db = Rdict(str(self._path), memory.options())
        self._unlogged = without_log()

    def write(self, records: Iterable[tuple[bytes, bytes | None]]) -> int:
        """Puts values, or removes the keys that have none. Returns the bytes."""
        batch = WriteBatch(raw_mode=True)
        for key, value in records:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        size = batch.size_in_bytes()
        self._db.write(batch, self._unlogged)  # empties the batch
        return size

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return cast(list[bytes | None], self._db.get(list(keys)))

    def scan(self, start: bytes, end: bytes | None = None) -> Iterator[Record]:
        return _scan(self._db, start, end)

    def link(self) -> LinkedFiles:
        """All files of the database as it is now."""
        # Flushing lets other threads run meanwhile; linking, which would flush too, does not.
        self._db.flush()
        path = self._workdir.new("linked")
        Checkpoint(self._db).create_checkpoint(str(path))
        return LinkedFiles(path, self._workdir, self._identity)

    @property
    def size(self) -> int:
        """About how many keys there are."""
        return self._db.property_int_value("rocksdb.estimate-num-keys") or 0

    def close(self) -> None:
        self._db.close()


class LinkedFiles:
    """The files of a database at one moment. The links go when nobody holds the object any more."""

    def __init__(self, path: Path, workdir: Workdir, identity: str) -> None:
        self._path, self._workdir = path, workdir
        self.identity = identity
        """Of the database."""
        self.name = uuid.uuid4().hex
        """Of this picture of it."""
        names = sorted(file.name for file in path.iterdir())
        self.tables = {name: (path / name).stat().st_size for name in names if name.endswith(TABLE_SUFFIX)}
        self.others = {
            name: (path / name).read_bytes() for name in names if name == "CURRENT" or name.startswith("MANIFEST-")
        }
        """What says how the tables make up the database."""
        weakref.finalize(self, shutil.rmtree, path, True)

    def read(self, table: str) -> Iterator[bytes]:
        """The bytes of a table, as an uploader wants them."""
        with open(self._path / table, "rb", buffering=0) as file:
            while chunk := file.read(_CHUNK):
                yield chunk

    def scan(self, memory: SharedMemory, start: bytes, end: bytes | None = None) -> Iterator[Record]:
        """Opened for this one scan."""
        db = Rdict(str(self._path), memory.options(), access_type=AccessType.read_only(False))
        try:
            yield from _scan(db, start, end)
        finally:
            db.close()

    @property
    def size(self) -> int:
        return sum(self.tables.values())


def stored_files(workdir: Workdir, identity: str, files: Mapping[str, Iterable[Buffer]]) -> LinkedFiles:
    """The files of a database that was stored elsewhere."""
    path = workdir.new("stored")
    path.mkdir()
    write_files(path, files)
    return LinkedFiles(path, workdir, identity)


def write_files(directory: Path, files: Mapping[str, Iterable[Buffer]]) -> None:
    for name, chunks in files.items():
        with open(directory / name, "wb") as file:
            for chunk in chunks:
                file.write(chunk)


def _scan(db: Rdict, start: bytes, end: bytes | None) -> Iterator[Record]:
    options = ReadOptions()
    if end is not None:
        options.set_iterate_upper_bound(end)
    return cast(Iterator[Record], db.items(from_key=start, read_opt=options))
