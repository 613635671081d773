"""Wakes one thread from others: a lock that is held while there is nothing to hear.

An `Event` does the same for any number of waiting threads and pays for it with a new lock in every wait; tasks and
links wait a thousand times a second.
"""

from __future__ import annotations

import contextlib
import threading


class Bell:
    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """Ends the wait that is on, or the next one. Any number of rings before it count as one."""
        if self._silent.locked():
            with contextlib.suppress(RuntimeError):  # another ring came in between
                self._silent.release()

    def clear(self) -> None:
        """Forgets rings."""
        self._silent.acquire(False)

    def wait(self, seconds: float | None = None) -> bool:
        """Until it rings, which is forgotten, or that time is over. Returns whether it rang."""
        return self._silent.acquire(timeout=-1 if seconds is None else max(0.0, seconds))
