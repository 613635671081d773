"""The control connection of one worker to one driver: a queue each way, and either end can go away."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.core.ids import WorkerId
from penstock.runtime.control.messages import (
    AbortCheckpoint,
    Acknowledge,
    CompleteCheckpoint,
    Decline,
    Deploy,
    Reset,
    TaskFailed,
    ToMaster,
    ToWorker,
    TriggerCheckpoint,
)
from penstock.simulation.scheduler import Scheduler
from penstock.simulation.transport import Line

_ENCODER = msgspec.msgpack.Encoder()
_FROM_WORKER: msgspec.msgpack.Decoder[ToMaster] = msgspec.msgpack.Decoder(ToMaster)
_FROM_MASTER: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)


class Connection:
    """Messages go through their MessagePack form, as on a socket. An end learns that the other is gone only after it
    got what was under way."""

    def __init__(
        self,
        scheduler: Scheduler,
        worker: WorkerId,
        *,
        at_master: Callable[[Connection, ToMaster], None],
        at_worker: Callable[[ToWorker], None],
        master_loses: Callable[[Connection, str], None],
        worker_loses: Callable[[], None],
    ) -> None:
        self.worker = worker
        self._scheduler = scheduler
        self._at_master, self._at_worker = at_master, at_worker
        self._master_loses, self._worker_loses = master_loses, worker_loses
        self.to_master: Line[bytes | None] = Line(scheduler, f"{worker} to the master", self._reach_master)
        self.to_worker: Line[bytes | None] = Line(scheduler, f"the master to {worker}", self._reach_worker)

    def tell_master(self, message: ToMaster) -> None:
        self.to_master.send(_ENCODER.encode(message))

    def tell_worker(self, message: ToWorker) -> None:
        self.to_worker.send(_ENCODER.encode(message))

    def repeat_to_master(self, message: ToMaster) -> None:
        """Once more what was delivered before, if the connection still stands."""
        if not self.to_master.closed:
            self._at_master(self, message)

    def repeat_to_worker(self, message: ToWorker) -> None:
        if not self.to_worker.closed:
            self._at_worker(message)

    def worker_gone(self, keep: int) -> None:
        """The worker's end is closed; of its last messages the first `keep` still arrive."""
        self.to_worker.cut()
        self._hang_up(self.to_master, keep)

    def master_gone(self, keep: int) -> None:
        self.to_master.cut()
        self._hang_up(self.to_worker, keep)

    @staticmethod
    def _hang_up(line: Line[bytes | None], keep: int) -> None:
        if not line.closed:
            while len(line) > keep:
                line.drop_last()
            line.send(None)
            line.cut(len(line))

    def _reach_master(self, message: bytes | None) -> None:
        if message is None:
            self._master_loses(self, "the connection was closed")
        else:
            self._at_master(self, _FROM_WORKER.decode(message))

    def _reach_worker(self, message: bytes | None) -> None:
        if message is None:
            self._worker_loses()
        else:
            self._at_worker(_FROM_MASTER.decode(message))


def short(message: ToMaster | ToWorker) -> str:
    """For the story."""
    name = type(message).__name__
    match message:
        case Acknowledge() | Decline():
            return f"{name} {message.checkpoint} {message.subtask} a{message.attempt}"
        case AbortCheckpoint() | CompleteCheckpoint():
            return f"{name} {message.checkpoint} a{message.attempt}"
        case TriggerCheckpoint():
            return f"{name} {message.barrier.checkpoint} {message.barrier.mode} a{message.attempt}"
        case TaskFailed():
            return f"{name} {message.subtask} a{message.attempt}: {message.error.message}"
        case Deploy():
            restored = next((a.restore.checkpoint for a in message.assignments if a.restore), None)
            return f"{name} a{message.attempt} g{message.generation} restoring {restored}"
        case Reset():
            return f"{name} a{message.attempt}"
    attempt = getattr(message, "attempt", None)
    subtask = getattr(message, "subtask", "")
    return f"{name} {subtask} a{attempt}"
