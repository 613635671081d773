"""Keyed state as a file: an Arrow IPC file in whose record batches the rows of a key group mostly lie together.

Columns: `key_group` (int32), the key's columns (`key.<name>`, in their own types), then whatever the state holds. The
schema's metadata says under `penstock.state`, as JSON, what it is: the format's version, the kind of state, its name
and the description of its type. In every batch a reader takes the rows of the groups that it owns, without a copy where
they lie together; parts of several writers are read one after another. The file as a whole is not ordered: that would
cost several times what writing it does; nor are the batches of what is large or often written (`encode_in_turn`).

A file of changes (a layer above the base) may have one more column, `#removed`, which says of each row whether its key
is gone; nothing else of such a row counts.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.handles import KeyGroupRange
from penstock.kernels.gathering import taken
from penstock.kernels.hashing import key_groups_of_hashes
from penstock.kernels.partition import rows_by_group
from penstock.state.keys import KEY_PREFIX, KeyColumns
from penstock.state.parts import Buffer, RestoredPart

FORMAT_VERSION = 1
GROUP_COLUMN = "key_group"
REMOVED_COLUMN = "#removed"
_METADATA = b"penstock.state"
_ROWS_PER_BATCH = 65_536
_BATCHES_AT_ONCE = 4
"""Fewer are put into one piece of memory."""


Rows = npt.NDArray[np.int32]


class StateMismatch(Exception):
    """Stored state cannot be read as what the program declares."""


@dataclass(frozen=True)
class StateHeader:
    """What a file says about itself."""

    version: int
    kind: str
    name: str
    description: Mapping[str, Any]


def encode_table(
    kind: str,
    name: str,
    description: Mapping[str, Any],
    keys: KeyColumns,
    total_groups: int,
    key_columns: list[pa.Array],
    columns: Mapping[str, pa.Array | pa.ChunkedArray],
    removed: int = 0,
) -> Iterable[Buffer]:
    """The bytes of a state's file, rows in any order. All columns have the same length, except that `key_columns` go on
    with so many keys that are `removed`."""
    if removed:
        columns = _with_removals(columns, len(key_columns[0]) - removed, removed)
    types = {column: values.type for column, values in columns.items()}
    arrays = [values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values for values in columns.values()]

    def of_rows(rows: Rows) -> list[pa.Array]:
        return [taken(array, rows) for array in arrays]

    return encode_rows(kind, name, description, keys, total_groups, key_columns, types, of_rows)


def encode_rows(
    kind: str,
    name: str,
    description: Mapping[str, Any],
    keys: KeyColumns,
    total_groups: int,
    key_columns: list[pa.Array],
    types: Mapping[str, pa.DataType],
    of_rows: Callable[[Rows], Sequence[pa.Array]],
) -> Iterator[Buffer]:
    """The bytes of a state's file, as it grows: one batch at a time is gathered, ordered and encoded, which stays in
    the processor's caches. `of_rows` gives the other columns of some rows, which are numbered as in `key_columns`."""
    rows = len(key_columns[0])

    def batches() -> Iterator[list[pa.Array]]:
        for start in range(0, rows, _ROWS_PER_BATCH):
            key = [column.slice(start, min(rows - start, _ROWS_PER_BATCH)) for column in key_columns]
            order, groups = rows_by_group(keys.hashes(key), total_groups)
            key = [taken(column, order) for column in key]
            yield [pa.array(groups), *key, *of_rows(order + np.int32(start))]

    return _written(table_schema(kind, name, description, keys, types), batches())


def encode_in_turn(
    schema: pa.Schema,
    keys: KeyColumns,
    total_groups: int,
    rows: int,
    keys_of: Callable[[slice], list[pa.Array]],
    of_rows: Callable[[slice], Sequence[pa.Array]],
) -> Iterator[Buffer]:
    """The bytes of a state's file whose rows stay in their order, and are given a portion at a time: for what is
    written all the time and hardly ever read. Nothing is copied."""

    def batches() -> Iterator[list[pa.Array]]:
        for start in range(0, rows, _ROWS_PER_BATCH):
            portion = slice(start, min(rows, start + _ROWS_PER_BATCH))
            key = keys_of(portion)
            yield [pa.array(key_groups_of_hashes(keys.hashes(key), total_groups)), *key, *of_rows(portion)]

    return _written(schema, batches())


def encode_batches(
    schema: pa.Schema, keys: KeyColumns, total_groups: int, batches: Iterable[Sequence[pa.Array]]
) -> Iterator[Buffer]:
    """The bytes of a state's file whose rows, in any order, come a batch at a time: the key's columns, then those of
    the state. For states that do not fit into memory."""

    def ordered() -> Iterator[list[pa.Array]]:
        for columns in batches:
            rows, groups = rows_by_group(keys.hashes(list(columns[: len(keys.names)])), total_groups)
            yield [pa.array(groups), *(taken(column, rows) for column in columns)]

    return _written(schema, ordered())


