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
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from enum import StrEnum

import pyarrow as pa

from penstock.core.handles import KeyGroupRange
from penstock.state.keys import KeyColumns
from penstock.state.layers import REMOVED, LayeredMap, Picture
from penstock.state.maplog import MapLog, of_pictures
from penstock.state.parts import Buffer, RestoredPart
from penstock.state.tables import REMOVED_COLUMN, encode_table, key_columns_of, present_and_removed, read_table

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

    def times_of(self, key: Hashable) -> list[int]:
        """All times for which the key has a timer, in order."""
        return sorted(time for time in self._times if (time, key) in self._set)

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

    @property
    def map(self) -> LayeredMap:
        """Of the timers that are set."""
        return self._set


class Timers:
    """All timers of one operator's instance."""

    def __init__(self, keys: KeyColumns, own: KeyGroupRange, total_groups: int) -> None:
        self._columns, self._own = keys, own
        self.event = TimerQueue()
        self.processing = TimerQueue()
        encoder = of_pictures(_encode, keys, total_groups)
        self.log = MapLog(PART_NAME, own, [self.event.map, self.processing.map], encoder)

    def settle(self) -> None:
        self.event.map.settle()
        self.processing.map.settle()

    def restore(self, parts: Sequence[RestoredPart]) -> None:
        """Lower layers first."""
        for part in parts:
            _, batches = read_table(part, self._columns, self._own)
            for batch in batches:
                present, removed = present_and_removed(batch)
                for queue, key, time in self._timers_of(present):
                    queue.add(key, time)
                if removed is not None:
                    for queue, key, time in self._timers_of(removed):
                        queue.remove(key, time)

    def _timers_of(self, batch: pa.RecordBatch) -> Iterator[tuple[TimerQueue, Hashable, int]]:
        keys = self._columns.from_arrow(key_columns_of(batch, self._columns))
        times, kinds = batch.column("time").to_pylist(), batch.column("kind").to_pylist()
        for key, time, kind in zip(keys, times, kinds, strict=True):
            yield (self.event if kind == TimerKind.EVENT_TIME else self.processing), key, time


def _encode(columns: KeyColumns, total_groups: int, pictures: Sequence[Picture]) -> Iterable[Buffer]:
    """A timer is its key, so that also of a removed one every column is needed."""
    keys: list[Hashable] = []
    times: list[int] = []
    kinds: list[str] = []
    gone: list[bool] = []
    for kind, picture in zip((TimerKind.EVENT_TIME, TimerKind.PROCESSING_TIME), pictures, strict=True):
        for (time, key), is_set in picture.items().items():
            keys.append(key)
            times.append(time)
            kinds.append(kind.value)
            gone.append(is_set is REMOVED)
    values = {"time": pa.array(times, pa.int64()), "kind": pa.array(kinds, pa.string())}
    if any(gone):
        values[REMOVED_COLUMN] = pa.array(gone, pa.bool_())
    return encode_table("timers", PART_NAME, _DESCRIPTION, columns, total_groups, columns.to_arrow(keys), values)
