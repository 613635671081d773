"""Keeps a job's workers running as the tasks of a Spark job.

One Spark job with one task per worker runs for as long as the Penstock job does (and one more for those that are
needed when it grows). Spark replaces a task whose process died by itself. When Spark gives the whole job up (too many
failures of one task, a lost executor with shuffle trouble, somebody's cancel), it is submitted again as long as that
brings workers; when the first submission brings none, or later several in a row, the Penstock job fails with Spark's
last error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from penstock.spark.entry import Batches

_LOG: Final = logging.getLogger(__name__)
_FRUITLESS: Final = 4
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_GRACE: Final = 5.0
_CANCELS: Final = 10
_JAVA: Final = ("at ", "Caused by: ", "... ", "Driver stacktrace:", "Suppressed: ")


@dataclass(eq=False)
class _Crew:
    """The workers of one Spark job."""

    size: int
    thread: InheritableThread | None = None


class SparkDeployment:
    def __init__(
        self,
        spark: SparkSession,
        name: str,
        group: str,
        function: Callable[[Batches], Batches],
        *,
        registrations: Callable[[], int],
        gave_up: Callable[[str], None],
    ):
        """`registrations`: how many workers have ever come. `gave_up` is called once, on a thread of the deployment,
        when Spark brings no workers any more."""
        self._spark = spark
        self._name = name
        self._group = group
        self._function = function
        self._registrations = registrations
        self._gave_up = gave_up
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._crews: list[_Crew] = []

    def need(self, count: int) -> None:
        """How many workers there shall be. Spark keeps the number of those that it started; more are a Spark job of
        their own, and fewer come about by workers that are told to leave."""
        with self._lock:
            more = count - sum(crew.size for crew in self._crews)
            for crew in reversed(self._crews):  # who leaves is of the newest crew, mostly
                left = min(crew.size, max(0, -more))
                crew.size -= left
                more += left
            if more > 0:
                crew = _Crew(more)
                crew.thread = InheritableThread(
                    target=self._run, args=(crew,), name=f"Spark job of {self._name}", daemon=True
                )
                self._crews.append(crew)
                crew.thread.start()

    def close(self) -> None:
        """Ends the Spark jobs. By now their workers have been told to end themselves. Those that did not come yet would
        look for a master that is gone, and be started again and again."""
        self._over.set()
        threads = [crew.thread for crew in self._crews if crew.thread is not None]
        if self._registrations() >= sum(crew.size for crew in self._crews):
            _join(threads, _GRACE)
        for _ in range(_CANCELS):
            if not any(thread.is_alive() for thread in threads):
                return
            # Again, because one that comes before Spark has the job does nothing.
            self._spark.sparkContext.cancelJobGroup(self._group)
            _join(threads, _GRACE / _CANCELS)

    def _run(self, crew: _Crew) -> None:
        context = self._spark.sparkContext
        context.setJobGroup(self._group, f"Penstock job {self._name}", interruptOnCancel=True)
        fruitless, pause = 0, _FIRST_PAUSE
        while not self._over.is_set():
            before = self._registrations()
            error = self._submit(crew.size)
            if self._over.is_set() or self._has_left(crew, error is None):
                return
            fruitless = 0 if self._registrations() > before else fruitless + 1
            if fruitless >= (_FRUITLESS if before else 1):
                self._gave_up(f"Spark started no workers: {error or 'all tasks returned'}")
                return
            _LOG.warning("Spark has ended the job's tasks (%s); they are submitted again", error or "they returned")
            pause = min(_LONGEST_PAUSE, pause * 2) if fruitless else _FIRST_PAUSE
            self._over.wait(pause)

    def _has_left(self, crew: _Crew, by_order: bool) -> bool:
        """Whether the crew is not needed any more. Workers return when they are told to leave. If that was not taken
        into account in this crew's size, it was in another's."""
        with self._lock:
            others = [other for other in self._crews if other is not crew]
            if by_order and others:
                others[0].size += crew.size
                crew.size = 0
            if not crew.size:
                self._crews.remove(crew)
            return not crew.size

    def _submit(self, count: int) -> str | None:
        """Blocks for as long as the Spark job runs. Why it failed; None if all its workers returned."""
        slots = self._spark.range(0, count, 1, count)
        try:
            slots.mapInArrow(self._function, "worker string").collect()
        except Exception as error:
            return _without_java(f"{type(error).__name__}: {error}")
        return None


def _without_java(message: str) -> str:
    """Spark's message without the stack of the JVM; what a Python worker raised stays."""
    lines = message.splitlines()
    return "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith(_JAVA)).strip()


def _join(threads: Iterable[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
