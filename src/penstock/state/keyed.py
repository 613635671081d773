"""The in-memory backend of keyed state: a hash map per state, snapshots in no time, restores from any writers.

A snapshot takes a picture of every map, or of what changed in it (see `layers`): that is all that happens on the
task's thread. The picture becomes an Arrow file (see `tables`) on whatever thread calls `encode`. A restore reads, from
the parts of however many writers, the key groups that this subtask owns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from typing import Any

from penstock.core.barrier import Barrier
from penstock.core.handles import KeyGroupRange, PartKind
from penstock.core.ids import CheckpointId, Uid
from penstock.core.settings import LayerSettings
from penstock.state.chain import Chain
from penstock.state.codec import Codec, encode_in_runs
from penstock.state.deltas import present_and_gone, take
from penstock.state.errors import UnstorableValue
from penstock.state.keys import KeyColumns
from penstock.state.kinds import Cleaner, KeyedState
from penstock.state.layers import Picture
from penstock.state.parts import Buffer, CapturedPart, OperatorSnapshot, RestoredPart, UnchangedPart
from penstock.state.schema import show
from penstock.state.tables import StateMismatch, encode_table, key_columns_of, present_and_removed, read_table

_VALUE_COLUMN = "value"


class KeyedBackend:
    """All keyed states of one operator's instance."""

    def __init__(
        self, uid: Uid, keys: KeyColumns, own: KeyGroupRange, total_groups: int, layers: LayerSettings
    ) -> None:
        self._uid, self._keys, self._own, self._total, self._layers = uid, keys, own, total_groups, layers
        self.states: list[KeyedState] = []
        self._chains: dict[str, Chain] = {}

    def add(self, state: KeyedState) -> None:
        self.states.append(state)
        self._chains[state.name] = Chain(self._layers)

    def settle(self) -> None:
        """Between batches: layers of the maps that no snapshot needs apart any more are merged."""
        for state in self.states:
            state.map.settle()

    def capture(self, barrier: Barrier) -> OperatorSnapshot:
        parts: list[CapturedPart] = []
        unchanged: list[UnchangedPart] = []
        for state in self.states:
            taken = take([state.map], self._chains[state.name], barrier)
            if taken.pictures:
                encode = partial(_encode, state, self._keys, self._total, taken.pictures[0], state.cleaner())
                parts.append(CapturedPart(state.name, PartKind.KEYED, encode, key_groups=self._own, base=taken.base))
            elif taken.base is not None:
                unchanged.append(UnchangedPart(state.name, taken.base))
        return OperatorSnapshot(parts, unchanged=unchanged)

    def restore(self, parts: Sequence[RestoredPart], base: CheckpointId | None) -> None:
        """Reads the parts of all states, lower layers first. A stored state that is not declared any more is refused,
        not dropped. `base`: the checkpoint that they come from, if later snapshots may be built upon it."""
        declared = {state.name: state for state in self.states}
        layers: Counter[str] = Counter()
        changes: Counter[str] = Counter()
        for part in parts:
            if part.name not in declared:
                raise StateMismatch(
                    f"operator {self._uid!r}: the checkpoint holds a state {part.name!r} that is not declared any more "
                    f"(declared are {sorted(declared)}): declare it again, or give the operator another uid to start "
                    "with empty state"
                )
            rows = self._restore(declared[part.name], part)
            layers[part.name] += 1
            changes[part.name] += rows if part.layer else 0
        if base is not None:
            for name in layers:
                declared[name].map.freeze(base)
                self._chains[name].restored(base, layers[name], changes[name])

    def _restore(self, state: KeyedState, part: RestoredPart) -> int:
        """Returns how many rows there were."""
        header, batches = read_table(part, self._keys, self._own)
        decode = state.decoder(self._uid, header.kind, dict(header.description))
        for batch in batches:
            present, removed = present_and_removed(batch)
            keys = self._keys.from_arrow(key_columns_of(present, self._keys))
            state.take_up(keys, decode(present.column(_VALUE_COLUMN)))
            if removed is not None:
                for key in self._keys.from_arrow(key_columns_of(removed, self._keys)):
                    state.map.remove(key)
        return sum(batch.num_rows for batch in batches)


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
