"""The in-memory backend of keyed state: a hash map per state, snapshots in no time, restores from any writers.

A snapshot takes a picture of every map (see `layers`): that is all that happens on the task's thread. The picture
becomes an Arrow file (see `tables`) on whatever thread calls `encode`. A restore reads, from the parts of however many
writers, the key groups that this subtask owns.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

from penstock.core.handles import KeyGroupRange, PartKind
from penstock.core.ids import Uid
from penstock.state.codec import Codec, encode_in_runs
from penstock.state.errors import UnstorableValue
from penstock.state.keys import KeyColumns
from penstock.state.kinds import Cleaner, KeyedState
from penstock.state.layers import Picture
from penstock.state.parts import Buffer, CapturedPart, RestoredPart
from penstock.state.schema import fits, show
from penstock.state.tables import StateMismatch, encode_table, key_columns_of, read_table

_VALUE_COLUMN = "value"


class KeyedBackend:
    """All keyed states of one operator's instance."""

    def __init__(self, uid: Uid, keys: KeyColumns, own: KeyGroupRange, total_groups: int) -> None:
        self._uid, self._keys, self._own, self._total = uid, keys, own, total_groups
        self.states: list[KeyedState] = []

    def add(self, state: KeyedState) -> None:
        self.states.append(state)

    def settle(self) -> None:
        """Between batches: states whose last snapshot is written become plain maps again."""
        for state in self.states:
            state.map.settle()

    def capture(self) -> list[CapturedPart]:
        return [
            CapturedPart(
                state.name,
                PartKind.KEYED,
                partial(
                    _encode,
                    state.kind,
                    state.name,
                    state.codec,
                    self._keys,
                    self._total,
                    state.map.picture(),
                    state.cleaner(),
                ),
                key_groups=self._own,
            )
            for state in self.states
        ]

    def restore(self, parts: Sequence[RestoredPart]) -> None:
        """Reads the parts of all states. A stored state that is not declared any more is refused, not dropped."""
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
        if header.kind != state.kind or not fits(dict(header.description), state.codec.description):
            raise StateMismatch(
                f"operator {self._uid!r}: the state {state.name!r} was stored as {header.kind} state of "
                f"{show(dict(header.description))}, but is declared as {state.kind} state of "
                f"{show(state.codec.description)}: declare it as it was, or give the new state another name"
            )
        for batch in batches:
            keys = self._keys.from_arrow(key_columns_of(batch, self._keys))
            state.take_up(keys, state.codec.decode(batch.column(_VALUE_COLUMN)))


def _encode(
    kind: str,
    name: str,
    codec: Codec,
    keys: KeyColumns,
    total_groups: int,
    picture: Picture,
    cleaner: Cleaner | None,
) -> Sequence[Buffer]:
    entries = picture.items()
    if cleaner is not None:
        entries = cleaner(entries)
    raw_keys, values = list(entries), list(entries.values())
    try:
        column = encode_in_runs(codec, values)
    except UnstorableValue as error:
        raise _named(error, kind, name, codec, keys, raw_keys, values) from error
    key_columns = keys.to_arrow(raw_keys)
    return encode_table(kind, name, codec.description, keys, total_groups, key_columns, {_VALUE_COLUMN: column})


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
