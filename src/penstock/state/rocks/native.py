"""RocksDB's own files as parts of a checkpoint: each table file a part of its own, and one that says what they are.

    <state>#rocksdb       MessagePack of a `Manifest`
    <state>#000012.sst    a table file, as RocksDB wrote it
    <state>               if there are any: changes to what the tables hold, as a file of keyed state (see `tables`)

Tables never change and their numbers are not used again in the life of a database, or of one that was restored from it:
a table that the base of a checkpoint has is named again, not written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.core.handles import KeyGroupRange, PartKind
from penstock.state.entries import in_runs
from penstock.state.keys import KEY_PREFIX, KeyColumns
from penstock.state.kinds import KeyedState
from penstock.state.parts import Buffer, CapturedPart, RestoredPart
from penstock.state.rocks.database import LinkedFiles, Record, stored_files
from penstock.state.rocks.memory import SharedMemory
from penstock.state.rocks.records import Records, bounds
from penstock.state.rocks.workdir import Workdir
from penstock.state.stored import manifest_name, native_name
from penstock.state.tables import GROUP_COLUMN, StateHeader, StateMismatch, checked_header, table_schema

VERSION: Final = 1
_TABLE_NAME: Final = re.compile(r"[0-9]+\.sst")
_OTHER_NAME: Final = re.compile(r"CURRENT|MANIFEST-[0-9]+")


class Manifest(msgspec.Struct, frozen=True):
    version: int
    schema: bytes
    """What a file of the state would have: Arrow's IPC message of the schema, with its metadata."""
    tables: dict[str, int]
    """Names and sizes."""
    files: dict[str, bytes]
    """RocksDB's files that say how the tables make up the database."""


def captured_tables(state: str, own: KeyGroupRange, linked: LinkedFiles) -> dict[str, CapturedPart]:
    """The parts of all tables, by the tables' names."""
    return {
        table: CapturedPart(native_name(state, table), PartKind.KEYED, partial(linked.read, table), key_groups=own)
        for table in linked.tables
    }


def captured_manifest(state: KeyedState, keys: KeyColumns, own: KeyGroupRange, linked: LinkedFiles) -> CapturedPart:
    schema = table_schema(state.kind, state.name, state.codec.description, keys, state.columns)

    def encode() -> Iterable[Buffer]:
        files = Manifest(VERSION, schema.serialize().to_pybytes(), linked.tables, linked.others)
        return (msgspec.msgpack.encode(files),)

    return CapturedPart(manifest_name(state.name), PartKind.KEYED, encode, key_groups=own)


@dataclass(frozen=True)
class Native:
    """One writer's files of one state."""

    state: str
    manifest_part: RestoredPart
    manifest: Manifest
    tables: Mapping[str, RestoredPart]

    @classmethod
    def of(cls, state: str, parts: Iterable[RestoredPart]) -> Native:
        """From all native parts of one writer."""
        by_name = {part.name: part for part in parts}
        part = by_name.pop(manifest_name(state), None)
        if part is None:
            raise StateMismatch(
                f"the checkpoint has table files {sorted(by_name)} of the state {state!r}, but not the part "
                f"{manifest_name(state)!r} that says what they are: restore another checkpoint"
            )
        manifest = _decoded(part)
        missing = [table for table in manifest.tables if native_name(state, table) not in by_name]
        if missing:
            raise StateMismatch(
                f"the state {state!r} of subtask {part.subtask} consists of {len(manifest.tables)} table files, but "
                f"the checkpoint lacks {missing}: restore another checkpoint"
            )
        return cls(state, part, manifest, {table: by_name[native_name(state, table)] for table in manifest.tables})

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
        return checked_header(self.manifest_part, self.schema, keys)

    def is_of(self, subtask: int, own: KeyGroupRange) -> bool:
        """Whether these files hold just the key groups of the subtask, which wrote them."""
        return self.manifest_part.subtask == subtask and self.manifest_part.key_groups == own

    def files(self) -> dict[str, Iterable[Buffer]]:
        """All of them, read and verified one at a time."""
        others: dict[str, Iterable[Buffer]] = {name: (content,) for name, content in self.manifest.files.items()}
        return {**others, **{name: _read_later(part) for name, part in self.tables.items()}}

    def records(self, own: KeyGroupRange, workdir: Workdir, memory: SharedMemory) -> Iterator[Record]:
        """Those of some key groups."""
        yield from stored_files(workdir, self.files()).scan(memory, *bounds(own))

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
