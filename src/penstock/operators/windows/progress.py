"""How far event time has come, by key group.

Theory of operation. All keys of a subtask share one event time, the watermark, and all windows up to one end,
`fired`, have been put out. After a restore at another parallelism, or from records in flight, the key groups of a
subtask may come from several that were not equally far. Then the subtask goes on from the earliest, and remembers of
every group how far it was: what was late there stays late, and what was put out there is not put out again. As soon
as the subtask has come as far as the farthest group, they are all alike again and nothing is looked up any more.

Stored as a union part: runs of (first group, end of groups, watermark, fired), so that everybody finds its own groups,
whoever wrote them. If there are more groups now, each of the old ones is some that follow each other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.core.handles import KeyGroupRange
from penstock.runtime.elements import MIN_WATERMARK
from penstock.state.parts import CapturedPart, PartKind, RestoredPart
from penstock.state.tables import check_version

PART: Final = "penstock.progress"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<BII")
"""Version, number of key groups, number of runs."""
_RUN: Final = struct.Struct("<IIqq")

_EARLIEST: Final = MIN_WATERMARK // 2

Groups = npt.NDArray[np.int32]
Times = npt.NDArray[np.int64]


class Progress:
    def __init__(self, own: KeyGroupRange, total: int) -> None:
        self._own, self._total = own, total
        self.watermark = MIN_WATERMARK
        self.fired = MIN_WATERMARK
        """Every window that ends up to here has been put out for all keys."""
        self._watermarks: Times | None = None
        self._fired: Times | None = None
        """Of each own group, while they differ."""

    def advance(self, watermark: int) -> None:
        self.watermark = max(watermark, self.watermark)
        self._settle()

    def fire(self, end: int) -> None:
        self.fired = max(end, self.fired)
        self._settle()

    def _settle(self) -> None:
        if self._watermarks is not None and self._watermarks.max() <= self.watermark:
            self._watermarks = None
        if self._fired is not None and self._fired.max() <= self.fired:
            self._fired = None

    @property
    def differs(self) -> bool:
        """Whether some groups are ahead of the others."""
        return self._watermarks is not None or self._fired is not None

    def watermarks_of(self, groups: Groups) -> Times:
        """The event time of each of these key groups; not so early that reckoning with it would overflow."""
        watermark = max(self.watermark, _EARLIEST)
        if self._watermarks is None:
            return np.full(len(groups), watermark)
        return np.maximum(self._watermarks[groups - self._own.start], watermark)

    def fired_of(self, groups: Groups) -> Times:
        """Up to which end the windows of each of these key groups have been put out."""
        if self._fired is None:
            return np.full(len(groups), self.fired)
        return np.maximum(self._fired[groups - self._own.start], self.fired)

    # ---- checkpoints ----
    def capture(self) -> CapturedPart:
        groups = np.arange(self._own.start, self._own.end, dtype=np.int32)
        if self.differs:
            times = zip(self.watermarks_of(groups).tolist(), self.fired_of(groups).tolist(), strict=True)
            runs = [(group, group + 1, *time) for group, time in zip(groups.tolist(), times, strict=True)]
        else:
            runs = [(self._own.start, self._own.end, self.watermark, self.fired)]
        content = _HEADER.pack(_VERSION, self._total, len(runs)) + b"".join(_RUN.pack(*run) for run in runs)
        return CapturedPart(PART, PartKind.UNION, lambda: (content,))

    def restore(self, parts: Iterable[RestoredPart]) -> None:
        own = self._own
        watermarks = np.full(own.end - own.start, MIN_WATERMARK)
        fired = watermarks.copy()
        for start, end, watermark, done in (run for part in parts for run in _runs(part, self._total)):
            groups = slice(max(start, own.start) - own.start, max(min(end, own.end) - own.start, 0))
            watermarks[groups], fired[groups] = watermark, done
        self.watermark, self.fired = int(watermarks.min()), int(fired.min())
        self._watermarks, self._fired = watermarks, fired
        self._settle()


def _runs(part: RestoredPart, total: int) -> Iterator[tuple[int, int, int, int]]:
    content = bytes(part.read())
    version, groups, count = _HEADER.unpack_from(content)
    check_version(part, version, _VERSION)
    for place in range(count):
        start, end, watermark, fired = _RUN.unpack_from(content, _HEADER.size + place * _RUN.size)
        yield start * total // groups, end * total // groups, watermark, fired
