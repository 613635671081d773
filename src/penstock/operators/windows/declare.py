"""Windows and triggers as users write them: `ps.tumbling("10s")`, `ps.session(gap="30s")`, `ps.every_count(100)`.

Times are whole milliseconds here. Windows of event time are half open: [start, end).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.api.durations import Duration, seconds


@dataclass(frozen=True)
class EveryCount:
    """A trigger: whenever so many more records of a key have come."""

    count: int

    def __str__(self) -> str:
        return f"every_count({self.count})"


@dataclass(frozen=True)
class EveryTime:
    """A trigger: whenever so much processing time has passed, for keys with new records."""

    ms: int

    def __str__(self) -> str:
        return f"every({self.ms}ms)"


Trigger = EveryCount | EveryTime


@dataclass(frozen=True)
class TimeWindows:
    """Windows of `size` that begin every `every` milliseconds, counted from `offset`."""

    size: int
    every: int
    offset: int = 0

    @property
    def pane(self) -> int:
        """The longest time that no window begins or ends within."""
        return math.gcd(self.size, self.every)

    def __str__(self) -> str:
        at = f", offset={self.offset}ms" if self.offset else ""
        if self.size == self.every:
            return f"tumbling({self.size}ms{at})"
        return f"sliding({self.size}ms, every={self.every}ms{at})"


@dataclass(frozen=True)
class SessionWindows:
    """Of each key the records between which there was never a pause of `gap`."""

    gap: int

    def __str__(self) -> str:
        return f"session(gap={self.gap}ms)"


@dataclass(frozen=True)
class CountWindows:
    """Of each key so many records, in the order in which they come."""

    count: int

    def __str__(self) -> str:
        return f"count_window({self.count})"


@dataclass(frozen=True)
class GlobalWindow:
    """All records of a key; put out when the trigger says so, and begun anew then if `purge`."""

    trigger: Trigger
    purge: bool = False

    def __str__(self) -> str:
        return f"global_window({self.trigger}{', purge=True' if self.purge else ''})"


Windows = TimeWindows | SessionWindows | CountWindows | GlobalWindow


def tumbling(size: Duration, *, offset: Duration = 0) -> TimeWindows:
    """Windows of event time that follow each other: `tumbling("10s")`. They begin at whole multiples of the size since
    1970-01-01 UTC, plus the offset."""
    length = _milliseconds(size, "size")
    return TimeWindows(length, length, _milliseconds(offset, "offset", zero=True) % length)


def sliding(size: Duration, *, every: Duration, offset: Duration = 0) -> TimeWindows:
    """Windows of event time that overlap: `sliding("1h", every="5min")`. Each record is in size / every of them, and is
    kept once."""
    length, step = _milliseconds(size, "size"), _milliseconds(every, "every")
    if step > length:
        raise ValueError(f"sliding: every={every!r} must not be more than size={size!r}: records between would be lost")
    return TimeWindows(length, step, _milliseconds(offset, "offset", zero=True) % step)


def session(gap: Duration) -> SessionWindows:
    """Windows of event time that end when a key had no records for the gap: `session(gap="30s")`."""
    return SessionWindows(_milliseconds(gap, "gap"))


def count_window(count: int) -> CountWindows:
    """Windows of so many records of a key: `count_window(100)`. One that is not full at the end is not put out."""
    return CountWindows(_count(count, "count_window"))


def global_window(*, trigger: Trigger, purge: bool = False) -> GlobalWindow:
    """One window of all records of a key, put out whenever the trigger says so:
    `global_window(trigger=ps.every_count(10))`. With `purge` it begins anew each time."""
    if not isinstance(trigger, Trigger):
        raise TypeError(f"global_window: trigger={trigger!r} must be ps.every_count(...) or ps.every(...)")
    return GlobalWindow(trigger, purge)


def every(interval: Duration) -> EveryTime:
    """Triggers whenever so much processing time has passed, for the keys that had records: `every("1s")`."""
    return EveryTime(_milliseconds(interval, "interval"))


def every_count(count: int) -> EveryCount:
    """Triggers whenever so many more records of a key have come: `every_count(100)`."""
    return EveryCount(_count(count, "every_count"))


def _milliseconds(duration: Duration, what: str, *, zero: bool = False) -> int:
    exact = seconds(duration, what, positive=not zero) * 1_000
    whole = round(exact)
    if not math.isclose(exact, whole, abs_tol=1e-6) or (whole == 0 and not zero):
        raise ValueError(f"{what}={duration!r} must be a whole number of milliseconds")
    return whole


def _count(count: int, what: str) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"{what}({count!r}): must be a whole number of at least 1")
    return count
