"""Which panes and windows there are: arithmetic on starts and ends, all in milliseconds.

Windows begin at `offset` plus whole multiples of `every`. A pane belongs to the windows that begin before it ends and
end after it begins; because no window begins or ends inside a pane, these are the ones that contain it.
"""

from __future__ import annotations

from typing import Any

from penstock.operators.windows.declare import TimeWindows


class Assigner:
    def __init__(self, windows: TimeWindows, lateness: int) -> None:
        self._size, self._every, self._offset = windows.size, windows.every, windows.offset
        self.pane, self.lateness = windows.pane, lateness
        self.origin = windows.offset
        """The start of some pane."""
        self.overlaps = windows.size != windows.pane
        """Whether a window has several panes."""

    def last_end(self, pane: Any) -> Any:
        """Of the windows that the pane (or each of an array of panes) is in, the end of the last one."""
        return (pane - self._offset) // self._every * self._every + self._offset + self._size

    def first_end(self, pane: int) -> int:
        """Of the windows that the pane is in, the end of the first one."""
        behind = pane + self.pane - self._size - self._offset
        return -(-behind // self._every) * self._every + self._offset + self._size

    def ends(self, pane: int) -> range:
        """The ends of all windows that the pane is in."""
        return range(self.first_end(pane), self.last_end(pane) + 1, self._every)

    def next_end(self, pane: int, fired: int) -> int | None:
        """The end of the first window after those that end up to `fired`, None if the pane is in none."""
        beyond = (fired - self._offset - self._size) // self._every + 1
        end = max(self.first_end(pane), beyond * self._every + self._offset + self._size)
        return end if end <= self.last_end(pane) else None

    def panes(self, end: int) -> range:
        """The starts of all panes of a window."""
        return range(end - self._size, end, self.pane)

    def start(self, end: Any) -> Any:
        return end - self._size

    def is_over(self, end: Any, watermark: Any) -> Any:
        """Whether a window takes no more records."""
        return end - 1 + self.lateness <= watermark

    def first_live(self, watermark: Any) -> Any:
        """The start of the first pane that a window which still takes records contains."""
        over = (watermark + 1 - self.lateness - self._offset - self._size) // self._every
        return (over + 1) * self._every + self._offset
