"""The RocksDB backend of keyed state: a database per state, stored as its own files, restored from anything.

A whole state is the files that its database consisted of when it was last merged into, and the changes since (see
`map`); of the files, those that are in the store already are not written again. For a savepoint it is written in the
form that all backends read (`export`).

A restore puts the files back, if they are this subtask's own and hold what is declared now. Otherwise records are
copied as they are (another parallelism) or read and written anew (another type, another backend).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache, partial

from penstock.core.handles import KeyGroupRange
from penstock.core.ids import Cut, Uid
from penstock.core.settings import RocksDBSettings
from penstock.state.entries import take_up_table
from penstock.state.expiring import ExpiringState
from penstock.state.keys import KeyColumns
from penstock.state.kinds import KeyedState
from penstock.state.parts import Encode, LoggedState, Piece, RestoredPart
from penstock.state.rocks import native
from penstock.state.rocks.export import Export, encode_layers
from penstock.state.rocks.map import RocksMap, RocksPicture
from penstock.state.rocks.memory import SharedMemory, shared_memory
from penstock.state.rocks.native import Native
from penstock.state.rocks.reading import take_up
from penstock.state.rocks.sweeping import Rounds
from penstock.state.rocks.workdir import workdir
from penstock.state.stored import StoredState, stored_states


class RocksBackend:
    """All keyed states of one operator's instance."""

    def __init__(
        self,
        uid: Uid,
        subtask: int,
        keys: KeyColumns,
        own: KeyGroupRange,
        total_groups: int,
        settings: RocksDBSettings,
    ) -> None:
        self._uid, self._subtask, self._keys, self._own, self._total = uid, subtask, keys, own, total_groups
        self._workdir, self._memory = workdir(settings.directory), shared_memory(settings.memory)
        self.states: list[KeyedState] = []
        self.logs: list[LoggedState] = []
        self._maps: dict[str, RocksMap] = {}

    def add(self, state: KeyedState) -> None:
        entries = RocksMap(state, self._keys, self._total, self._workdir, self._memory, _threads())
        state.map = self._maps[state.name] = entries
        if isinstance(state, ExpiringState):
            state.watch_with(partial(Rounds, entries))
        self.states.append(state)
        self.logs.append(_RocksLog(state, entries, self._keys, self._own, self._total, self._memory))

    def prefetch(self, keys: Collection[Hashable]) -> None:
        """Reads them at once, not one by one."""
        for entries in self._maps.values():
            entries.prefetch(keys)

    def write_back(self) -> None:
        """What was changed is where it belongs."""

    def settle(self) -> None:
        for entries in self._maps.values():
            entries.settle()

    def close(self) -> None:
        for entries in self._maps.values():
            entries.close()

    def restore(self, parts: Sequence[RestoredPart]) -> None:
        stored = stored_states(self._uid, self._maps, parts)
        for state in self.states:
            if state.name in stored:
                self._restore(state, stored[state.name])

    def _restore(self, state: KeyedState, stored: StoredState) -> None:
        entries = self._maps[state.name]
        natives = [Native.of(parts) for parts in stored.natives.values()]
        for files in natives:
            header = files.header(self._keys)
            if not state.reads_as_is(header.kind, dict(header.description)):
                place, memory = self._workdir, self._memory
                take_up(state, self._uid, self._keys, self._own, self._total, files, place, memory, entries.settle)
            elif len(natives) == 1 and files.is_of(self._subtask, self._own):
                entries.open_with(files.manifest.database, files.files())
            else:
                entries.load(files.records(self._own, self._workdir, self._memory))
        entries.loaded()
        for part in stored.tables:
            take_up_table(state, self._uid, self._keys, self._own, part, entries.settle)


class _RocksLog:
    """Implements `LoggedState` for one state."""

    def __init__(
        self,
        state: KeyedState,
        entries: RocksMap,
        keys: KeyColumns,
        own: KeyGroupRange,
        total_groups: int,
        memory: SharedMemory,
    ) -> None:
        self.name, self.key_groups = state.name, own
        self._state, self._map, self._keys, self._total, self._memory = state, entries, keys, total_groups, memory

    @property
    def size(self) -> int:
        return self._map.size

    def mark(self, cut: Cut, floor: Cut) -> None:
        """`floor` is of no use here: what is merged into the database goes, durable or not."""
        self._map.mark(cut)

    def changed_since(self, cut: Cut) -> int | None:
        return self._map.changed_since(cut)

    def changes(self, since: Cut) -> Encode:
        return self._encoding(self._map.picture(since), alone=False)

    def whole(self, portable: bool) -> Sequence[Piece]:
        picture = self._map.picture()
        if portable:
            return Export(self._state, self._keys, self._total, self._memory, picture).pieces(self.key_groups)
        if picture.linked is None:
            return [Piece(self._encoding(picture, alone=True))] if picture.layers else []
        files = native.pieces(self._state, self._keys, picture.linked)
        return [*files, Piece(self._encoding(picture, alone=False))] if picture.layers else files

    def _encoding(self, picture: RocksPicture, alone: bool) -> Encode:
        cleaner = self._state.cleaner()
        return partial(encode_layers, self._state, self._keys, self._total, picture, cleaner, alone=alone)


@cache
def _threads() -> Executor:
    """Of the process; merges of different states may run at once."""
    return ThreadPoolExecutor(2, thread_name_prefix="merging into RocksDB")
