"""A job that answers at once, or when it is told to, and remembers what it was asked."""

from __future__ import annotations

import threading
from typing import Any

from penstock.api.checkpoints import changed_settings
from penstock.core.barrier import Mode, Purpose
from penstock.core.handles import SnapshotFigures
from penstock.core.ids import Attempt, CheckpointId, SubtaskId, WorkerId
from penstock.core.orders import JobState
from penstock.core.settings import CheckpointSettings
from penstock.core.statistics import CheckpointStatistics, Status
from penstock.runtime.outcome import JobResult, JobStatus
from penstock.runtime.rescaling import RescaleOutcome


def checkpoint(number: int, status: Status = Status.COMPLETED) -> CheckpointStatistics:
    return CheckpointStatistics(
        CheckpointId(number),
        Attempt(1),
        Purpose.CHECKPOINT,
        Mode.ADAPTIVE,
        status,
        triggered_ms=1_000 * number,
        duration_ms=12.5,
        expected=2,
        finished=0,
        subtasks={SubtaskId("read", 0): SnapshotFigures(state_bytes=2_000)},
    )


class FakeJob:
    def __init__(self, name: str = "orders") -> None:
        self.name = name
        self.asked: list[tuple[Any, ...]] = []
        self.taken = [checkpoint(1), checkpoint(2), checkpoint(3, Status.IN_PROGRESS)]
        self.refuses: Exception | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.was_asked, self.was_described = threading.Event(), threading.Event()
        self._settings = CheckpointSettings()

    def _ask(self, *what: Any) -> None:
        self.asked.append(what)
        self.was_asked.set()
        assert self.may_answer.wait(30)
        if self.refuses is not None:
            raise self.refuses

    def status(self) -> JobStatus:
        self.was_described.set()
        workers = (WorkerId("a"), None)
        return JobStatus(JobState.RUNNING, Attempt(2), 1, workers, (), CheckpointId(2), 2, 0, None)

    def settings(self) -> CheckpointSettings | None:
        return self._settings

    def checkpoints(self) -> list[CheckpointStatistics]:
        return self.taken

    def trigger_checkpoint(self) -> CheckpointId:
        self._ask("checkpoint")
        return CheckpointId(4)

    def savepoint(self, path: str, *, aligned: bool = False) -> CheckpointId:
        self._ask("savepoint", path, aligned)
        return CheckpointId(4)

    def begin_stop(self, drain: bool = True, *, savepoint: str | None = None) -> None:
        self._ask("stop", drain, savepoint)

    def begin_cancel(self) -> None:
        self._ask("cancel")

    def outcome(self) -> JobResult:
        return JobResult(JobState.FINISHED, 3.5, 1, 4, CheckpointId(5))

    def rescale(self, parallelism: int) -> RescaleOutcome:
        self._ask("rescale", parallelism)
        return RescaleOutcome(parallelism, CheckpointId(4), 0.25)

    def configure(self, **options: Any) -> CheckpointSettings:
        self._ask("configure", options)
        self._settings = changed_settings(self._settings, options)  # type: ignore[arg-type]
        return self._settings
