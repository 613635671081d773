"""A job without checkpoints: subtasks finish as soon as their input has ended, and all output is committed at the end.

After a failure nothing of the attempt counts: the next one begins from scratch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.core.ids import Attempt, CheckpointId, SubtaskId, Uid
from penstock.core.orders import Failure
from penstock.core.plan import Topology
from penstock.core.record import CheckpointRecord
from penstock.runtime.control.messages import Acknowledge, Decline, Drained, Finished

LAST_COMMIT = CheckpointId(1)
"""Under which the output is committed, once."""


class Unprotected:
    def __init__(self, topology: Topology) -> None:
        self._subtasks = frozenset(topology.subtasks)
        self._attempt: Attempt | None = None
        self._finished: set[SubtaskId] = set()
        self._prepared: dict[SubtaskId, Mapping[Uid, Sequence[bytes]]] = {}

    busy = False

    @property
    def all_finished(self) -> bool:
        return self._attempt is not None and self._finished == self._subtasks

    def attempt_started(self, attempt: Attempt, restored: CheckpointRecord | None) -> None:
        self._attempt, self._finished, self._prepared = attempt, set(), {}

    def attempt_ended(self, attempt: Attempt, failure: Failure | None) -> None:
        self._attempt = None

    def received(self, message: Acknowledge | Decline | Drained | Finished) -> None:
        if message.attempt != self._attempt:
            return
        match message:
            case Drained(_, subtask, committables):
                self._prepared[subtask] = committables
            case Finished(_, subtask):
                self._finished.add(subtask)

    def last_output(self) -> dict[Uid, list[bytes]]:
        """What all subtasks prepared, by sink."""
        merged: dict[Uid, list[bytes]] = {}
        for subtask in sorted(self._prepared):
            for uid, prepared in self._prepared[subtask].items():
                merged.setdefault(uid, []).extend(prepared)
        return merged
