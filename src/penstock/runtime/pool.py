"""A few threads for work that blocks: writes to the store, commits.

Unlike the standard library's pool it can be closed within a time limit and never keeps the process from ending.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

_LOG: Final = logging.getLogger(__name__)


class Pool:
    def __init__(self, name: str, threads: int):
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closing = False
        self._threads = [
            threading.Thread(target=self._run, name=f"{name} {number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        """`job` should deal with its own errors; one that escapes is only logged."""
        self._jobs.put(job)

    def after(self, seconds: float, job: Callable[[], None]) -> Callable[[], None]:
        """Submits the job when so much time has passed. Call what is returned if it is not needed any more, and before
        the pool is closed: it waits in a thread of its own."""
        timer = threading.Timer(seconds, self.submit, [job])
        timer.daemon = True
        timer.start()
        return timer.cancel

    def close(self, timeout: float) -> bool:
        """Drops what has not begun and waits for what has. Whether all threads have ended in time."""
        self._closing = True
        deadline = time.monotonic() + timeout
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._closing:
                continue
            try:
                job()
            except Exception:
                _LOG.exception("a background job failed")
