"""How long state lives, and when the lives of which keys have to be looked at.

Time is processing time. An item of state carries the stamp of its last write (or read), and is over once so much time
has passed. A restored item's life goes on: the time that a job was down counts.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from penstock.api.durations import Duration, seconds

_STEPS: Final = 16
"""Keys are looked at at most this share of a lifetime late."""


class Refresh(StrEnum):
    """What begins a life anew."""

    WRITE = "write"
    """Being made or written."""
    READ = "read"
    """Being read as well."""


class Expired(StrEnum):
    """Whether a function sees what is over but was not cleaned yet."""

    NEVER = "never"
    UNTIL_CLEANED = "until_cleaned"


@dataclass(frozen=True)
class TTL:
    """The time to live of a state: `ps.TTL("1h")`, `ps.TTL("30d", refresh="read", expired="until_cleaned")`."""

    lifetime: Duration
    refresh: Refresh | str = Refresh.WRITE
    expired: Expired | str = Expired.NEVER

    def __post_init__(self) -> None:
        _check_choice("refresh", self.refresh, Refresh)
        _check_choice("expired", self.expired, Expired)
        seconds(self.lifetime, "ttl", positive=True)

    @property
    def ms(self) -> int:
        return max(1, round(seconds(self.lifetime, "ttl") * 1000))


def _check_choice(what: str, given: object, choices: type[StrEnum]) -> None:
    if given not in list(choices):
        raise ValueError(f"TTL: {what}={given!r} must be one of {', '.join(repr(str(choice)) for choice in choices)}")


def time_to_live(ttl: TTL | Duration | None) -> TTL | None:
    """What a declaration's `ttl=` stands for."""
    return ttl if ttl is None or isinstance(ttl, TTL) else TTL(ttl)


class KeysToSweep(Protocol):
    """Which keys to look at when. A key may come up without need."""

    def add(self, key: Hashable, stamp: int) -> None:
        """The key's first item ends its life a lifetime after the stamp."""
        ...

    def next_time(self) -> int | None:
        """When there is something to look at."""
        ...

    def take_due(self, now: int, limit: int) -> list[Hashable]:
        """At most so many keys whose time has come; each comes up once."""
        ...


class Schedule:
    """Which keys to look at when. A key may be in it for an earlier time than that of its end, or without need."""

    def __init__(self, lifetime_ms: int) -> None:
        self._lifetime = lifetime_ms
        self._step = max(1, lifetime_ms // _STEPS)
        self._keys: dict[int, set[Hashable]] = {}
        self._times: list[int] = []

    def add(self, key: Hashable, stamp: int) -> None:
        """The key's first item ends its life a lifetime after the stamp."""
        time = -(-(stamp + self._lifetime) // self._step) * self._step
        keys = self._keys.get(time)
        if keys is None:
            self._keys[time] = {key}
            heapq.heappush(self._times, time)
        else:
            keys.add(key)

    def next_time(self) -> int | None:
        return self._times[0] if self._times else None

    def take_due(self, now: int, limit: int) -> list[Hashable]:
        """Removes and returns at most so many keys whose time has come."""
        due: list[Hashable] = []
        while self._times and self._times[0] <= now and len(due) < limit:
            keys = self._keys[self._times[0]]
            while keys and len(due) < limit:
                due.append(keys.pop())
            if not keys:
                del self._keys[heapq.heappop(self._times)]
        return due
