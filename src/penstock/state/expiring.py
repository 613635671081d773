"""The kinds of keyed state with a time to live. Items of lists and entries of maps live and end one by one.

Every item is kept with its stamp. What is over is hidden from the function, and goes for good in one of three ways: a
portion of keys at a time when their time has come (`sweep`), when a snapshot is written, and when one is restored.

Reading a value that can change in place counts as writing it: nobody can tell whether it was changed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from penstock.state.codec import Codec
from penstock.state.evolution import Evolution
from penstock.state.kinds import Cleaner, KeyedState
from penstock.state.ttl import TTL, Expired, KeysToSweep, Refresh, Schedule

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

Clock = Callable[[], int]
"""Milliseconds since the epoch."""


class ExpiringState(KeyedState):
    """What all kinds have in common. The key's entry is fetched when it is first used."""

    __slots__ = ("_dirty", "_fetched", "_hides", "_key", "_lifetime", "_now", "_reading_writes", "_schedule")

    def __init__(
        self, name: str, codec: Codec, default: Any, evolution: Evolution, ttl: TTL, now: Clock, changeable: bool
    ) -> None:
        self._fetched = self._dirty = False
        self._key: Hashable = None
        super().__init__(name, codec, default, evolution)
        self._now, self._lifetime = now, ttl.ms
        self._hides = ttl.expired == Expired.NEVER
        self._reading_writes = changeable or ttl.refresh == Refresh.READ
        self._schedule: KeysToSweep = Schedule(ttl.ms)

    def load(self, key: Hashable) -> None:
        self._key = key
        self._fetched = self._dirty = False

    def store(self, key: Hashable) -> None:
        if not self._dirty:
            return
        entry = self._entry()
        if entry is None:
            if key in self.map:
                self.map.remove(key)
            return
        if key not in self.map:
            self._schedule.add(key, self._now())
        self.map.set(key, entry)

    def _entry(self) -> Any:
        """What is kept for the key, from what the function left; None for nothing."""
        raise NotImplementedError

    def _alive(self, entry: Any, now: int) -> Any:
        """The entry without what is over, itself if nothing is; None if all is."""
        raise NotImplementedError

    def _earliest(self, entry: Any) -> int:
        """The stamp of the entry's oldest item."""
        raise NotImplementedError

    def _is_over(self, stamp: int, now: int) -> bool:
        return now >= stamp + self._lifetime

    def _visible(self, key: Hashable) -> Any:
        entry = self.map.get(key)
        return self._alive(entry, self._now()) if self._hides and entry is not None else entry

    # ---- cleaning ----
    def watch_with(self, schedule: Callable[[int, int], KeysToSweep]) -> None:
        """Takes another's word for which keys to look at when; it is made of the lifetime and the present time."""
        self._schedule = schedule(self._lifetime, self._now())

    def next_sweep(self) -> int | None:
        return self._schedule.next_time()

    def sweep(self, limit: int) -> None:
        """Removes what is over of at most so many keys."""
        now, copy = self._now(), self.map.copy
        for key in self._schedule.take_due(now, limit):
            entry = self.map.peek(key)
            if entry is None:
                continue
            left = self._alive(entry, now)
            if left is None:
                self.map.remove(key)
                continue
            if left is not entry:
                self.map.set(key, left if copy is None else copy(left))
            self._schedule.add(key, self._earliest(left))

    def cleaner(self) -> Cleaner:
        now, alive = self._now(), self._alive

        def clean(entries: Mapping[Any, Any]) -> Mapping[Any, Any]:
            return {key: left for key, entry in entries.items() if (left := alive(entry, now)) is not None}

        return clean

    def _restored_at(self) -> int:
        return self._now()

    def take_up(self, keys: Sequence[Hashable], values: Sequence[Any]) -> None:
        now = self._now()
        for key, entry in zip(keys, values, strict=True):
            left = self._alive(entry, now)
            if left is not None:
                self.map.live[key] = left
                self._schedule.add(key, self._earliest(left))
            elif key in self.map:
                self.map.remove(key)


class ExpiringValueState(ExpiringState, Generic[V]):
    __slots__ = ("_current",)
    kind = "value"
    _current: Any

    @property
    def value(self) -> V:
        if not self._fetched:
            self._fetched = True
            entry = self._visible(self._key)
            if entry is not None:
                self._current = entry[0]
            else:
                self._current = self._default if self._make is None else self._make()
        self._dirty |= self._reading_writes
        return self._current

    @value.setter
    def value(self, value: V) -> None:
        self._current, self._fetched, self._dirty = value, True, True

    def get(self) -> V:
        return self.value

    def set(self, value: V) -> None:
        self.value = value

    def clear(self) -> None:
        self._current = self._default if self._make is None else self._make()
        self._fetched = self._dirty = True

    def _entry(self) -> Any:
        is_default = self._current is self._default if self._make is None else self._current == self._make()
        return None if is_default else (self._current, self._now())

    def _alive(self, entry: Any, now: int) -> Any:
        return None if self._is_over(entry[1], now) else entry

    def _earliest(self, entry: Any) -> int:
        return int(entry[1])


