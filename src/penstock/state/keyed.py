"""The in-memory backend of keyed state: a hash map per state, snapshots in no time, restores from any writers.

A snapshot takes a picture of every map, or of what changed in it (see `layers`): that is all that happens on the
task's thread. The picture becomes an Arrow file (see `tables`) on whatever thread calls `encode`. A restore reads, from
the parts of however many writers, the key groups that this subtask owns.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from typing import Any

from penstock.core.handles import KeyGroupRange
from penstock.core.ids import Uid
from penstock.state.codec import Codec, encode_in_runs
from penstock.state.errors import UnstorableValue
from penstock.state.keys import KeyColumns
from penstock.state.kinds import Cleaner, KeyedState
from penstock.state.layers import Picture
from penstock.state.maplog import MapLog, present_and_gone
from penstock.state.parts import Buffer, Encode, LoggedState, RestoredPart
from penstock.state.schema import show
from penstock.state.tables import StateMismatch, encode_table, key_columns_of, present_and_removed, read_table

_VALUE_COLUMN = "value"


class KeyedBackend:
    """All keyed states of one operator's instance."""

    def __init__(self, uid: Uid, keys: KeyColumns, own: KeyGroupRange, total_groups: int) -> None:
        self._uid, self._keys, self._own, self._total = uid, keys, own, total_groups
        self.states: list[KeyedState] = []
        self.logs: list[LoggedState] = []

    def add(self, state: KeyedState) -> None:
        self.states.append(state)
        self.logs.append(MapLog(state.name, self._own, [state.map], partial(self._encoder, state)))

    def _encoder(self, state: KeyedState, pictures: Sequence[Picture]) -> Encode:
        return partial(_encode, state, self._keys, self._total, pictures[0], state.cleaner())

    def settle(self) -> None:
        """Between batches: layers of the maps that no snapshot needs apart any more are merged."""
        for state in self.states:
            state.map.settle()

    def restore(self, parts: Sequence[RestoredPart]) -> None:
        """Reads the parts of all states, lower layers first. A stored state that is not declared any more is refused,
        not dropped."""
        declared = {state.name: state for state in self.states}
        for part in parts:
            if part.name not in declared:
                raise StateMismatch(
                    f"operator {self._uid!r}: the checkpoint holds a state {part.name!r} that is not declared any more "
                    f"(declared are {sorted(declared)}): declare it again, or give the operator another uid to start "
                    "with empty state"
                )
            self._restore(declared[part.name], part)

    def _restore(self, state: KeyedState, part: RestoredPart) -> None:
        header, batches = read_table(part, self._keys, self._own)
        decode = state.decoder(self._uid, header.kind, dict(header.description))
        for batch in batches:
            present, removed = present_and_removed(batch)
            keys = self._keys.from_arrow(key_columns_of(present, self._keys))
            state.take_up(keys, decode(present.column(_VALUE_COLUMN)))
            if removed is not None:
                for key in self._keys.from_arrow(key_columns_of(removed, self._keys)):
                    state.map.remove(key)


def _encode(
    state: KeyedState, keys: KeyColumns, total_groups: int, picture: Picture, cleaner: Cleaner | None
) -> Iterable[Buffer]:
    """Touches nothing of the state that changes: its name, kind and codec."""
    kind, name, codec = state.kind, state.name, state.codec
    entries, gone = present_and_gone(picture.items()) if picture.since is not None else (picture.items(), [])
    if cleaner is not None:
        left = cleaner(entries)
        if picture.since is not None:
            gone += [key for key in entries if key not in left]
        entries = left
    raw_keys, values = list(entries), list(entries.values())
    try:
        column = encode_in_runs(codec, values)
    except UnstorableValue as error:
        raise _named(error, kind, name, codec, keys, raw_keys, values) from error
    key_columns = keys.to_arrow(raw_keys + gone)
    columns = {_VALUE_COLUMN: column}
    return encode_table(kind, name, codec.description, keys, total_groups, key_columns, columns, len(gone))


def _named(
    error: UnstorableValue,
    kind: str,
    name: str,
    codec: Codec,
    keys: KeyColumns,
    raw_keys: Sequence[Hashable],
    values: Sequence[Any],
) -> UnstorableValue:
    """The error with the state and the key that it came from, found by looking at one value at a time."""
    for key, value in zip(raw_keys, values, strict=True):
        try:
            codec.encode([value])
        except UnstorableValue as reason:
            return UnstorableValue(
                f"the {kind} state {name!r}, declared as {show(codec.description)}, cannot be stored for the key "
                f"{keys.shown(key)!r}: {reason}"
            )
    return error
