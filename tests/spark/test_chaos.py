"""The slow suite: for minutes, everything is killed or frozen at random, in every mode; the output is exact.

`PENSTOCK_CHAOS_SEED` chooses other moments, `PENSTOCK_CHAOS_SECONDS` (of kills per mode, default 100) another length.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.spark.support import accounts
from tests.spark.support.jobs import pause, sent
from tests.spark.support.processes import Driver, spark_home

SEED = os.environ.get("PENSTOCK_CHAOS_SEED", "1")
SECONDS = float(os.environ.get("PENSTOCK_CHAOS_SECONDS", "100"))
EXECUTOR = "CoarseGrainedExecutorBackend"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]


class Chaos:
    """One job on a local cluster, and what is done to it. The story is what a failed test shows."""

    def __init__(self, drive: Callable[..., Driver], mode: str, home: Path):
        self.random = Random(f"{SEED} {mode}")
        self.story: list[str] = []
        self._start = lambda: drive(mode, options=("--master", "local-cluster[2,2,1024]"), spark_home=home)
        self.driver = self._start()
        self._blows = {
            self._kill_a_worker: 8,
            self._kill_all_workers: 2,
            self._freeze_a_worker: 2,
            self._kill_an_executor: 3,
            self._kill_the_driver: 1,
        }

    def strike(self) -> None:
        """Once the job makes progress; sometimes a second time before it does so again."""
        self.driver.wait_for_another_checkpoint()
        for _ in range(self.random.choice((1, 1, 2))):
            pause(self.random, 1.5)
            blow = self.random.choices(list(self._blows), list(self._blows.values()))[0]
            self.story.append(blow.__name__.strip("_").replace("_", " "))
            blow()

    def _workers(self) -> list[int]:
        living = set(self.driver.run.living())
        told = (event["workers"] for event in reversed(self.driver.events) if event["event"] == "progress")
        return [pid for pid in next(told, []) if pid in living]

    def _kill_a_worker(self) -> None:
        for pid in self.random.sample(workers := self._workers(), min(1, len(workers))):
            sent(pid, signal.SIGKILL)

    def _kill_all_workers(self) -> None:
        for pid in self._workers():
            sent(pid, signal.SIGKILL)

    def _freeze_a_worker(self) -> None:
        for pid in self._workers()[:1]:
            sent(pid, signal.SIGSTOP)
            threading.Event().wait(self.random.choice((0.5, 12.0)))
            sent(pid, signal.SIGCONT)

    def _kill_an_executor(self) -> None:
        for pid in self.driver.run.living(EXECUTOR)[:1]:
            sent(pid, signal.SIGKILL)

    def _kill_the_driver(self) -> None:
        self.driver.kill()
        self.driver.wait_until_nothing_lives()
        self.driver = self._start()


@pytest.mark.parametrize("mode", ["adaptive", "unaligned", "aligned", "stop_the_world", "at_least_once"])
def test_everything_may_be_killed_at_any_time(drive: Callable[..., Driver], tmp_path: Path, mode: str) -> None:
    chaos = Chaos(drive, mode, spark_home(tmp_path / "spark"))
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        chaos.strike()
    chaos.driver.wait_for_another_checkpoint()
    wrong = chaos.driver.stop()
    if mode == "at_least_once":
        wrong = accounts.shortfalls(accounts.committed(chaos.driver.directory_of(mode) / "accounts"))
    assert wrong == [], chaos.story
