"""A state in RocksDB as files of keyed state: what a savepoint holds, so that every backend restores from it.

It is written a batch at a time, from the linked files and the changes on top of them, and never all in memory. A large
state becomes several files, each of some of the key groups, so that whoever restores need not have all in memory
either.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from penstock.core.handles import KeyGroupRange
from penstock.state.entries import encode_entries, encoded_values, in_runs
from penstock.state.keys import KeyColumns
from penstock.state.kinds import Cleaner, KeyedState
from penstock.state.layers import REMOVED
from penstock.state.parts import Buffer, Piece
from penstock.state.rocks.database import LinkedFiles, Record
from penstock.state.rocks.map import RocksPicture
from penstock.state.rocks.memory import SharedMemory
from penstock.state.rocks.records import Records, bounds
from penstock.state.tables import encode_batches, table_schema

FILE_SIZE: Final = 64 << 20
"""Bytes of RocksDB's (compressed) files that become one file of keyed state, if there are enough key groups."""
_ROWS: Final = 16_384


def encode_layers(
    state: KeyedState,
    keys: KeyColumns,
    total_groups: int,
    picture: RocksPicture,
    cleaner: Cleaner | None,
    *,
    alone: bool = True,
) -> Iterable[Buffer]:
    """What is in dicts: changes to something, or if they stand alone, everything."""
    changes = picture.changes()
    if alone:
        changes = {key: value for key, value in changes.items() if value is not REMOVED}
    return encode_entries(state, keys, total_groups, changes, cleaner, changes=not alone)


class Export:
    """Of one state as it was."""

    def __init__(
        self, state: KeyedState, keys: KeyColumns, total_groups: int, memory: SharedMemory, picture: RocksPicture
    ) -> None:
        self._state, self._keys, self._total = state, keys, total_groups
        self._memory, self._picture = memory, picture
        self._cleaner: Cleaner | None = state.cleaner()
        self._records = Records(keys, total_groups, state.codec.arrow_type)
        self._changes: dict[bytes, tuple[Any, Any]] | None = None

    def pieces(self, own: KeyGroupRange) -> list[Piece]:
        linked = self._picture.linked
        if linked is None:
            return [Piece(partial(encode_layers, self._state, self._keys, self._total, self._picture, self._cleaner))]
        files = min(max(1, linked.size // FILE_SIZE), own.end - own.start)
        starts = [own.start + (own.end - own.start) * place // files for place in range(files + 1)]
        name = uuid.uuid4().hex
        return [
            Piece(partial(self._encode, linked, KeyGroupRange(start, end)), f"{name}-{start}")
            for start, end in pairwise(starts)
        ]

    def _encode(self, linked: LinkedFiles, groups: KeyGroupRange) -> Iterable[Buffer]:
        state = self._state
        schema = table_schema(state.kind, state.name, state.codec.description, self._keys, state.columns)
        return encode_batches(schema, self._keys, self._total, self._batches(linked, groups))

    def _batches(self, linked: LinkedFiles, groups: KeyGroupRange) -> Iterator[Sequence[pa.Array]]:
        start, end = bounds(groups)
        changes = self._changes_by_record()
        for run in in_runs(linked.scan(self._memory, start, end), _ROWS):
            kept = [record for record in run if record[0] not in changes]
            if kept:
                yield self._stored_columns(kept)
        changed = [entry for key, entry in changes.items() if start <= key < end and entry[1] is not REMOVED]
        for entries in in_runs(changed, _ROWS):
            yield self._columns(dict(entries))

    def _stored_columns(self, run: Sequence[Record]) -> Sequence[pa.Array]:
        """Without making Python values of them, if nothing has to be looked at."""
        keys = self._records.key_columns([key for key, _ in run])
        column = self._records.values.load([cell for _, cell in run])
        if self._cleaner is None:
            return [*keys, *self._state.spread(column)]
        return self._columns(dict(zip(self._keys.from_arrow(keys), self._state.codec.decode(column), strict=True)))

    def _columns(self, entries: dict[Any, Any]) -> Sequence[pa.Array]:
        left = entries if self._cleaner is None else self._cleaner(entries)
        keys, values = list(left), list(left.values())
        chunks = encoded_values(self._state, self._keys, keys, values)
        column = pa.concat_arrays(chunks) if chunks else pa.array([], self._state.codec.arrow_type)
        return [*self._keys.to_arrow(keys), *self._state.spread(column)]

    def _changes_by_record(self) -> dict[bytes, tuple[Any, Any]]:
        """What the layers say, by the keys that the database has. Made once for all files, which are written one after
        another."""
        if self._changes is None:
            entries = list(self._picture.changes().items())
            keys = self._records.keys([key for key, _ in entries])
            self._changes = dict(zip(keys, entries, strict=True))
        return self._changes
