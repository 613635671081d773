"""When the next checkpoint may start.

Theory of operation
-------------------
Checkpoints are asked for by the clock (every `every` seconds), by people (`ask`), and by the coordinator itself: the
final one when all input has ended, and one `again` that had to be planned anew. They start one after another under
these rules:

- not more than `limit` at once. Modes whose barriers overtake records or stop the sources allow one; the others
  `maximum_concurrent`.
- final before savepoint before checkpoint; those that are planned again before new ones of their kind; then by age.
- the clock's own wait for the interval *and* for `minimum_pause` after the end of the last checkpoint. What was asked
  for explicitly waits for neither, only for the limit. A request that waits is not lost, and several missed intervals
  make one checkpoint, not several.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NewType

from penstock.core.barrier import Mode, Purpose
from penstock.core.settings import CheckpointSettings

RequestId = NewType("RequestId", int)
"""Names an explicit request, so that whoever asked learns what became of it."""

_RANK = {Purpose.FINAL: 0, Purpose.SAVEPOINT: 1, Purpose.CHECKPOINT: 2}
_ONE_AT_A_TIME = (Mode.UNALIGNED, Mode.ADAPTIVE, Mode.STOP_THE_WORLD)


@dataclass(frozen=True, slots=True)
class Request:
    id: RequestId
    purpose: Purpose
    periodic: bool = False
    again: bool = False
    not_before: float = -math.inf
    last: bool = False
    """The job ends with it: none is started after it."""
    mode: Mode | None = None
    """None: that of the settings."""

    @property
    def order(self) -> tuple[int, bool, int]:
        return _RANK[self.purpose], not self.again, self.id


class Requests:
    def __init__(self, settings: CheckpointSettings) -> None:
        self._settings = settings
        self._waiting: list[Request] = []
        self._last_id = 0
        self._last_start = -math.inf
        self._last_end = -math.inf

    @property
    def limit(self) -> int:
        return 1 if self._settings.mode in _ONE_AT_A_TIME else max(1, self._settings.maximum_concurrent)

    @property
    def waiting(self) -> tuple[Request, ...]:
        return tuple(sorted(self._waiting, key=lambda request: request.order))

    def configure(self, settings: CheckpointSettings) -> None:
        self._settings = settings

    def attempt_started(self, now: float) -> None:
        """The interval counts from here; a final checkpoint that the last attempt wanted is its own affair."""
        self._last_start, self._last_end = now, -math.inf
        self._waiting = [
            request for request in self._waiting if request.purpose is not Purpose.FINAL and not request.periodic
        ]

    def ask(
        self, purpose: Purpose, not_before: float = -math.inf, last: bool = False, mode: Mode | None = None
    ) -> Request:
        request = Request(self._new_id(), purpose, not_before=not_before, last=last, mode=mode)
        self._waiting.append(request)
        return request

    def ask_again(self, request: Request) -> None:
        """The checkpoint of this request must be planned anew, at once."""
        self._waiting.append(replace(request, again=True, not_before=-math.inf))

    def ended(self, now: float) -> None:
        """A checkpoint completed or was aborted: the pause counts from here."""
        self._last_end = now

    def choose(self, now: float, under_way: int) -> Request | None:
        """The request to start now, which leaves the queue; None if none may start."""
        if under_way >= self.limit:
            return None
        due = [request for request in self._waiting if request.not_before <= now]
        if due:
            request = min(due, key=lambda request: request.order)
            self._waiting.remove(request)
        elif self._periodic_due() <= now:
            request = Request(self._new_id(), Purpose.CHECKPOINT, periodic=True)
        else:
            return None
        self._last_start = now
        return request

    def wake(self, under_way: int) -> float | None:
        """When `choose` may answer something else, if nothing else happens before."""
        if under_way >= self.limit:
            return None
        when = min([self._periodic_due(), *(request.not_before for request in self._waiting)])
        return when if when < math.inf else None

    def _periodic_due(self) -> float:
        return max(self._last_start + self._settings.every, self._last_end + self._settings.minimum_pause)

    def _new_id(self) -> RequestId:
        self._last_id += 1
        return RequestId(self._last_id)
