"""How many rows a step takes in: no more than the receivers of what it puts out have granted."""

from __future__ import annotations

import pytest

from penstock.core.inflight import FIRST_SLICE, LEAST_STEP, Slicer, StepSizer


@pytest.fixture
def sizer() -> StepSizer:
    return StepSizer(Slicer(budget=0.01, limit=1 << 16))


def test_a_task_without_outputs_takes_whole_slices(sizer: StepSizer) -> None:
    assert sizer.rows(None) == FIRST_SLICE


def test_a_task_with_room_to_send_takes_whole_slices(sizer: StepSizer) -> None:
    assert sizer.rows(1 << 20) == FIRST_SLICE


def test_a_step_takes_no_more_than_there_is_room_for(sizer: StepSizer) -> None:
    assert sizer.rows(100) == 100


def test_without_room_a_step_still_takes_a_few_rows(sizer: StepSizer) -> None:
    assert sizer.rows(0) == LEAST_STEP


def test_a_task_that_makes_ten_rows_of_one_takes_a_tenth_of_the_room(sizer: StepSizer) -> None:
    for _ in range(50):
        sizer.observe(100, 1_000, 0.0001)
    assert sizer.rows(1_000) == pytest.approx(100, abs=1)


def test_a_filter_that_lets_little_through_takes_more_than_the_room(sizer: StepSizer) -> None:
    for _ in range(50):
        sizer.observe(100, 10, 0.0001)
    assert sizer.rows(20) == pytest.approx(200, abs=2)


def test_steps_grow_while_they_stay_cheap(sizer: StepSizer) -> None:
    for _ in range(10):
        rows = sizer.rows(None)
        sizer.observe(rows, rows, rows * 1e-8)
    assert sizer.rows(None) == 1 << 16
