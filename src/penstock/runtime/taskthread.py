"""The thread of one subtask: opens its task, waits for the start, steps it until it has ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Protocol

from penstock.core.ids import SubtaskId
from penstock.operators.base import Clock
from penstock.runtime.bell import Bell
from penstock.runtime.ports import Cancel, Note
from penstock.runtime.priority import give_way

_LOG: Final = logging.getLogger(__name__)


class SteppedTask(Protocol):
    """What the thread needs of a `Task`."""

    @property
    def ended(self) -> bool: ...

    def put(self, note: Note) -> None: ...

    def open(self) -> None: ...

    def step(self) -> float | None: ...


class TaskThread:
    """Made before its task, because the task needs a transport that leads to the mailboxes of others: see `host`."""

    def __init__(
        self,
        subtask: SubtaskId,
        clock: Clock,
        *,
        opened: Callable[[], None],
        failed: Callable[[BaseException], None],
        ended: Callable[[], None],
    ):
        """`opened`, `failed` (something escaped from the task) and `ended` are called on the task's thread."""
        self.subtask = subtask
        self._clock = clock
        self._opened = opened
        self._failed = failed
        self._ended = ended
        self._bell = Bell()
        self._started = False
        self._cancelled = False
        self._task: SteppedTask
        self._thread = threading.Thread(target=self._run, name=f"task {subtask}", daemon=True)

    def host(self, task: SteppedTask) -> None:
        """Once, before anything else. The task must call `wake` after every note that is put to it."""
        self._task = task

    def wake(self) -> None:
        self._bell.ring()

    @property
    def ended(self) -> bool:
        return self._task.ended

    @property
    def ident(self) -> int:
        return self._thread.ident or 0

    def put(self, note: Note) -> None:
        self._task.put(note)

    def open(self) -> None:
        """Starts the thread, which opens the task and then waits."""
        self._thread.start()

    def start(self) -> None:
        self._started = True
        self._bell.ring()

    def cancel(self) -> None:
        """Asks the task to end; a task in a user function does so when that returns."""
        self._cancelled = True
        self._task.put(Cancel())
        self._bell.ring()

    def join(self, timeout: float) -> bool:
        """Whether the thread has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        give_way()
        try:
            self._task.open()
            if not self._task.ended:
                self._opened()
            while not (self._started or self._cancelled or self._task.ended):
                self._bell.wait()
            self._step_until_ended()
        except BaseException as error:
            _LOG.exception("the task %s broke", self.subtask)
            self._failed(error)
        finally:
            self._ended()

    def _step_until_ended(self) -> None:
        task, bell, now = self._task, self._bell, self._clock.now
        while not task.ended:
            # Cleared before the step: a note that comes during the step wakes the next wait.
            bell.clear()
            due = task.step()
            if due is None:
                if not task.ended:
                    bell.wait()
            elif (pause := due - now()) > 0:
                bell.wait(pause)