def table_schema(
    kind: str, name: str, description: Mapping[str, Any], keys: KeyColumns, types: Mapping[str, pa.DataType]
) -> pa.Schema:
    """Of a state's file, with all that it says about itself."""
    header = StateHeader(FORMAT_VERSION, kind, name, description)
    fields = [pa.field(GROUP_COLUMN, pa.int32()), *keys.file_fields]
    fields += [pa.field(column, type) for column, type in types.items()]
    return pa.schema(fields, {_METADATA: msgspec.json.encode(header)})


def _written(schema: pa.Schema, columns: Iterator[list[pa.Array]]) -> Iterator[Buffer]:
    batches = (pa.RecordBatch.from_arrays(own, schema=schema) for own in columns)
    first = list(islice(batches, _BATCHES_AT_ONCE))
    if len(first) < _BATCHES_AT_ONCE:
        yield _at_once(schema, first)
        return
    outlet = _Outlet()
    with pa.ipc.new_file(pa.PythonFile(outlet, "w"), schema) as writer:
        for batch in chain(first, batches):
            writer.write_batch(batch)
            yield from outlet.taken()
    yield from outlet.taken()


def _at_once(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> memoryview:
    """The whole file: its bytes are copied once and come in one piece, which is what most layers of changes are."""
    measure = pa.MockOutputStream()
    _write_file(measure, schema, batches)
    room = pa.allocate_buffer(measure.size())
    _write_file(pa.FixedSizeBufferWriter(room), schema, batches)
    return memoryview(room)


def _write_file(sink: pa.NativeFile, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> None:
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


class _Outlet(io.RawIOBase):
    """A file of which the content is taken away while it is written."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, chunk: bytes) -> int:  # type: ignore[override]
        self._chunks.append(chunk)
        return len(chunk)

    def taken(self) -> list[bytes]:
        chunks, self._chunks = self._chunks, []
        return chunks


def _with_removals(
    columns: Mapping[str, pa.Array | pa.ChunkedArray], present: int, removed: int
) -> dict[str, pa.ChunkedArray]:
    padded = {
        name: pa.chunked_array([*_chunks(values), pa.nulls(removed, values.type)], values.type)
        for name, values in columns.items()
    }
    gone = np.repeat([False, True], [present, removed])
    return {**padded, REMOVED_COLUMN: pa.chunked_array([pa.array(gone)])}


def _chunks(values: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return values.chunks if isinstance(values, pa.ChunkedArray) else [values]


def present_and_removed(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """The rows of a batch that hold state, and those whose keys are gone."""
    if batch.schema.get_field_index(REMOVED_COLUMN) < 0:
        return batch, None
    gone = batch.column(REMOVED_COLUMN)
    return batch.filter(pc.invert(gone)), batch.filter(gone)


def read_table(part: RestoredPart, keys: KeyColumns, own: KeyGroupRange) -> tuple[StateHeader, list[pa.RecordBatch]]:
    """The rows of a part that belong to the key groups `own`; shares the part's memory where they lie together."""
    reader = pa.ipc.open_file(pa.py_buffer(part.read()))
    header = checked_header(part, reader.schema, keys)
    batches = []
    for number in range(reader.num_record_batches):
        batch = _owned(reader.get_batch(number), own)
        if batch.num_rows:
            batches.append(batch)
    return header, batches


def _owned(batch: pa.RecordBatch, own: KeyGroupRange) -> pa.RecordBatch:
    """The rows of these key groups; shares the batch's memory if they follow each other."""
    groups = batch.column(0).to_numpy()
    (rows,) = np.nonzero((groups >= own.start) & (groups < own.end))
    if len(rows) and rows[-1] - rows[0] >= len(rows):
        return batch.take(pa.array(rows))
    return batch.slice(rows[0] if len(rows) else 0, len(rows))


def key_columns_of(batch: pa.RecordBatch, keys: KeyColumns) -> list[pa.Array]:
    return batch.columns[1 : 1 + len(keys.names)]


def checked_header(part: RestoredPart, schema: pa.Schema, keys: KeyColumns) -> StateHeader:
    """What a part of this schema says about itself. Raises `StateMismatch` if it holds no keyed state, or that of
    another key."""
    metadata = (schema.metadata or {}).get(_METADATA)
    if metadata is None:
        raise StateMismatch(f"the part {part} holds no keyed state")
    check_version(part, msgspec.json.decode(metadata)["version"])
    stored = [(field.name, field.type) for field in schema if field.name.startswith(KEY_PREFIX)]
    declared = [(field.name, field.type) for field in keys.file_fields]
    if stored != declared:
        raise StateMismatch(
            f"the state {part.name!r} was stored under the key {_shown(stored)}, but the program keys the stream by "
            f"{_shown(declared)}: key it as before, or give the operator another uid to start with empty state"
        )
    return msgspec.json.decode(metadata, type=StateHeader)


def check_version(part: RestoredPart, found: object, known: int = FORMAT_VERSION) -> None:
    """Raises `StateMismatch` if the part was written in another format than this Penstock reads."""
    if found != known:
        raise StateMismatch(
            f"the state {part} is stored in format {found}, but this Penstock reads format {known}: restore it with "
            "the version of Penstock that wrote it, or with a newer one"
        )


def _shown(columns: list[tuple[str, pa.DataType]]) -> str:
    return ", ".join(f"{name.removeprefix('key.')}: {kind}" for name, kind in columns)
