"""Who runs what: every worker slot has at most one worker, and a worker at most one slot.

The worker of slot i runs subtask i of every chain. A worker keeps its slot as long as it lives, also over restarts, so
that it finds its local state again; only a lost worker's slot goes to somebody else, if possible on the same host,
where copies of its state may be.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.ids import WorkerId


class Slots:
    def __init__(self, count: int) -> None:
        self._holders: list[WorkerId | None] = [None] * count
        self._hosts: dict[WorkerId, str] = {}
        self._last_hosts: dict[int, str | None] = {}
        """By slot: where its last holder was."""

    @property
    def holders(self) -> tuple[WorkerId | None, ...]:
        return tuple(self._holders)

    @property
    def vacant(self) -> int:
        return self._holders.count(None)

    def of(self, worker: WorkerId) -> int | None:
        return self._holders.index(worker) if worker in self._holders else None

    def locate(self, worker: WorkerId, host: str) -> None:
        self._hosts[worker] = host

    def release(self, worker: WorkerId) -> int | None:
        """The slot that became vacant, if the worker had one."""
        self._hosts.pop(worker, None)
        slot = self.of(worker)
        if slot is not None:
            self._holders[slot] = None
        return slot

    def resize(self, count: int) -> list[WorkerId]:
        """Those whose slots are gone, the highest ones."""
        leaving = [holder for holder in self._holders[count:] if holder is not None]
        self._holders = [*self._holders[:count], *[None] * (count - len(self._holders))]
        return leaving

    def fill(self, candidates: Iterable[WorkerId]) -> None:
        """Gives vacant slots, lowest first, to those candidates that have none, in their order; but slots whose last
        holder was on the host of a candidate come first."""
        free = [worker for worker in candidates if worker not in self._holders]
        for anywhere in (False, True):
            for slot in [slot for slot, holder in enumerate(self._holders) if holder is None]:
                host = self._last_hosts.get(slot)
                fitting = [worker for worker in free if anywhere or (host and self._hosts.get(worker) == host)]
                if fitting:
                    self._holders[slot] = fitting[0]
                    self._last_hosts[slot] = self._hosts.get(fitting[0])
                    free.remove(fitting[0])
