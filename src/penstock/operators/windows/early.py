"""Early results: which keys of windows that have not ended yet are to be put out, and when.

They are extra: a window's last result is put out when it ends, whatever was put out before. So nothing of this is
stored; after a restore the counting begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penstock.operators.aggregation.accumulator import INITIAL_SLOTS, grown
from penstock.state.index import Slots


class EarlyByTime:
    """Whenever so much processing time has passed: the keys that had records."""

    def __init__(self, ms: int) -> None:
        self._ms = ms
        self._changed: dict[int, list[Slots]] = {}
        """By pane."""
        self.at: int | None = None
        """When, in milliseconds since the epoch; None while there is nothing to put out."""

    def note(self, pane: int, slots: Slots, now_ms: int) -> None:
        self._changed.setdefault(pane, []).append(slots)
        if self.at is None:
            self.at = now_ms + self._ms

    def take(self) -> dict[int, Slots]:
        changed = {pane: np.unique(np.concatenate(slots)) for pane, slots in self._changed.items()}
        self._changed, self.at = {}, None
        return changed

    def drop(self, panes: Iterable[int]) -> None:
        for pane in panes:
            self._changed.pop(pane, None)


class EarlyByCount:
    """Whenever so many more records of a key have come, at the end of the batch in which they did."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._counts: dict[int, Slots] = {}
        """By pane and slot: records since the row was last put out."""

    def due(self, pane: int, slots: Slots, keys: int) -> Slots:
        """Counts records, each of its slot; returns the slots that are to be put out."""
        counts = grown(self._counts.get(pane, np.zeros(INITIAL_SLOTS, np.int64)), keys, 0)
        self._counts[pane] = counts
        np.add.at(counts, slots, 1)
        due = np.unique(slots[counts[slots] >= self._count])
        counts[due] = 0
        return due

    def forget(self, pane: int, slots: Slots) -> None:
        """These slots are used for something else from now on."""
        if pane in self._counts:
            counts = self._counts[pane]
            counts[slots[slots < len(counts)]] = 0

    def drop(self, panes: Iterable[int]) -> None:
        for pane in panes:
            self._counts.pop(pane, None)
