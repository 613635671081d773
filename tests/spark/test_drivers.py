"""Drivers that are killed, started again, and started twice: the committed output is exact."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from tests.spark.support.jobs import pause
from tests.spark.support.processes import Driver

pytestmark = pytest.mark.timeout(600)


def test_killed_drivers_leave_nothing_behind_and_the_next_one_continues(drive: Callable[..., Driver]) -> None:
    random = Random(2)
    for mode in ("aligned", "unaligned", "adaptive"):
        killed = drive(mode)
        killed.wait_for_checkpoints(random.randint(1, 5))
        pause(random, 0.3)
        killed.kill()
        killed.wait_until_nothing_lives()
    last = drive("adaptive")
    last.wait_for_checkpoints(2)
    assert last.stop() == []


def test_a_killed_driver_loses_nothing_at_least_once(drive: Callable[..., Driver]) -> None:
    killed = drive("at_least_once")
    killed.wait_for_checkpoints(2)
    killed.kill()
    last = drive("at_least_once")
    last.wait_for_checkpoints(2)
    assert last.stop() == []


@pytest.mark.slow
def test_a_second_driver_fences_the_first_one(drive: Callable[..., Driver]) -> None:
    first = drive("adaptive")
    first.wait_for_checkpoints(2)
    second = drive("adaptive")
    failed = first.wait_for_failure()
    assert failed["kind"] == "JobFailed"
    assert "fenced" in failed["message"]
    assert "another driver" in failed["message"]
    second.wait_for_checkpoints(2)
    assert second.stop() == []
