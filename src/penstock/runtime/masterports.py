"""The border of the master: what it wants done outside, so that threads and sockets, or the simulation, can stand
behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from penstock.core.ids import WorkerId
from penstock.runtime.control.messages import ToWorker
from penstock.runtime.outcome import JobOutcome

T = TypeVar("T")


class MasterPorts(Protocol):
    """What the master wants done outside. None of these blocks, and none calls the master back before it returned."""

    def send(self, worker: WorkerId, message: ToWorker) -> None:
        """To a worker that is gone: dropped."""
        ...

    def background(self, work: Callable[[], T], then: Callable[[T | BaseException], None]) -> None:
        """Runs `work` off the master's thread and hands its result, or what it raised, to `then` on the master's."""
        ...

    def disconnect(self, worker: WorkerId, reason: str) -> None: ...

    def need_workers(self, count: int) -> None:
        """How many live workers the job wants in all, spares included."""
        ...

    def ended(self, outcome: JobOutcome) -> None:
        """Called once, last."""
        ...
