"""A task's thread gives way to the others of its process, and only it."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from penstock.runtime.priority import TASK_NICENESS, give_way

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has a niceness of each thread")


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def of_a_thread(before: int | None = None) -> int:
    found: list[int] = []

    def run() -> None:
        if before is not None:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), before)
        give_way()
        found.append(niceness())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_only_the_thread_that_asks_gives_way() -> None:
    own = niceness()
    assert of_a_thread() == max(own, TASK_NICENESS)
    assert niceness() == own


def test_a_thread_that_is_nicer_already_stays_so() -> None:
    assert of_a_thread(before=10) == 10
