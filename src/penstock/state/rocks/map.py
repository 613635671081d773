"""A map whose entries are in a RocksDB, but for the latest changes: pictures in no time, as of the map in memory.

Theory of operation. As in `layers`, the map is a stack: one live dict on top, frozen ones below, which never change
again. What they all stand on is not a dict but a database. Frozen layers are merged into it by another thread, which
then links the database's files (`LinkedFiles`). When both is done, the map drops these layers and has a new picture of
the database. So at any time the newest linked files and the layers above them are the whole state: a capture names the
files and takes the layers, and nothing has to be flushed, copied or waited for.

A layer carries the number of the cut up to which it goes. The changes since a cut are the layers with higher numbers,
as long as none of those has been dropped.

The linked files may hold more than the layers that were merged: a layer above them that is on its way into the
database may already be there in part. That does no harm, since it is above them: it holds values, not steps.

At most so many entries wait in dicts as memory allows (`Share`); beyond that the map waits for the merging thread.

Reading a value that can change in place puts it into the live layer, as it may be changed there; what a frozen layer
has is copied for that. Values that were read for a batch (`prefetch`) are kept until the next one.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Final

from penstock.state.entries import encoded_values, in_runs
from penstock.state.keys import KeyColumns
from penstock.state.kinds import KeyedState
from penstock.state.layers import REMOVED, Layer, stacked
from penstock.state.rocks.database import Database, LinkedFiles, Record
from penstock.state.rocks.memory import SharedMemory
from penstock.state.rocks.records import Records
from penstock.state.rocks.workdir import Workdir

MAX_FROZEN: Final = 4
"""More layers than this are merged among themselves: lookups go through all of them."""

_MERGED_AT_ONCE: Final = 2_048
"""Entries that are encoded and written at a time; the interpreter's lock is held for each such write."""

WORTH_MERGING: Final = 2_048
"""So many entries are merged at a cut, though there would be room for more: what was captured then need not be captured
again with the whole state. Fewer are better written again than made a table file of their own."""


@dataclass(frozen=True)
class RocksPicture:
    """The map as it was, or what had changed in it."""

    linked: LinkedFiles | None
    """None: there is nothing but the layers."""
    layers: tuple[Layer, ...]

    def changes(self) -> Layer:
        """What the layers say beside the linked files, with `REMOVED` for what is gone."""
        return stacked(self.layers) if self.layers else {}


@dataclass(frozen=True)
class _Merged:
    linked: LinkedFiles
    entries: int
    encoded_bytes: int


