"""The in-memory backend of keyed state: a map per state, snapshots in no time, restores from any writers.

A state of one flat value per key is kept in columns (see `columnmap`), any other in a hash map (see `layers`). A
snapshot takes a picture of every map, or of what changed in it: that is all that happens on the task's thread. The
picture becomes an Arrow file (see `tables`) on whatever thread calls `encode`. A restore reads, from the parts of
however many writers, the key groups that this subtask owns.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import partial

from penstock.core.handles import KeyGroupRange
from penstock.core.ids import Uid
from penstock.state.columnlog import ColumnLog
from penstock.state.columnmap import ColumnMap
from penstock.state.entries import encode_entries, named, take_up_table
from penstock.state.flat import flat_values
from penstock.state.keys import KeyColumns
from penstock.state.kinds import Cleaner, KeyedState
from penstock.state.layers import LayeredMap, Picture
from penstock.state.maplog import MapLog
from penstock.state.parts import Buffer, Encode, LoggedState, RestoredPart
from penstock.state.rocks.memory import check_installed
from penstock.state.stored import StoredState, stored_states


class KeyedBackend:
    """All keyed states of one operator's instance."""

    def __init__(self, uid: Uid, keys: KeyColumns, own: KeyGroupRange, total_groups: int) -> None:
        self._uid, self._keys, self._own, self._total = uid, keys, own, total_groups
        self.states: list[KeyedState] = []
        self.logs: list[LoggedState] = []
        self._maps: dict[str, LayeredMap | ColumnMap] = {}
        self._in_columns: list[ColumnMap] = []

    def add(self, state: KeyedState) -> None:
        self.states.append(state)
        values = flat_values(state.codec) if state.in_columns else None
        if values is None:
            layered = state.map = self._maps[state.name] = LayeredMap(state.codec.copy)
            self.logs.append(MapLog(state.name, self._own, [layered], partial(self._encoder, state)))
        else:
            entries = state.map = self._maps[state.name] = ColumnMap(
                self._keys, values, partial(named, state, self._keys)
            )
            self._in_columns.append(entries)
            self.logs.append(ColumnLog(state, entries, self._keys, self._own, self._total))

    def _encoder(self, state: KeyedState, pictures: Sequence[Picture]) -> Encode:
        return partial(_encode, state, self._keys, self._total, pictures[0], state.cleaner())

    def prefetch(self, keys: Collection[Hashable]) -> None:
        """What is not in columns is at hand."""
        for entries in self._in_columns:
            entries.prefetch(keys)

    def write_back(self) -> None:
        for entries in self._in_columns:
            entries.write_back()

    def settle(self) -> None:
        """Between batches: layers of the maps that no snapshot needs apart any more are merged."""
        for entries in self._maps.values():
            entries.settle()

    def close(self) -> None:
        """Nothing is held but memory."""

    def restore(self, parts: Sequence[RestoredPart]) -> None:
        """Reads the parts of all states, lower layers first."""
        for name, stored in stored_states(self._uid, self._maps, parts).items():
            self._restore(next(state for state in self.states if state.name == name), stored)
        self.write_back()

    def _restore(self, state: KeyedState, stored: StoredState) -> None:
        if stored.natives:
            check_installed()
            from penstock.state.rocks.reading import take_up_natives  # loads RocksDB

            take_up_natives(state, self._uid, self._keys, self._own, self._total, stored)
        for part in stored.tables:
            take_up_table(state, self._uid, self._keys, self._own, part)


def _encode(
    state: KeyedState, keys: KeyColumns, total_groups: int, picture: Picture, cleaner: Cleaner | None
) -> Iterable[Buffer]:
    changes = picture.since is not None
    return encode_entries(state, keys, total_groups, picture.items(), cleaner, changes=changes)
