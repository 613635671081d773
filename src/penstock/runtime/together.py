"""The acknowledgements of a worker's subtasks, sent together: the checkpoint waits for all of them anyway.

A message of its own costs a system call here and wakes two threads at the master, many times what is in it. So an
acknowledgement is left for the next one of the same worker, and the last one sends them all. Where that never comes,
because a subtask has declined or hangs, the next message of any kind takes along what was left, at the latest a
heartbeat.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from penstock.core.ids import CheckpointId, SubtaskId
from penstock.runtime.control.messages import Acknowledge

_REMEMBERED: Final = 16
"""Checkpoints of which somebody has not spoken."""


class Together:
    """Of one attempt on one worker. Called from any thread."""

    def __init__(
        self, subtasks: Iterable[SubtaskId], leave: Callable[[Acknowledge], None], flush: Callable[[], None]
    ) -> None:
        """`leave`: with the next message, or at `flush`."""
        self._living = set(subtasks)
        self._leave, self._flush = leave, flush
        self._lock = threading.Lock()
        self._missing: dict[CheckpointId, set[SubtaskId]] = {}
        """Who has not acknowledged yet, of those that may."""

    def acknowledge(self, message: Acknowledge) -> None:
        self._leave(message)
        checkpoint = message.checkpoint
        with self._lock:
            missing = self._missing.pop(checkpoint, None) or set(self._living)
            missing.discard(message.subtask)
            if missing:
                self._missing[checkpoint] = missing
                while len(self._missing) > _REMEMBERED:
                    del self._missing[min(self._missing)]
        if not missing:
            self._flush()

    def ended(self, subtask: SubtaskId) -> None:
        """It will acknowledge nothing any more."""
        with self._lock:
            self._living.discard(subtask)
            for missing in self._missing.values():
                missing.discard(subtask)
            complete = [checkpoint for checkpoint, missing in self._missing.items() if not missing]
            for checkpoint in complete:
                del self._missing[checkpoint]
        if complete:
            self._flush()
