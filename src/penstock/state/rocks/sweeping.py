"""Which keys of a state in RocksDB to look at for what has outlived its time.

In memory every key is noted down for when its time will come. Here there may be more keys than memory holds notes, so
the whole state is looked through instead, a portion at a time, once in a lifetime as long as there is anything that
lives: what is over goes at most one lifetime late, and each portion reads keys that lie together.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from penstock.state.rocks.map import RocksMap

_START: Final = b""


class Rounds:
    """The `KeysToSweep` of a state in RocksDB."""

    def __init__(self, entries: RocksMap, lifetime_ms: int, now_ms: int) -> None:
        self._map, self._lifetime = entries, lifetime_ms
        self._next: int | None = now_ms + lifetime_ms
        self._lives = False
        """Whether anything has been written, or found alive, since the last round began."""
        self._waiting: list[Hashable] | None = None
        """What is left of those that were not in the database when the round began; None between rounds."""
        self._place: bytes = _START

    def add(self, key: Hashable, stamp: int) -> None:
        """Every round comes to every key; the first one only says that there has to be one."""
        self._lives = True
        if self._next is None:
            self._next = stamp + self._lifetime

    def next_time(self) -> int | None:
        return self._next

    def take_due(self, now: int, limit: int) -> list[Hashable]:
        if self._next is None or now < self._next:
            return []
        if self._waiting is None:
            self._waiting, self._lives = self._map.waiting_keys(), False
        if self._waiting:
            portion, self._waiting = self._waiting[-limit:], self._waiting[:-limit]
            return portion
        keys, place = self._map.keys_from(self._place, limit)
        self._place = place or _START
        if place is None:
            self._waiting = None
            self._next = now + self._lifetime if self._lives else None
        return keys
