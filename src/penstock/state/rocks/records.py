"""Entries of a state as records of RocksDB, and back.

    key     the key group (2 bytes, big-endian), then the key: the cell of its column, or for several columns a
            MessagePack array of their cells
    value   the cell of the state's value, in the form in which files of the state hold it (see `codec`)

So the entries of a range of key groups lie together, and equal keys have equal bytes. What a cell is says `cells`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.types as pat

from penstock.core.handles import KeyGroupRange
from penstock.kernels.hashing import key_groups_of_hashes
from penstock.state.cells import Cells, cells_of
from penstock.state.keys import KeyColumns

GROUP_BYTES: Final = 2

_packed = msgspec.msgpack.Encoder().encode
_unpacked = msgspec.msgpack.Decoder(list[bytes]).decode


def first_key(group: int) -> bytes:
    """No key of the group, or of one after it, comes before this; all of those before it do."""
    return group.to_bytes(GROUP_BYTES, "big")


def bounds(groups: KeyGroupRange) -> tuple[bytes, bytes]:
    """Where the keys of these groups begin, and where they have ended."""
    return first_key(groups.start), first_key(groups.end)


class Records:
    """Of one state: between keys and values, and bytes."""

    def __init__(self, keys: KeyColumns, total_groups: int, value_type: pa.DataType) -> None:
        self._keys, self._total = keys, total_groups
        self._parts = [_KeyCells(kind) if pat.is_floating(kind) else cells_of(kind) for kind in keys.types]
        self.values: Cells = cells_of(value_type)

    def keys(self, keys: Sequence[Hashable]) -> list[bytes]:
        columns = self._keys.to_arrow(keys)
        groups = key_groups_of_hashes(self._keys.hashes(columns), self._total).astype(">u2").tobytes()
        cells = [part.dump(column) for part, column in zip(self._parts, columns, strict=True)]
        whole = cells[0] if len(cells) == 1 else [_packed(row) for row in zip(*cells, strict=True)]
        places = range(0, len(groups), GROUP_BYTES)
        return [groups[at : at + GROUP_BYTES] + cell for at, cell in zip(places, whole, strict=True)]

    def key_columns(self, keys: Sequence[bytes]) -> list[pa.Array]:
        """The columns of keys as they are stored."""
        whole = [key[GROUP_BYTES:] for key in keys]
        if len(self._parts) == 1:
            return [self._parts[0].load(whole)]
        rows = list(map(_unpacked, whole))
        return [part.load([row[place] for row in rows]) for place, part in enumerate(self._parts)]

    def raw_keys(self, keys: Sequence[bytes]) -> list[Any]:
        return self._keys.from_arrow(self.key_columns(keys))


class _KeyCells:
    """Of floating-point key columns: both zeros are one key. (All NaNs are one already, see `keys`.)"""

    def __init__(self, kind: pa.DataType) -> None:
        self._cells = cells_of(kind)
        width = kind.bit_width // 8
        self._same = {bytes(width - 1) + b"\x80": bytes(width)}

    def dump(self, column: pa.Array) -> list[bytes]:
        same = self._same
        return [same.get(cell, cell) for cell in self._cells.dump(column)]

    def load(self, cells: Sequence[bytes]) -> pa.Array:
        return self._cells.load(cells)
