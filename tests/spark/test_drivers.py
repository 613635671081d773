"""Drivers that are killed, started again, and started twice: the committed output is exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.spark.support import accounts
from tests.spark.support.jobs import pause
from tests.spark.support.processes import Driver

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def start(*options: str, **more: Any) -> Driver:
        made.append(Driver(tmp_path / "job", *options, **more))
        return made[-1]

    yield start
    for driver in made:
        driver.close()


@pytest.mark.parametrize("mode", ["adaptive", "unaligned"])
def test_a_killed_driver_leaves_nothing_behind_and_the_next_one_continues(
    drive: Callable[..., Driver], tmp_path: Path, mode: str
) -> None:
    random = Random(mode)
    killed = drive("--mode", mode)
    killed.wait_for_checkpoints(random.randint(1, 5))
    pause(random, 0.3)
    killed.kill()
    killed.wait_until_nothing_lives()
    again = drive("--mode", mode)
    again.wait_for_checkpoints(2)
    (tmp_path / "job" / "stop").touch()
    again.wait_for_end()
    assert accounts.problems(accounts.committed(tmp_path / "job" / "accounts")) == []


def test_a_second_driver_fences_the_first_one(drive: Callable[..., Driver], tmp_path: Path) -> None:
    first = drive()
    first.wait_for_checkpoints(2)
    second = drive()
    failed = first.wait_for_end("failed")
    assert failed["kind"] == "JobFailed"
    assert "fenced" in failed["message"]
    assert "another driver" in failed["message"]
    second.wait_for_checkpoints(2)
    (tmp_path / "job" / "stop").touch()
    second.wait_for_end()
    assert accounts.problems(accounts.committed(tmp_path / "job" / "accounts")) == []
