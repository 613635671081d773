"""Keeps a job's workers running as the tasks of a Spark job.

One Spark job with one task per worker runs for as long as the Penstock job does. Spark replaces a task whose process
died by itself. When Spark gives the whole job up (too many failures of one task, a lost executor with shuffle trouble,
somebody's cancel), it is submitted again as long as that brings workers; when the first submission brings none, or
later several in a row, the Penstock job fails with Spark's last error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
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
        """`registrations`: how many workers have ever come. `gave_up` is called once, on the deployment's thread,
        when Spark brings no workers any more."""
        self._spark = spark
        self._name = name
        self._group = group
        self._function = function
        self._registrations = registrations
        self._gave_up = gave_up
        self._count = 0
        self._over = threading.Event()
        self._thread: InheritableThread | None = None

    def need(self, count: int) -> None:
        """How many workers there shall be. Only the first answer counts: Spark keeps their number."""
        if self._thread is None:
            self._count = count
            self._thread = InheritableThread(target=self._run, name=f"Spark job of {self._name}", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ends the Spark job. By now its workers have been told to end themselves. Those that did not come yet would
        look for a master that is gone, and be started again and again."""
        self._over.set()
        thread = self._thread
        if thread is None:
            return
        if self._registrations() >= self._count:
            thread.join(_GRACE)
        for _ in range(_CANCELS):
            if not thread.is_alive():
                return
            # Again, because one that comes before Spark has the job does nothing.
            self._spark.sparkContext.cancelJobGroup(self._group)
            thread.join(_GRACE / _CANCELS)

    def _run(self) -> None:
        context = self._spark.sparkContext
        context.setJobGroup(self._group, f"Penstock job {self._name}", interruptOnCancel=True)
        fruitless, pause = 0, _FIRST_PAUSE
        while not self._over.is_set():
            before = self._registrations()
            error = self._submit()
            if self._over.is_set():
                return
            fruitless = 0 if self._registrations() > before else fruitless + 1
            if fruitless >= (_FRUITLESS if before else 1):
                self._gave_up(f"Spark started no workers: {error}")
                return
            _LOG.warning("Spark has ended the job's tasks (%s); they are submitted again", error)
            pause = min(_LONGEST_PAUSE, pause * 2) if fruitless else _FIRST_PAUSE
            self._over.wait(pause)

    def _submit(self) -> str:
        """Blocks for as long as the Spark job runs; why it ended."""
        slots = self._spark.range(0, self._count, 1, self._count)
        try:
            slots.mapInArrow(self._function, "worker string").collect()
        except Exception as error:
            return _without_java(f"{type(error).__name__}: {error}")
        return "all tasks returned"


def _without_java(message: str) -> str:
    """Spark's message without the stack of the JVM; what a Python worker raised stays."""
    lines = message.splitlines()
    return "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith(_JAVA)).strip()
