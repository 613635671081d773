"""The in-memory backend of keyed state: a hash map per state, snapshots in no time, restores from any writers.

A snapshot takes a picture of every map, or of what changed in it (see `layers`): that is all that happens on the
task's thread. The picture becomes an Arrow file (see `tables`) on whatever thread calls `encode`. A restore reads, from
the parts of however many writers, the key groups that this subtask owns.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import partial

from penstock.core.barrier import Barrier
from penstock.core.handles import KeyGroupRange, PartKind
from penstock.core.ids import CheckpointId, Uid
from penstock.core.settings import LayerSettings
from penstock.state.chain import Chain
from penstock.state.deltas import take
from penstock.state.entries import encode_entries, take_up_table
from penstock.state.keys import KeyColumns
from penstock.state.kinds import Cleaner, KeyedState
from penstock.state.layers import LayeredMap, Picture
from penstock.state.parts import Buffer, CapturedPart, OperatorSnapshot, RestoredPart, UnchangedPart
from penstock.state.rocks.memory import check_installed
from penstock.state.stored import StoredState, stored_states


class KeyedBackend:
    """All keyed states of one operator's instance."""

    def __init__(
        self, uid: Uid, keys: KeyColumns, own: KeyGroupRange, total_groups: int, layers: LayerSettings
    ) -> None:
        self._uid, self._keys, self._own, self._total, self._layers = uid, keys, own, total_groups, layers
        self.states: list[KeyedState] = []
        self._maps: dict[str, LayeredMap] = {}
        self._chains: dict[str, Chain] = {}

    def add(self, state: KeyedState) -> None:
        self.states.append(state)
        state.map = self._maps[state.name] = LayeredMap(state.codec.copy)
        self._chains[state.name] = Chain(self._layers)

    def prefetch(self, keys: Collection[Hashable]) -> None:
        """Everything is at hand."""

    def settle(self) -> None:
        """Between batches: layers of the maps that no snapshot needs apart any more are merged."""
        for entries in self._maps.values():
            entries.settle()

    def close(self) -> None:
        """Nothing is held but memory."""

    def capture(self, barrier: Barrier) -> OperatorSnapshot:
        parts: list[CapturedPart] = []
        unchanged: list[UnchangedPart] = []
        for state in self.states:
            taken = take([self._maps[state.name]], self._chains[state.name], barrier)
            if taken.pictures:
                encode = partial(_encode, state, self._keys, self._total, taken.pictures[0], state.cleaner())
                parts.append(CapturedPart(state.name, PartKind.KEYED, encode, key_groups=self._own, base=taken.base))
            elif taken.base is not None:
                unchanged.append(UnchangedPart(state.name, taken.base))
        return OperatorSnapshot(parts, unchanged=unchanged)

    def restore(self, parts: Sequence[RestoredPart], base: CheckpointId | None) -> None:
        """Reads the parts of all states, lower layers first. `base`: the checkpoint that they come from, if later
        snapshots may be built upon it."""
        stored = stored_states(self._uid, self._maps, parts)
        for state in self.states:
            if state.name in stored:
                self._restore(state, stored[state.name], base)

    def _restore(self, state: KeyedState, stored: StoredState, base: CheckpointId | None) -> None:
        if stored.natives:
            check_installed()
            from penstock.state.rocks.reading import take_up_natives  # loads RocksDB

            take_up_natives(state, self._uid, self._keys, self._own, self._total, stored)
        changes = 0
        for part in stored.tables:
            rows = take_up_table(state, self._uid, self._keys, self._own, part)
            changes += rows if part.layer else 0
        if base is not None and not stored.natives:
            self._maps[state.name].freeze(base)
            self._chains[state.name].restored(base, len(stored.tables), changes)


def _encode(
    state: KeyedState, keys: KeyColumns, total_groups: int, picture: Picture, cleaner: Cleaner | None
) -> Iterable[Buffer]:
    changes = picture.since is not None
    return encode_entries(state, keys, total_groups, picture.items(), cleaner, changes=changes)
