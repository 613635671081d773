"""Keeps the checkpoint directory tidy: writes down the figures of ended checkpoints and removes what nobody needs.

Best effort, one round at a time, off the master's thread: an error here costs disk space, not data, and the next round
does the work again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from penstock.core.ids import Attempt, CheckpointId
from penstock.core.statistics import CheckpointStatistics, Status
from penstock.core.store import Fenced
from penstock.operators.base import Clock
from penstock.runtime.backoff import Background

if TYPE_CHECKING:
    from penstock.store.checkpoints import CheckpointStore

log = logging.getLogger(__name__)

_TIMES = 200.0
"""So many times as long as a cleaning took the next one waits: it looks at every file of the directory, of which there
may be many. What stays for a while costs nothing but space, which is why less time must pass where checkpoints have
written much."""
_LONGEST_PAUSE = 60.0
_MUCH = 256 << 20
"""Bytes."""


class Housekeeping:
    def __init__(
        self,
        store: CheckpointStore,
        background: Background,
        fenced: Callable[[str], None],
        in_use: Callable[[], tuple[Collection[CheckpointId], Attempt]],
        clock: Clock,
        clean_every: float,
    ) -> None:
        """`in_use`: complete checkpoints that others are built upon, and the first attempt that may still write."""
        self._store, self._background, self._fenced, self._in_use = store, background, fenced, in_use
        self._clock, self._clean_every = clock, clean_every
        self._cleaned_at, self._cleaned_in = -math.inf, 0.0
        self._bytes = 0
        """Written by checkpoints since the last cleaning."""
        self._figures: list[CheckpointStatistics] = []
        self._aborted: set[CheckpointId] = set()
        self._clean = False
        self._tell = False
        """Whether the figures are to be written now; those of complete checkpoints wait for the next cleaning."""
        self._busy = False

    @property
    def idle(self) -> bool:
        return not self._busy

    def ended(self, statistics: CheckpointStatistics) -> None:
        """A checkpoint ended; one that completed makes older files superfluous, which need not go at once, and has
        figures that may follow the next ones."""
        self._figures.append(statistics)
        if statistics.status is Status.COMPLETED:
            self._bytes += statistics.state_bytes + statistics.in_flight_bytes
            self._clean |= self._clock.now() >= self._cleaned_at + self._pause
        else:
            self._aborted.add(statistics.checkpoint)
            self._tell = True
        self._go()

    def finish(self, *, clean: bool) -> None:
        """The job ends: what is left is written down, and removed if it is to be clean."""
        self._tell = bool(self._figures)
        self._clean |= clean
        self._go()

    @property
    def _pause(self) -> float:
        """From one cleaning to the next."""
        if self._bytes >= _MUCH:
            return self._clean_every
        return max(self._clean_every, min(_TIMES * self._cleaned_in, _LONGEST_PAUSE))

    def _go(self) -> None:
        if self._busy or not (self._tell or self._clean):
            return
        figures, aborted, clean = self._figures, frozenset(self._aborted), self._clean
        self._figures, self._tell, self._clean, self._busy = [], False, False, True
        if clean:
            self._cleaned_at, self._bytes = self._clock.now(), 0
        bases, oldest_writer = self._in_use()

        def work() -> None:
            self._store.record_statistics(*(statistics.as_entry() for statistics in figures))
            if clean:
                began = self._clock.now()
                self._store.clean(aborted, bases, oldest_writer)
                self._cleaned_in = self._clock.now() - began

        self._background(work, lambda result: self._done(result, aborted if clean else frozenset()))

    def _done(self, result: object, cleaned: frozenset[CheckpointId]) -> None:
        self._busy = False
        if isinstance(result, Fenced):
            self._fenced(str(result))
            return
        if isinstance(result, BaseException):
            log.warning("tidying the checkpoint directory failed, the next checkpoint tries again: %r", result)
            self._clean = True
            return
        self._aborted -= cleaned
        self._go()
