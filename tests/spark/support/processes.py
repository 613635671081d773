"""Drivers as processes: started, followed through what they print, killed; and everything that they ever started.

A driver's descendants (the JVM, executors, Python workers) are told by a mark in their environment, which they inherit
and keep even when their parents are dead.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyspark
from tests.spark.support import accounts
from tests.spark.support.jobs import sent, wait_until

PATIENCE = 180.0
"""Seconds: starting Spark several times takes its time on a busy machine."""
_ROOT = Path(__file__).parents[3]
_MARK = "PENSTOCK_TEST_RUN"


class Marked:
    """All processes that carry one mark."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(8)

    def environment(self, spark_home: Path | None = None) -> dict[str, str]:
        made = {**os.environ, _MARK: self.mark, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(_ROOT)}
        made["SPARK_LOCAL_IP"] = "127.0.0.1"
        if spark_home is not None:
            made["SPARK_HOME"] = str(spark_home)
        return made

    def living(self, having: str = "") -> list[int]:
        """The processes that are there, those only that have such a word in their command line."""
        wanted = f"{_MARK}={self.mark}".encode()
        return [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if wanted in _content(pid, "environ").split(b"\0") and having.encode() in _content(pid, "cmdline")
        ]

    def kill_all(self) -> None:
        for pid in self.living():
            sent(pid, signal.SIGKILL)


def ancestors(pid: int) -> list[int]:
    """Of a process, nearest first."""
    found = []
    while (stat := _content(pid, "stat")) and (pid := int(stat.rpartition(b")")[2].split()[1])):
        found.append(pid)
    return found


def _content(pid: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:  # it has just ended
        return b""


class Driver:
    """A process that runs `tests.spark.support.driver` with jobs in the modes that are named."""

    def __init__(self, directory: Path, *modes: str, options: Sequence[str] = (), spark_home: Path | None = None):
        self._directory = directory
        self._modes = modes
        directory.mkdir(exist_ok=True)
        self.run = Marked()
        self.events: list[dict[str, Any]] = []
        self._errors = directory / f"driver-{self.run.mark}.log"
        jobs = [f"{mode}={self.directory_of(mode)}" for mode in modes]
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.support.driver", *jobs, *options],
                cwd=_ROOT,
                env=self.run.environment(spark_home),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._changed = threading.Condition()
        self._over = False
        self._reader = threading.Thread(target=self._read, name="reader of a driver's output", daemon=True)
        self._reader.start()

    def directory_of(self, mode: str) -> Path:
        """Jobs that run one after another in one driver are different ones; the only job of a driver can be continued
        by another driver in another mode."""
        return self._directory / (mode if len(self._modes) > 1 else "job")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.events.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool], patience: float = PATIENCE) -> dict[str, Any]:
        """The first event, past or to come, that is wanted."""

        def found() -> dict[str, Any] | None:
            return next((event for event in self.events if wanted(event)), None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None or self._over, patience)
            event = found()
        assert event is not None, self.story()
        return event

    def wait_for_checkpoints(self, count: int, *, mode: str = "", restarts: int = 0) -> dict[str, Any]:
        return self.wait_for(
            lambda event: (
                event["event"] == "progress"
                and (not mode or event["mode"] == mode)
                and event["checkpoints"] >= count
                and event["restarts"] >= restarts
            )
        )

    def wait_for_another_checkpoint(self) -> None:
        """Completed after now."""
        before = max((event["checkpoints"] for event in self.events if event["event"] == "progress"), default=0)
        self.wait_for_checkpoints(before + 1)

    def stop(self, mode: str = "") -> list[str]:
        """Drains a job; the problems of its output, by what its mode promises."""
        mode = mode or self._modes[0]
        directory = self.directory_of(mode)
        (directory / "stop").touch()
        self.wait_for(lambda event: event["event"] == "finished" and event["mode"] == mode)
        judge = accounts.shortfalls if mode == "at_least_once" else accounts.problems
        return judge(accounts.committed(directory / "accounts"))

    def wait_for_failure(self) -> dict[str, Any]:
        failed = self.wait_for(lambda each: each["event"] == "failed")
        self.process.wait(PATIENCE)
        return failed

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def wait_until_nothing_lives(self) -> None:
        wait_until(lambda: not self.run.living(), lambda: f"still alive: {self._describe_living()}")

    def close(self) -> None:
        self.run.kill_all()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)

    def story(self) -> str:
        return f"last events {self.events[-5:]}; errors: {self._errors.read_text()[-3000:]}"

    def _describe_living(self) -> list[bytes]:
        return [_content(pid, "cmdline")[:200] for pid in self.run.living()]


def spark_home(directory: Path) -> Path:
    """The installed Spark under another name: `local-cluster` leaves its `work` directory in SPARK_HOME, and nowhere
    else."""
    directory.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (directory / entry.name).symlink_to(entry)
    return directory
