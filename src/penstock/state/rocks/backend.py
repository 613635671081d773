"""The RocksDB backend of keyed state: a database per state, checkpoints of its own files, restores from anything.

A checkpoint names the files that a state's database consisted of when it was last merged into, and holds the changes
since (see `map`); files that the base of the checkpoint has are not written again. A savepoint is written in the form
that all backends read (`export`).

A restore puts the files back, if they are this subtask's own and hold what is declared now. Otherwise records are
copied as they are (another parallelism) or read and written anew (another type, another backend).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial

from penstock.core.barrier import Barrier, Purpose
from penstock.core.handles import KeyGroupRange, PartKind
from penstock.core.ids import CheckpointId, Uid
from penstock.core.settings import LayerSettings, RocksDBSettings
from penstock.state.entries import take_up_table
from penstock.state.expiring import ExpiringState
from penstock.state.keys import KeyColumns
from penstock.state.kinds import KeyedState
from penstock.state.parts import CapturedPart, OperatorSnapshot, RestoredPart, UnchangedPart
from penstock.state.rocks.export import Export, encode_layers
from penstock.state.rocks.map import RocksMap, RocksPicture
from penstock.state.rocks.memory import shared_memory
from penstock.state.rocks.native import Native, captured_manifest, captured_tables
from penstock.state.rocks.reading import take_up
from penstock.state.rocks.sweeping import Rounds
from penstock.state.rocks.workdir import workdir
from penstock.state.stored import StoredState, manifest_name, native_name, stored_states


@dataclass(frozen=True)
class _Named:
    """What a checkpoint named of one state."""

    tables: frozenset[str]
    identity: tuple[int, ...] = ()


class RocksBackend:
    """All keyed states of one operator's instance."""

    def __init__(
        self,
        uid: Uid,
        subtask: int,
        keys: KeyColumns,
        own: KeyGroupRange,
        total_groups: int,
        layers: LayerSettings,
        settings: RocksDBSettings,
        background: Executor | None = None,
    ) -> None:
        self._uid, self._subtask, self._keys, self._own, self._total = uid, subtask, keys, own, total_groups
        self._layers = layers
        self._workdir, self._memory = workdir(settings.directory), shared_memory(settings.memory)
        self._background = background or _threads()
        self.states: list[KeyedState] = []
        self._maps: dict[str, RocksMap] = {}
        self._named: dict[CheckpointId, dict[str, _Named]] = {}
        """What checkpoints that may still be built upon named of each state."""

    def add(self, state: KeyedState) -> None:
        entries = RocksMap(state, self._keys, self._total, self._workdir, self._memory, self._background)
        state.map = self._maps[state.name] = entries
        if isinstance(state, ExpiringState):
            state.watch_with(partial(Rounds, entries))
        self.states.append(state)

    def prefetch(self, keys: Collection[Hashable]) -> None:
        """These keys will be asked for next: reads them at once, not one by one."""
        for entries in self._maps.values():
            entries.prefetch(keys)

    def settle(self) -> None:
        for entries in self._maps.values():
            entries.settle()

    def close(self) -> None:
        for entries in self._maps.values():
            entries.close()

    # ---- snapshots ----
    def capture(self, barrier: Barrier) -> OperatorSnapshot:
        pictures = {state.name: self._maps[state.name].picture() for state in self.states}
        if barrier.purpose is Purpose.SAVEPOINT:
            exports = [Export(s, self._keys, self._total, self._memory, pictures[s.name]) for s in self.states]
            return OperatorSnapshot([part for export in exports for part in export.parts(self._own)])
        base = barrier.base if self._layers.incremental else None
        if base is not None:
            self._named = {known: named for known, named in self._named.items() if known >= base}
        before = self._named.get(base, {}) if base is not None else {}
        parts: list[CapturedPart] = []
        unchanged: list[UnchangedPart] = []
        for state in self.states:
            captured, same = self._native(state, pictures[state.name], before.get(state.name))
            parts += captured
            unchanged += [UnchangedPart(name, base) for name in same if base is not None]
        self._named[barrier.checkpoint] = {name: _named(picture) for name, picture in pictures.items()}
        self._merge_large()
        return OperatorSnapshot(parts, unchanged=unchanged)

    def _native(
        self, state: KeyedState, picture: RocksPicture, before: _Named | None
    ) -> tuple[list[CapturedPart], list[str]]:
        """What is to be written of a state, and the names of the parts that are as they were before."""
        known = before or _Named(frozenset())
        parts: list[CapturedPart] = []
        same: list[str] = []
        if picture.linked is not None:
            tables = captured_tables(state.name, self._own, picture.linked)
            parts += [part for table, part in tables.items() if table not in known.tables]
            same += [native_name(state.name, table) for table in tables if table in known.tables]
            if known.identity[:1] == picture.identity[:1]:
                same.append(manifest_name(state.name))
            else:
                parts.append(captured_manifest(state, self._keys, self._own, picture.linked))
        if picture.layers or picture.linked is None:
            if known.identity == picture.identity:
                same.append(state.name)
            else:
                parts.append(self._changes(state, picture))
        return parts, same

    def _changes(self, state: KeyedState, picture: RocksPicture) -> CapturedPart:
        encode = partial(encode_layers, state, self._keys, self._total, picture, state.cleaner())
        return CapturedPart(state.name, PartKind.KEYED, encode, key_groups=self._own)

    def _merge_large(self) -> None:
        """What was captured need not be captured again, if it is merged before the next snapshot. A few entries are
        better written again than made a table file of their own."""
        for entries in self._maps.values():
            if entries.waiting >= self._layers.small:
                entries.merge()

    # ---- restoring ----
    def restore(self, parts: Sequence[RestoredPart], base: CheckpointId | None) -> None:
        """`parts` lower layers first. `base`: the checkpoint that they come from, if later snapshots may be built
        upon it."""
        stored = stored_states(self._uid, self._maps, parts)
        named: dict[str, _Named] = {}
        for state in self.states:
            if state.name in stored:
                kept = self._restore(state, stored[state.name])
                if kept is not None:
                    named[state.name] = kept
        if base is not None:
            self._named[base] = named

    def _restore(self, state: KeyedState, stored: StoredState) -> _Named | None:
        """What of the restored files is still in use."""
        entries, named = self._maps[state.name], None
        natives = [Native.of(state.name, parts) for parts in stored.natives.values()]
        for native in natives:
            header = native.header(self._keys)
            if not state.reads_as_is(header.kind, dict(header.description)):
                place, memory = self._workdir, self._memory
                take_up(state, self._uid, self._keys, self._own, self._total, native, place, memory, entries.settle)
            elif len(natives) == 1 and native.is_of(self._subtask, self._own):
                entries.open_with(native.files())
                named = _Named(frozenset(native.manifest.tables))
            else:
                entries.load(native.records(self._own, self._workdir, self._memory))
        entries.loaded()
        for part in stored.tables:
            take_up_table(state, self._uid, self._keys, self._own, part, entries.settle)
        return named


def _named(picture: RocksPicture) -> _Named:
    tables = () if picture.linked is None else picture.linked.tables
    return _Named(frozenset(tables), picture.identity)


@cache
def _threads() -> Executor:
    """Of the process; merges of different states may run at once."""
    return ThreadPoolExecutor(2, thread_name_prefix="merging into RocksDB")