class ExpiringReducingState(ExpiringValueState[V]):
    __slots__ = ("function",)
    kind = "reducing"
    function: Callable[[V, V], V]

    def add(self, item: V) -> None:
        before = self.value
        self.value = item if before is None else self.function(before, item)


class ExpiringAggregatingState(ExpiringValueState[Any], Generic[V, R]):
    __slots__ = ("function", "result")
    kind = "aggregating"
    function: Callable[[Any, V], Any]
    result: Callable[[Any], R] | None

    def add(self, item: V) -> None:
        self.value = self.function(self.value, item)

    def get(self) -> Any:
        return self.value if self.result is None else self.result(self.value)


class ExpiringListState(ExpiringState, Generic[V]):
    """`value` is a copy: change the list with the methods here."""

    __slots__ = ("_items",)
    kind = "list"

    def _fetch(self, *, reading: bool = True) -> list[tuple[V, int]]:
        if not self._fetched:
            self._fetched = True
            self._items: list[tuple[V, int]] = list(self._visible(self._key) or ())
        if reading and self._reading_writes and self._items:
            now = self._now()
            self._items = [(item, now) for item, _ in self._items]
            self._dirty = True
        return self._items

    @property
    def value(self) -> list[V]:
        return [item for item, _ in self._fetch()]

    @value.setter
    def value(self, items: Iterable[V]) -> None:
        now = self._now() if items else 0
        self._items, self._fetched, self._dirty = [(item, now) for item in items or ()], True, True

    def set(self, items: Iterable[V]) -> None:
        self.value = list(items)

    def append(self, item: V) -> None:
        self._fetch(reading=False).append((item, self._now()))
        self._dirty = True

    def extend(self, items: Iterable[V]) -> None:
        now = self._now()
        self._fetch(reading=False).extend((item, now) for item in items)
        self._dirty = True

    def clear(self) -> None:
        self.value = []

    def __len__(self) -> int:
        return len(self._fetch(reading=False))

    def __iter__(self) -> Iterator[V]:
        return iter(self.value)

    def __contains__(self, item: object) -> bool:
        return item in self.value

    def __getitem__(self, place: int) -> V:
        return self.value[place]

    def _entry(self) -> Any:
        return self._items or None

    def _alive(self, entry: Any, now: int) -> Any:
        if not self._is_over(self._earliest(entry), now):
            return entry
        return [pair for pair in entry if not self._is_over(pair[1], now)] or None

    def _earliest(self, entry: Any) -> int:
        return min(stamp for _, stamp in entry)


class ExpiringMapState(ExpiringState, Generic[K, V]):
    """`value` is a copy: change the map with the methods here."""

    __slots__ = ("_items",)
    kind = "map"

    def _fetch(self) -> dict[K, tuple[V, int]]:
        if not self._fetched:
            self._fetched = True
            self._items: dict[K, tuple[V, int]] = dict(self._visible(self._key) or ())
        return self._items

    def _read(self, keys: Iterable[K]) -> None:
        if self._reading_writes:
            now, items = self._now(), self._fetch()
            for key in keys:
                items[key] = (items[key][0], now)
                self._dirty = True

    @property
    def value(self) -> dict[K, V]:
        self._read(list(self._fetch()))
        return {key: value for key, (value, _) in self._fetch().items()}

    @value.setter
    def value(self, entries: Mapping[K, V]) -> None:
        now = self._now() if entries else 0
        self._items = {key: (value, now) for key, value in (entries or {}).items()}
        self._fetched = self._dirty = True

    def set(self, entries: Mapping[K, V]) -> None:
        self.value = dict(entries)

    def get(self, key: K, default: Any = None) -> Any:
        return self[key] if key in self._fetch() else default

    def pop(self, key: K, default: Any = None) -> Any:
        if key not in self._fetch():
            return default
        self._dirty = True
        return self._fetch().pop(key)[0]

    def keys(self) -> list[K]:
        return list(self._fetch())

    def values(self) -> list[V]:
        return list(self.value.values())

    def items(self) -> list[tuple[K, V]]:
        return list(self.value.items())

    def clear(self) -> None:
        self.value = {}

    def __len__(self) -> int:
        return len(self._fetch())

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._fetch()))

    def __contains__(self, key: object) -> bool:
        return key in self._fetch()

    def __getitem__(self, key: K) -> V:
        value, _ = self._fetch()[key]
        self._read((key,))
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._fetch()[key] = (value, self._now())
        self._dirty = True

    def __delitem__(self, key: K) -> None:
        del self._fetch()[key]
        self._dirty = True

    def _entry(self) -> Any:
        return self._items or None

    def _alive(self, entry: Any, now: int) -> Any:
        if not self._is_over(self._earliest(entry), now):
            return entry
        return {key: pair for key, pair in entry.items() if not self._is_over(pair[1], now)} or None

    def _earliest(self, entry: Any) -> int:
        return min(stamp for _, stamp in entry.values())
