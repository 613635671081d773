"""RocksDB's own files as pieces of a state: each table file a piece of its own, and one that says what they are.

    <database>-000012.sst   a table file, as RocksDB wrote it
    <picture>.rocksdb       MessagePack of a `Manifest`

Tables never change, and their numbers are not used again in the life of a database, nor of one that was restored from
it: a piece that was written once is named by all later states that need it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.core.handles import KeyGroupRange
from penstock.state.entries import in_runs
from penstock.state.keys import KEY_PREFIX, KeyColumns
from penstock.state.kinds import KeyedState
from penstock.state.parts import Buffer, Piece, RestoredPart
from penstock.state.rocks.database import LinkedFiles, Record, stored_files
from penstock.state.rocks.memory import SharedMemory
from penstock.state.rocks.records import Records, bounds
from penstock.state.rocks.workdir import Workdir
from penstock.state.stored import MANIFEST
from penstock.state.tables import GROUP_COLUMN, StateHeader, StateMismatch, checked_header, table_schema

VERSION: Final = 1
_TABLE_NAME: Final = re.compile(r"[0-9]+\.sst")
_OTHER_NAME: Final = re.compile(r"CURRENT|MANIFEST-[0-9]+")


class Manifest(msgspec.Struct, frozen=True):
    version: int
    database: str
    """Whose tables they are."""
    schema: bytes
    """What a file of the state would have: Arrow's IPC message of the schema, with its metadata."""
    tables: dict[str, int]
    """Names and sizes."""
    files: dict[str, bytes]
    """RocksDB's files that say how the tables make up the database."""


def pieces(state: KeyedState, keys: KeyColumns, linked: LinkedFiles) -> list[Piece]:
    """What linked files are made of."""
    schema = table_schema(state.kind, state.name, state.codec.description, keys, state.columns)

    def manifest() -> Iterable[Buffer]:
        content = Manifest(VERSION, linked.identity, schema.serialize().to_pybytes(), linked.tables, linked.others)
        return (msgspec.msgpack.encode(content),)

    tables = [Piece(partial(linked.read, table), _piece(linked.identity, table)) for table in linked.tables]
    return [*tables, Piece(manifest, linked.name + MANIFEST)]


def _piece(identity: str, table: str) -> str:
    return f"{identity}-{table}"


@dataclass(frozen=True)
class Native:
    """One writer's files of one state."""

    part: RestoredPart
    """That says what they are."""
    manifest: Manifest
    tables: Mapping[str, RestoredPart]

    @classmethod
    def of(cls, parts: Sequence[RestoredPart]) -> Native:
        """From all native parts of one state that one subtask wrote."""
        by_piece = {part.piece: part for part in parts}
        manifests = [part for part in parts if part.piece.endswith(MANIFEST)]
        what = f"the state {parts[0].name!r} of subtask {parts[0].subtask}"
        if len(manifests) != 1:
            raise StateMismatch(
                f"{what} was stored as RocksDB's files, but of the one that says what they are the checkpoint has "
                f"{len(manifests)}: restore another checkpoint"
            )
        manifest = _decoded(manifests[0])
        pieces = {table: _piece(manifest.database, table) for table in manifest.tables}
        missing = [piece for piece in pieces.values() if piece not in by_piece]
        if missing:
            raise StateMismatch(
                f"{what} consists of {len(pieces)} table files, but the checkpoint lacks {missing}: restore another "
                "checkpoint"
            )
        return cls(manifests[0], manifest, {table: by_piece[piece] for table, piece in pieces.items()})

    @property
    def schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.manifest.schema))

    @property
    def value_type(self) -> pa.DataType:
        """Of what one record holds."""
        others = (GROUP_COLUMN, KEY_PREFIX)
        columns = [field for field in self.schema if not field.name.startswith(others)]
        return columns[0].type if [field.name for field in columns] == ["value"] else pa.struct(columns)

    def header(self, keys: KeyColumns) -> StateHeader:
        return checked_header(self.part, self.schema, keys)

    def is_of(self, subtask: int, own: KeyGroupRange) -> bool:
        """Whether these files hold just the key groups of the subtask, which wrote them."""
        return self.part.subtask == subtask and self.part.key_groups == own

    def files(self) -> dict[str, Iterable[Buffer]]:
        """All of them, read and verified one at a time."""
        others: dict[str, Iterable[Buffer]] = {name: (content,) for name, content in self.manifest.files.items()}
        return {**others, **{name: _read_later(part) for name, part in self.tables.items()}}

    def records(self, own: KeyGroupRange, workdir: Workdir, memory: SharedMemory) -> Iterator[Record]:
        """Those of some key groups."""
        yield from stored_files(workdir, self.manifest.database, self.files()).scan(memory, *bounds(own))

    def batches(
        self, keys: KeyColumns, total_groups: int, records: Iterable[Record]
    ) -> Iterator[tuple[list[Any], pa.Array]]:
        """The keys and the values' column of records, a run at a time."""
        reading = Records(keys, total_groups, self.value_type)
        for run in in_runs(records):
            yield reading.raw_keys([key for key, _ in run]), reading.values.load([cell for _, cell in run])


def _read_later(part: RestoredPart) -> Iterator[Buffer]:
    yield part.read()


def _decoded(part: RestoredPart) -> Manifest:
    content = part.read()
    version = msgspec.msgpack.decode(content).get("version")
    if version != VERSION:
        raise StateMismatch(
            f"the part {part.name!r} is stored in version {version}, but this Penstock reads version {VERSION}: "
            "restore it with the version of Penstock that wrote it, or with a newer one"
        )
    manifest = msgspec.msgpack.decode(content, type=Manifest)
    strange = [name for name in manifest.tables if not _TABLE_NAME.fullmatch(name)]
    strange += [name for name in manifest.files if not _OTHER_NAME.fullmatch(name)]
    if strange:
        raise StateMismatch(f"the part {part.name!r} names files that are none of RocksDB's: {strange}")
    return manifest
