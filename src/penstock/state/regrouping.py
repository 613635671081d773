"""Keyed state as a file, divided into more key groups.

A key's group is made of the uppermost bits of its hash, so that with more groups every group falls apart into several.
The rows of each record batch are put into the order of the new groups; otherwise the file stays as it is. One batch at
a time is in memory.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from penstock.kernels.hashing import hash_columns
from penstock.kernels.partition import rows_by_group
from penstock.state.keys import KEY_PREFIX
from penstock.state.tables import GROUP_COLUMN

_METADATA = b"penstock.state"


class NotRegroupable(Exception):
    """The bytes are no keyed state that could be divided anew."""


def regrouped(file: BinaryIO, key: int, former: int, total: int) -> Iterator[bytes]:
    """The bytes of the file with `total` key groups instead of `former`, as they grow. `key`: how many columns the key
    has."""
    try:
        reader = pa.ipc.open_file(pa.PythonFile(file, "r"))
    except pa.ArrowInvalid as error:
        raise NotRegroupable(f"it is no Arrow IPC file: {error}") from None
    _check_columns(reader.schema, key)
    outlet = _Outlet()
    with pa.ipc.new_file(pa.PythonFile(outlet, "w"), reader.schema) as writer:
        for number in range(reader.num_record_batches):
            writer.write_batch(_reordered(reader.get_batch(number), key, former, total))
            yield from outlet.taken()
    yield from outlet.taken()


def _check_columns(schema: pa.Schema, key: int) -> None:
    names = schema.names[: 1 + key]
    fits = key > 0 and names[0] == GROUP_COLUMN and all(name.startswith(KEY_PREFIX) for name in names[1:])
    if not fits or _METADATA not in (schema.metadata or {}):
        raise NotRegroupable(f"its columns are {schema.names}, not those of state under a key of {key} column(s)")


def _reordered(batch: pa.RecordBatch, key: int, former: int, total: int) -> pa.RecordBatch:
    rows, groups = rows_by_group(hash_columns(batch.columns[1 : 1 + key]), total)
    ordered = batch.take(pa.array(rows))
    if not np.array_equal(ordered.column(0).to_numpy(), groups // (total // former)):
        raise NotRegroupable("its rows are not in the key groups that their keys belong to")
    return ordered.set_column(0, batch.schema.field(0), pa.array(groups))


class _Outlet(io.RawIOBase):
    """What Arrow has written since it was last asked."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, chunk: Any) -> int:
        self._chunks.append(bytes(chunk))
        return len(chunk)

    def taken(self) -> list[bytes]:
        chunks, self._chunks = self._chunks, []
        return chunks
