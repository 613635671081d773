"""The entries of one keyed state as a part: encoded whole or as changes, and read back into the state.

What all backends have in common: they differ in where entries are kept, not in what a savepoint of them looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import pyarrow as pa

from penstock.core.handles import KeyGroupRange
from penstock.core.ids import Uid
from penstock.state.codec import CHUNK
from penstock.state.columnmap import ColumnMap
from penstock.state.errors import UnstorableValue
from penstock.state.keys import KeyColumns
from penstock.state.kinds import Cleaner, KeyedState
from penstock.state.maplog import present_and_gone
from penstock.state.parts import Buffer, RestoredPart
from penstock.state.schema import show
from penstock.state.tables import REMOVED_COLUMN, encode_table, key_columns_of, present_and_removed, read_table

T = TypeVar("T")


def encode_entries(
    state: KeyedState,
    keys: KeyColumns,
    total_groups: int,
    entries: Mapping[Any, Any],
    cleaner: Cleaner | None,
    *,
    changes: bool,
) -> Iterable[Buffer]:
    """A part of all entries, or of changes, with marks for those that are gone. Touches nothing of the state that
    changes: its name, kind and codec."""
    entries, gone = present_and_gone(entries) if changes else (entries, [])
    if cleaner is not None:
        left = cleaner(entries)
        if changes:
            gone += [key for key in entries if key not in left]
        entries = left
    raw_keys, values = list(entries), list(entries.values())
    column = pa.chunked_array(encoded_values(state, keys, raw_keys, values), state.codec.arrow_type)
    key_columns, columns = keys.to_arrow(raw_keys + gone), dict(zip(state.columns, state.spread(column), strict=True))
    description = state.codec.description
    return encode_table(state.kind, state.name, description, keys, total_groups, key_columns, columns, len(gone))


def encoded_values(
    state: KeyedState, keys: KeyColumns, raw_keys: Sequence[Hashable], values: Sequence[Any]
) -> list[pa.Array]:
    """Encodes many values, in runs, not to hold the interpreter's lock for long at a time. What is wrong with a value
    is said with its key."""
    try:
        return [state.codec.encode(values[start : start + CHUNK]) for start in range(0, len(values), CHUNK)]
    except UnstorableValue as error:
        raise named(state, keys, error, raw_keys, values) from error


def named(
    state: KeyedState, keys: KeyColumns, error: UnstorableValue, raw_keys: Sequence[Hashable], values: Sequence[Any]
) -> UnstorableValue:
    """The error with the state and the key that it came from, found by looking at one value at a time."""
    codec = state.codec
    for key, value in zip(raw_keys, values, strict=True):
        try:
            codec.encode([value])
        except UnstorableValue as reason:
            return UnstorableValue(
                f"the {state.kind} state {state.name!r}, declared as {show(codec.description)}, cannot be stored for "
                f"the key {keys.shown(key)!r}: {reason}"
            )
    return error


def take_up_table(
    state: KeyedState,
    uid: Uid,
    keys: KeyColumns,
    own: KeyGroupRange,
    part: RestoredPart,
    then: Callable[[], None] = lambda: None,
) -> int:
    """Puts what a part holds of these key groups into the state; calls `then` from time to time. Returns how many rows
    there were."""
    header, batches = read_table(part, keys, own)
    rows = sum(batch.num_rows for batch in batches)
    if isinstance(state.map, ColumnMap) and state.reads_as_is(header.kind, dict(header.description)):
        for batch in batches:
            gone = batch.column(REMOVED_COLUMN) if REMOVED_COLUMN in batch.schema.names else None
            state.map.take_up_columns(key_columns_of(batch, keys), state.gathered(batch), gone, rows)
        return rows
    decode = state.decoder(uid, header.kind, dict(header.description))
    for batch in batches:
        present, removed = present_and_removed(batch)
        raw_keys = keys.from_arrow(key_columns_of(present, keys))
        state.take_up(raw_keys, decode(state.gathered(present)))
        if removed is not None:
            for key in keys.from_arrow(key_columns_of(removed, keys)):
                state.map.remove(key)
        then()
    return rows


def in_runs(items: Iterable[T], length: int = CHUNK) -> Iterator[list[T]]:
    """So many at a time."""
    source = iter(items)
    while run := list(islice(source, length)):
        yield run
