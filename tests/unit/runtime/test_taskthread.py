"""A thread drives a task: opens, waits for the start, steps when due or woken, and tells when something breaks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import pytest

from penstock.core.ids import ChainId, SubtaskId
from penstock.runtime.clock import SystemClock
from penstock.runtime.ports import Cancel, Note
from penstock.runtime.taskthread import TaskThread

SUBTASK = SubtaskId(ChainId("chain"), 0)


class ScriptedTask:
    """Steps as told by `answers`, one per step; a `Cancel` ends it."""

    def __init__(self, notify: Callable[[], None], answers: list[float | Exception | None]):
        self.notify = notify
        self.answers = answers
        self.notes: queue.SimpleQueue[Note] = queue.SimpleQueue()
        self.events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.ended = False

    def put(self, note: Note) -> None:
        self.notes.put(note)
        self.notify()

    def open(self) -> None:
        self.events.put("open")

    def step(self) -> float | None:
        self.events.put("step")
        while not self.notes.empty():
            if isinstance(self.notes.get(), Cancel):
                self.ended = True
                return None
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


class Driven:
    def __init__(self, *answers: float | Exception | None):
        self.opened = threading.Event()
        self.failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self.ended = threading.Event()
        self.thread = TaskThread(
            SUBTASK, SystemClock(), opened=self.opened.set, failed=self.failures.put, ended=self.ended.set
        )
        self.task = ScriptedTask(self.thread.wake, list(answers))
        self.thread.host(self.task)

    def next(self) -> str:
        return self.task.events.get(timeout=10)


def test_a_task_is_opened_at_once_but_steps_only_after_the_start() -> None:
    driven = Driven()
    driven.thread.open()
    assert driven.opened.wait(10)
    assert driven.next() == "open"
    assert driven.task.events.empty()
    driven.thread.start()
    assert driven.next() == "step"
    driven.thread.cancel()
    assert driven.thread.join(10)


def test_a_task_that_is_due_at_once_steps_again_without_being_woken() -> None:
    driven = Driven(0.0, 0.0, 0.0)
    driven.thread.open()
    driven.thread.start()
    assert [driven.next() for _ in range(5)] == ["open", "step", "step", "step", "step"]
    driven.thread.cancel()
    assert driven.thread.join(10)


def test_a_waiting_task_is_woken_by_a_note() -> None:
    driven = Driven(None, SystemClock().now() + 3600)
    driven.thread.open()
    driven.thread.start()
    assert [driven.next(), driven.next()] == ["open", "step"]
    driven.task.notify()
    assert driven.next() == "step"
    driven.task.notify()
    assert driven.next() == "step"
    driven.thread.cancel()
    assert driven.thread.join(10)


def test_a_task_can_be_cancelled_before_it_is_started() -> None:
    driven = Driven()
    driven.thread.open()
    assert driven.opened.wait(10)
    driven.thread.cancel()
    assert driven.thread.join(10)
    assert driven.thread.ended


def test_a_task_that_raises_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    driven = Driven(ValueError("broken inside"))
    driven.thread.open()
    driven.thread.start()
    assert str(driven.failures.get(timeout=10)) == "broken inside"
    assert driven.ended.wait(10)
    assert driven.thread.join(10)


def test_a_thread_that_was_never_opened_has_ended() -> None:
    assert Driven().thread.join(0)
