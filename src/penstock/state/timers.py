"""Timers: a key asks to be called back when time has reached a point. They are keyed state like any other.

Event-time timers fire when the watermark reaches them, processing-time timers when the clock does. A key has at most
one timer of a kind for each millisecond: setting it again changes nothing. Timers fire in the order of their times;
those of the same time in the order in which they were set (after a restore: by key group).

What counts is the map of timers that are set, of which snapshots take pictures (see `layers`). Beside it, per kind, a
heap of the times and the keys of each: only an index, which may name timers that were deleted meanwhile.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Hashable, Sequence
from enum import StrEnum
from functools import partial

import pyarrow as pa

from penstock.core.handles import KeyGroupRange, PartKind
from penstock.state.keys import KeyColumns
from penstock.state.layers import LayeredMap, Picture
from penstock.state.parts import Buffer, CapturedPart, RestoredPart
from penstock.state.tables import encode_table, key_columns_of, read_table

PART_NAME = "penstock.timers"
_DESCRIPTION = {"type": "timers"}


class TimerKind(StrEnum):
    EVENT_TIME = "event_time"
    PROCESSING_TIME = "processing_time"


class TimerQueue:
    """The timers of one kind."""

    def __init__(self) -> None:
        self._set = LayeredMap()
        self._times: list[int] = []
        self._keys: dict[int, deque[Hashable]] = {}

    def add(self, key: Hashable, time: int) -> None:
        if (time, key) in self._set:
            return
        self._set.set((time, key), True)
        keys = self._keys.get(time)
        if keys is None:
            self._keys[time] = deque((key,))
            heapq.heappush(self._times, time)
        else:
            keys.append(key)

    def remove(self, key: Hashable, time: int) -> None:
        if (time, key) in self._set:
            self._set.remove((time, key))

    def next_time(self) -> int | None:
        """When the earliest timer is due."""
        while self._times:
            time = self._times[0]
            keys = self._keys[time]
            while keys:
                if (time, keys[0]) in self._set:
                    return time
                keys.popleft()
            heapq.heappop(self._times)
            del self._keys[time]
        return None

    def pop_due(self, now: int, limit: int) -> list[tuple[int, Hashable]]:
        """Removes and returns the earliest timers that are due, at most `limit`, all of them of one time."""
        time = self.next_time()
        if time is None or time > now:
            return []
        keys = self._keys[time]
        due: list[tuple[int, Hashable]] = []
        while keys and len(due) < limit:
            timer = (time, keys.popleft())
            if timer in self._set:
                self._set.remove(timer)
                due.append(timer)
        return due

    def pop_due_of(self, wanted: Collection[Hashable], now: int) -> list[tuple[int, Hashable]]:
        """Removes and returns all due timers of some keys, in the order of their times."""
        due = []
        for time in sorted(time for time in self._times if time <= now):
            for key in self._keys[time]:
                timer = (time, key)
                if key in wanted and timer in self._set:
                    self._set.remove(timer)
                    due.append(timer)
        return due

    def settle(self) -> None:
        self._set.settle()

    def picture(self) -> Picture:
        return self._set.picture()


class Timers:
    """All timers of one operator's instance."""

    def __init__(self, keys: KeyColumns, own: KeyGroupRange, total_groups: int) -> None:
        self._columns, self._own, self._total = keys, own, total_groups
        self.event = TimerQueue()
        self.processing = TimerQueue()

    def settle(self) -> None:
        self.event.settle()
        self.processing.settle()

    def capture(self) -> list[CapturedPart]:
        """The part of all timers, if there are any."""
        if self.event.next_time() is None and self.processing.next_time() is None:
            return []
        pictures = {TimerKind.EVENT_TIME: self.event.picture(), TimerKind.PROCESSING_TIME: self.processing.picture()}
        encode = partial(_encode, self._columns, self._total, pictures)
        return [CapturedPart(PART_NAME, PartKind.KEYED, encode, key_groups=self._own)]

    def restore(self, part: RestoredPart) -> None:
        _, batches = read_table(part, self._columns, self._own)
        for batch in batches:
            keys = self._columns.from_arrow(key_columns_of(batch, self._columns))
            times, kinds = batch.column("time").to_pylist(), batch.column("kind").to_pylist()
            for key, time, kind in zip(keys, times, kinds, strict=True):
                (self.event if kind == TimerKind.EVENT_TIME else self.processing).add(key, time)


def _encode(columns: KeyColumns, total_groups: int, pictures: dict[TimerKind, Picture]) -> Sequence[Buffer]:
    keys: list[Hashable] = []
    times: list[int] = []
    kinds: list[str] = []
    for kind, picture in pictures.items():
        for time, key in picture.items():
            keys.append(key)
            times.append(time)
            kinds.append(kind.value)
    values = {"time": pa.array(times, pa.int64()), "kind": pa.array(kinds, pa.string())}
    return encode_table("timers", PART_NAME, _DESCRIPTION, columns, total_groups, columns.to_arrow(keys), values)
