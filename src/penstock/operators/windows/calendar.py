"""Which sessions end when: numbers filed under the time at which they are due.

Times are filed in coarse buckets, so that filing a batch takes few steps. A session whose end moves is filed again, and
not taken out where it was: whoever takes numbers out has to look whether they are really due.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


class Calendar:
    def __init__(self, bucket: int) -> None:
        self._length = max(1, bucket)
        self._buckets: dict[int, list[Numbers]] = {}
        self._order: list[int] = []

    def file(self, times: Numbers, numbers: Numbers) -> None:
        """Each number under its time."""
        buckets = times // self._length
        for bucket in np.unique(buckets).tolist():
            if bucket not in self._buckets:
                self._buckets[bucket] = []
                heapq.heappush(self._order, bucket)
            self._buckets[bucket].append(numbers[buckets == bucket])

    def take(self, now: int) -> Numbers:
        """All numbers that may be due now, each once; those that are due later in the same bucket are among them, and
        have to be filed again."""
        taken: list[Numbers] = []
        while self._order and self._order[0] * self._length <= now:
            taken += self._buckets.pop(heapq.heappop(self._order))
        return np.unique(np.concatenate(taken)) if taken else np.empty(0, np.int64)

    def may_be_due(self, now: int) -> bool:
        return bool(self._order) and self._order[0] * self._length <= now
