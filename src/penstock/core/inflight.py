"""How much may be in flight, and how much is worked on in one go: both sized by time, from what was measured.

`InFlightSizer` (buffer debloating): the queues in front of a subtask should hold about `target` seconds of its
work, so that a barrier behind them waits about that long, however slow the subtask is. Its rate is measured only
while it had input to work on, waiting for output included: a subtask that is slowed down from behind is slow.

A step puts out no more than its receivers have granted (`StepSizer`): what a task holds back because it may not send
it is in flight as well, and a source that makes a million rows in one step would keep barriers waiting behind them.

`Slicer`: one step of an operator should take about the step budget. Costs rise in the estimate as they are measured and
fall slowly in it, so that one cheap slice does not let a huge one through; and a slice is at most twice its
predecessor, because the cost of a row says little about a batch that is much larger than any seen. What is measured is
time on the clock, in which the thread may have had to wait for a processor: a slice that took a few budgets is believed
to be dear when the next one is as well, one that took many at once.

A call costs something however few rows it is about: a function that asks a server, or a Polars query on a machine
that is busy. The line through the last slices, where they differ in size, tells that share. It is no reason to cut
slices smaller, for that would make no step shorter and the work longer: rows get what the call leaves of the budget, or
as long again as the call takes.
"""

from __future__ import annotations

from penstock.core.settings import InFlightSettings

_WINDOW = 0.05
"""Seconds of work from which a rate is taken: long enough to span several steps, short enough to follow a change."""
_SMOOTHING = 0.4
"""Weight of the newest window."""

FIRST_SLICE = 256
LEAST_STEP = 32
"""Rows that are worked on even if none of them may be sent yet: a step for each row would cost more than they."""
_LEAST_YIELD = 0.01
"""A filter that lets nothing through for a while may let everything through next."""
_COST_FALLS = 0.5
"""Weight of a measured cost that is below the estimate."""
_HELD_UP = 4.0
"""Budgets that a slice may take because others had the processor."""
_FORGETTING = 0.9
"""Weight of all earlier slices together, each time, in the line through them."""
_SPREAD = 0.1
"""How much slices must differ in size, as the variance by the square of the mean, for a line to say something."""


class InFlightSizer:
    """Rows that may be in flight to one subtask, all its channels together: `capacity`."""

    def __init__(self, settings: InFlightSettings) -> None:
        self._settings = settings
        self._rate: float | None = None
        self._row_bytes: float | None = None
        self._rows = 0
        self._seconds = 0.0
        self.capacity = self._clamp(settings.max_rows if settings.target is None else settings.initial_rows)

    @property
    def wants_bytes(self) -> bool:
        """Whether the size of a batch should be measured now: once in a window is enough."""
        return self._rows == 0

    def weigh(self, rows: int, size: int) -> None:
        if rows > 0:
            self._row_bytes = _smooth(self._row_bytes, size / rows)

    def observe(self, rows: int, seconds: float) -> bool:
        """`rows` were processed in `seconds` in which there was input to process. True: `capacity` has changed."""
        self._rows += rows
        self._seconds += seconds
        if self._seconds < _WINDOW:
            return False
        self._rate = _smooth(self._rate, self._rows / self._seconds)
        self._rows, self._seconds = 0, 0.0
        target = self._settings.target
        wanted = self._settings.max_rows if target is None else int(self._rate * target)
        before, self.capacity = self.capacity, self._clamp(wanted)
        return self.capacity != before

    def _clamp(self, wanted: int) -> int:
        rows = min(max(wanted, self._settings.min_rows), self._settings.max_rows)
        if self._row_bytes:
            rows = min(rows, int(self._settings.max_bytes / self._row_bytes))
        return max(rows, 1)


class Slicer:
    """Rows for the next step: `rows`, never 0."""

    def __init__(self, budget: float, limit: int) -> None:
        self._budget = budget
        self._limit = limit
        self._cost: float | None = None
        """Of a row, in seconds."""
        self._call = _CallCost()
        self._doubted: float | None = None
        """The cost of the last slice, if it was dear and not believed."""
        self.rows = min(FIRST_SLICE, limit)

    def observe(self, rows: int, seconds: float) -> None:
        if rows <= 0:
            return
        call = self._call.observe(rows, seconds)
        self._cost = self._estimate(rows, max(0.0, seconds - call))
        room = max(self._budget - call, call)
        fits = self._limit if self._cost * self._limit <= room else int(room / self._cost)
        self.rows = max(1, min(fits, max(self.rows, 2 * rows), self._limit))

    def _estimate(self, rows: int, seconds: float) -> float:
        cost, before, doubted = seconds / rows, self._cost, self._doubted
        if before is None:
            return cost
        if cost < before:
            self._doubted = None
            return before + _COST_FALLS * (cost - before)
        if rows < FIRST_SLICE and seconds * 4 <= self._budget:
            return before  # few rows in little time mostly show what a call costs, not what a row does
        if seconds > _HELD_UP * self._budget:
            return cost
        self._doubted = cost
        return before if doubted is None else min(cost, doubted)


class _CallCost:
    """What a step takes whatever the number of its rows: where the line through the last slices, by least squares,
    meets no rows. While all are of one size nobody can tell: what was known before is believed less and less, so that
    slices become smaller until they tell again."""

    def __init__(self) -> None:
        self._count = self._rows = self._seconds = self._squares = self._products = 0.0
        self._call = 0.0

    def observe(self, rows: int, seconds: float) -> float:
        self._count = _FORGETTING * self._count + 1
        self._rows = _FORGETTING * self._rows + rows
        self._seconds = _FORGETTING * self._seconds + seconds
        self._squares = _FORGETTING * self._squares + rows * rows
        self._products = _FORGETTING * self._products + rows * seconds
        mean, time = self._rows / self._count, self._seconds / self._count
        variance = self._squares / self._count - mean * mean
        if variance > _SPREAD * mean * mean:
            slope = max(0.0, (self._products / self._count - mean * time) / variance)
            self._call = max(0.0, time - slope * mean)
        else:
            self._call = min(self._call, time) * _FORGETTING
        return self._call


class StepSizer:
    """Rows for the next step, given how many the outputs may send: a slice, or less where less would be sent."""

    def __init__(self, slicer: Slicer) -> None:
        self._slicer = slicer
        self._yield = 1.0
        """Rows put out for each row taken in."""

    def rows(self, room: int | None) -> int:
        """`room`: what the receivers have granted and nobody uses yet; None if nothing is sent anywhere."""
        wanted = self._slicer.rows
        if room is None or room >= wanted * self._yield:
            return wanted
        return min(wanted, max(LEAST_STEP, int(room / self._yield)))

    def observe(self, rows: int, put_out: int, seconds: float) -> None:
        self._slicer.observe(rows, seconds)
        if rows > 0:
            self._yield = max(_LEAST_YIELD, _smooth(self._yield, put_out / rows))


def _smooth(old: float | None, new: float) -> float:
    return new if old is None else old + _SMOOTHING * (new - old)