class RocksMap:
    """Of one state. Everything but the merging happens on the task's thread."""

    is_plain = False

    def __init__(
        self,
        state: KeyedState,
        keys: KeyColumns,
        total_groups: int,
        workdir: Workdir,
        memory: SharedMemory,
        background: Executor,
    ) -> None:
        self.copy = state.codec.copy
        self.live: Layer = {}
        self.records = Records(keys, total_groups, state.codec.arrow_type)
        self._state, self._keys, self._workdir, self._memory = state, keys, workdir, memory
        self._background = background
        self._share = memory.share()
        self._frozen: list[Layer] = []
        """From the bottom up."""
        self._marks: list[int] = []
        """Of each frozen layer: the cut up to which it goes."""
        self._last = -1
        """The last cut."""
        self._dropped = -1
        """The cut up to which the layers go that have been dropped."""
        self._database: Database | None = None
        self._linked: LinkedFiles | None = None
        self._merging: Future[_Merged] | None = None
        self._in_merge = 0
        """How many of the lowest layers are being merged."""
        self._fetched: Layer = {}
        """Of what is below the layers; `REMOVED` for keys that are not there."""

    # ---- reading and writing ----
    @property
    def changed(self) -> Layer:
        """The live layer holds nothing but changes."""
        return self.live

    def own(self, key: Hashable, value: Any) -> Any:
        """What is in the live layer belongs to nobody else."""
        return value

    def get(self, key: Hashable, default: Any = None) -> Any:
        value = self.live.get(key, self)
        if value is self:
            return self.from_below(key, default)
        return default if value is REMOVED else value

    def from_below(self, key: Hashable, default: Any) -> Any:
        for layer in reversed(self._frozen):
            value = layer.get(key, self)
            if value is not self:
                if value is REMOVED:
                    return default
                if self.copy is not None:
                    value = self.live[key] = self.copy(value)
                return value
        value = self._from_database(key)
        if value is REMOVED:
            return default
        if self.copy is not None:
            # What was fetched belongs to nobody else.
            self.live[key] = self._fetched.pop(key)
        return value

    def peek(self, key: Hashable) -> Any:
        value = self._found(key)
        return None if value is REMOVED else value

    def _found(self, key: Hashable) -> Any:
        for layer in (self.live, *reversed(self._frozen)):
            value = layer.get(key, self)
            if value is not self:
                return value
        return self._from_database(key)

    def set(self, key: Hashable, value: Any) -> None:
        self.live[key] = value

    def update(self, entries: Mapping[Any, Any]) -> None:
        self.live.update(entries)

    def take_up(self, keys: Sequence[Hashable], values: Sequence[Any]) -> None:
        self.live.update(zip(keys, values, strict=True))

    def remove(self, key: Hashable) -> None:
        self.live[key] = REMOVED

    def __contains__(self, key: Hashable) -> bool:
        return self._found(key) is not REMOVED

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All entries, one after another, however many there are. The map must not change meanwhile."""
        changes = stacked((*self._frozen, self.live))
        if self._database is not None:
            for run in in_runs(self._database.scan(b"")):
                entries = zip(self.records.raw_keys([key for key, _ in run]), self._decoded(run), strict=True)
                yield from ((key, value) for key, value in entries if key not in changes)
        yield from ((key, value) for key, value in changes.items() if value is not REMOVED)

    def __len__(self) -> int:
        return sum(1 for _ in self.items())

    def prefetch(self, keys: Collection[Hashable]) -> None:
        """Reads what the database has of these keys, all at once; forgets what was read before."""
        missing = set(keys)
        for layer in (self.live, *self._frozen):
            missing = missing.difference(layer)
        self._fetched = {}
        self._fetch(list(missing))

    def _from_database(self, key: Hashable) -> Any:
        if key not in self._fetched:
            self._fetch([key])
        return self._fetched.get(key, REMOVED)

    def _fetch(self, keys: Sequence[Hashable]) -> None:
        if self._database is None or not keys:
            return
        found = self._database.get(self.records.keys(keys))
        self._fetched.update(dict.fromkeys(keys, REMOVED))
        there = [(key, cell) for key, cell in zip(keys, found, strict=True) if cell is not None]
        values = self._state.codec.decode(self.records.values.load([cell for _, cell in there]))
        self._fetched.update((key, value) for (key, _), value in zip(there, values, strict=True))

    def _decoded(self, run: Sequence[Record]) -> list[Any]:
        return self._state.codec.decode(self.records.values.load([cell for _, cell in run]))

    def keys_from(self, place: bytes, limit: int) -> tuple[list[Hashable], bytes | None]:
        """Some keys of the database from a place on, read ahead; and the place to go on from, None at the end."""
        if self._database is None:
            return [], None
        run = list(itertools.islice(self._database.scan(place), limit))
        keys = self.records.raw_keys([key for key, _ in run])
        self._fetched = dict(zip(keys, self._decoded(run), strict=True))
        return keys, run[-1][0] + b"\0" if len(run) == limit else None

    def waiting_keys(self) -> list[Hashable]:
        """Those whose latest value is not in the database yet, and perhaps some more."""
        return list(stacked((*self._frozen, self.live)))

    # ---- restoring ----
    def open_with(self, identity: str, files: dict[str, Iterable[Any]]) -> None:
        """Begins with a database that was stored."""
        self._database = Database(self._workdir, self._memory, identity, files)

    def load(self, records: Iterable[Record]) -> None:
        """Takes over records as they are; nobody reads meanwhile."""
        for run in in_runs(records):
            self._opened().write(run)

    def loaded(self) -> None:
        """After restoring: what is in the database is its first picture."""
        if self._database is not None:
            self._take_over(self._database.link())

    # ---- cuts ----
    def mark(self, cut: int) -> None:
        """This moment is the cut of that number."""
        self._freeze(cut)
        self._last = cut
        if self.waiting >= WORTH_MERGING:
            self.merge()

    def changed_since(self, cut: int) -> int | None:
        """How many entries a picture of the changes would hold at most; None if they can no longer be told."""
        if self._dropped > cut:
            return None
        return sum(len(layer) for layer, mark in zip(self._frozen, self._marks, strict=True) if mark > cut)

    def picture(self, since: int | None = None) -> RocksPicture:
        """The map as it was at the last cut, if nothing has happened since; or what had changed since another one."""
        if since is None:
            return RocksPicture(self._linked, tuple(self._frozen))
        layers = (layer for layer, mark in zip(self._frozen, self._marks, strict=True) if mark > since)
        return RocksPicture(None, tuple(layers))

    @property
    def size(self) -> int:
        """About how many entries there are."""
        return self.waiting + (0 if self._database is None else self._database.size)

    def settle(self) -> None:
        """Between batches: lets what has been merged go, and sees to it that not too much waits for that."""
        if self._merging is not None and self._merging.done():
            self._collect()
        while self.waiting > self._share.entries // 2:
            if self._merging is None:
                self.merge()
            elif self.waiting > self._share.entries:
                self._collect()
            else:
                return

    @property
    def waiting(self) -> int:
        """How many entries are held in dicts, at most."""
        return len(self.live) + sum(map(len, self._frozen))

    def merge(self) -> None:
        """Begins to merge all layers into the database, unless some are being merged."""
        self._freeze(self._last + 1)
        if self._merging is None and self._frozen:
            self._in_merge = len(self._frozen)
            self._merging = self._background.submit(self._merge, tuple(self._frozen))

    def close(self) -> None:
        """Ends the database, at once or as soon as the other thread is done with it."""
        if self._merging is not None:
            self._merging.add_done_callback(lambda _: self._close_database())
        else:
            self._close_database()

    def _freeze(self, mark: int) -> None:
        if not self.live:
            return
        self._frozen.append(self.live)
        self._marks.append(mark)
        self.live = {}
        if len(self._frozen) - self._in_merge > MAX_FROZEN:
            self._frozen[self._in_merge :] = [stacked(tuple(self._frozen[self._in_merge :]))]
            self._marks[self._in_merge :] = [mark]

    def _collect(self) -> None:
        """Waits for the merge; raises what it raised."""
        assert self._merging is not None
        try:
            merged = self._merging.result()
        finally:
            self._merging, merged_layers, self._in_merge = None, self._in_merge, 0
        self._dropped = self._marks[merged_layers - 1]
        del self._frozen[:merged_layers], self._marks[:merged_layers]
        self._share.learn(merged.entries, merged.encoded_bytes)
        self._take_over(merged.linked)

    def _take_over(self, linked: LinkedFiles) -> None:
        self._linked = linked
        # Read before the database had what was merged.
        self._fetched = {}

    # ---- on the other thread ----
    def _merge(self, layers: tuple[Layer, ...]) -> _Merged:
        changes, size, database = stacked(layers), 0, self._opened()
        for run in in_runs(changes.items(), _MERGED_AT_ONCE):
            size += database.write(self._encoded(run))
        return _Merged(database.link(), len(changes), size)

    def _encoded(self, run: Sequence[tuple[Any, Any]]) -> list[tuple[bytes, bytes | None]]:
        there = [(key, value) for key, value in run if value is not REMOVED]
        keys, values = [key for key, _ in there], [value for _, value in there]
        columns = encoded_values(self._state, self._keys, keys, values)
        cells = [cell for column in columns for cell in self.records.values.dump(column)]
        gone = self.records.keys([key for key, value in run if value is REMOVED])
        # In the order of the keys, which RocksDB takes in faster.
        return sorted([*zip(self.records.keys(keys), cells, strict=True), *((key, None) for key in gone)])

    def _opened(self) -> Database:
        if self._database is None:
            self._database = Database(self._workdir, self._memory)
        return self._database

    def _close_database(self) -> None:
        if self._database is not None:
            self._database.close()
