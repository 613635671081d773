from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.inflight import FIRST_SLICE, InFlightSizer, Slicer
from penstock.core.settings import InFlightSettings

SETTINGS = InFlightSettings(target=0.2, initial_rows=1000, min_rows=100, max_rows=1_000_000, max_bytes=1 << 20)


def run_at(sizer: InFlightSizer, rate: float, seconds: float = 2.0, step: float = 0.01) -> None:
    for _ in range(int(seconds / step)):
        sizer.observe(int(rate * step), step)


def test_capacity_begins_with_the_initial_rows() -> None:
    assert InFlightSizer(SETTINGS).capacity == 1000


@pytest.mark.parametrize("rate", [10_000, 100_000, 1_000_000])
def test_capacity_is_what_the_subtask_does_in_the_target_time(rate: int) -> None:
    sizer = InFlightSizer(SETTINGS)
    run_at(sizer, rate)
    assert sizer.capacity == pytest.approx(rate * 0.2, rel=0.05)


def test_capacity_follows_a_subtask_that_gets_slower_and_faster() -> None:
    sizer = InFlightSizer(SETTINGS)
    run_at(sizer, 100_000)
    run_at(sizer, 10_000)
    assert sizer.capacity == pytest.approx(2_000, rel=0.05)
    run_at(sizer, 100_000)
    assert sizer.capacity == pytest.approx(20_000, rel=0.05)


def test_one_odd_window_does_not_throw_the_capacity_over() -> None:
    sizer = InFlightSizer(SETTINGS)
    run_at(sizer, 100_000)
    run_at(sizer, 0, seconds=0.05)
    assert sizer.capacity > 10_000


def test_capacity_stays_between_its_bounds() -> None:
    sizer = InFlightSizer(SETTINGS)
    run_at(sizer, 0)
    assert sizer.capacity == 100
    run_at(sizer, 1e9)
    assert sizer.capacity == 1_000_000


def test_large_rows_are_bounded_by_bytes() -> None:
    sizer = InFlightSizer(SETTINGS)
    sizer.weigh(10, 10 * 1024)
    run_at(sizer, 1e9)
    assert sizer.capacity == 1024


def test_a_row_that_is_larger_than_all_memory_for_it_may_still_pass() -> None:
    sizer = InFlightSizer(SETTINGS)
    sizer.weigh(1, 1 << 30)
    run_at(sizer, 10)
    assert sizer.capacity == 1


def test_without_a_target_capacity_is_the_maximum() -> None:
    sizer = InFlightSizer(InFlightSettings(target=None, max_rows=5000))
    assert sizer.capacity == 5000
    run_at(sizer, 10)
    assert sizer.capacity == 5000


def test_a_change_of_capacity_is_told() -> None:
    sizer = InFlightSizer(SETTINGS)
    assert not sizer.observe(1000, 0.01)
    assert sizer.observe(100_000, 0.05)


def test_the_first_slice_is_small() -> None:
    assert Slicer(0.01, 1 << 20).rows == FIRST_SLICE


def test_slices_at_most_double() -> None:
    slicer = Slicer(0.01, 1 << 20)
    sizes = []
    for _ in range(8):
        sizes.append(slicer.rows)
        slicer.observe(slicer.rows, 0.0)
    assert sizes == [FIRST_SLICE << i for i in range(8)]


@pytest.mark.parametrize("cost", [1e-8, 1e-6, 1e-4, 1e-3])
def test_slices_settle_at_the_budget(cost: float) -> None:
    slicer = Slicer(0.01, 1 << 20)
    for _ in range(40):
        slicer.observe(slicer.rows, slicer.rows * cost)
    assert slicer.rows * cost == pytest.approx(min(0.01, (1 << 20) * cost), rel=0.2)


def test_a_row_that_takes_longer_than_the_budget_is_a_slice_of_its_own() -> None:
    slicer = Slicer(0.01, 1 << 20)
    slicer.observe(256, 256 * 0.5)
    assert slicer.rows == 1


def test_a_dearer_slice_shrinks_the_next_one_at_once() -> None:
    slicer = Slicer(0.01, 1 << 20)
    for _ in range(10):
        slicer.observe(slicer.rows, slicer.rows * 1e-7)
    slicer.observe(slicer.rows, slicer.rows * 1e-5)
    assert slicer.rows == pytest.approx(1000, abs=1)


def grown_slicer() -> Slicer:
    """Slices of 100,000 rows of 0.1 microseconds."""
    slicer = Slicer(0.01, 1 << 20)
    for _ in range(20):
        slicer.observe(slicer.rows, slicer.rows * 1e-7)
    return slicer


def test_a_slice_that_was_held_up_once_changes_nothing() -> None:
    slicer = grown_slicer()
    before = slicer.rows
    for _ in range(3):
        slicer.observe(before, 0.03)
        assert slicer.rows == before
        slicer.observe(before, before * 1e-7)
        assert slicer.rows == before


def test_a_slice_that_is_dearer_twice_in_a_row_is_believed_as_far_as_both_agree() -> None:
    slicer = grown_slicer()
    slicer.observe(100_000, 0.04)
    slicer.observe(100_000, 0.02)
    assert slicer.rows == pytest.approx(50_000, abs=1)


def test_tiny_batches_do_not_make_rows_look_dear() -> None:
    slicer = Slicer(0.01, 1 << 20)
    for _ in range(10):
        slicer.observe(slicer.rows, slicer.rows * 1e-8)
    grown = slicer.rows
    slicer.observe(1, 0.0001)
    assert slicer.rows == grown


def test_slices_grow_again_after_one_slow_moment() -> None:
    slicer = Slicer(0.01, 1 << 20)
    slicer.observe(256, 10.0)
    for _ in range(60):
        slicer.observe(slicer.rows, slicer.rows * 1e-8)
    assert slicer.rows > 100_000


@pytest.mark.parametrize("call", [0.001, 0.004, 0.012, 0.06])
def test_what_a_call_costs_does_not_make_slices_smaller_and_smaller(call: float) -> None:
    slicer = Slicer(0.01, 1 << 16)
    for _ in range(100):
        slicer.observe(slicer.rows, call + slicer.rows * 2e-6)
    assert slicer.rows * 2e-6 == pytest.approx(max(0.01 - call, call), rel=0.6)


def test_calls_that_take_now_long_now_short_leave_slices_of_a_useful_size() -> None:
    slicer, random = Slicer(0.01, 1 << 16), Random(1)
    rows = seconds = 0.0
    for _ in range(400):
        rows, spent = rows + slicer.rows, random.lognormvariate(0, 1) * 0.03 + slicer.rows * 2e-6
        seconds += spent
        slicer.observe(slicer.rows, spent)
    assert rows / seconds > 100_000


def test_slices_come_back_to_the_budget_when_calls_cost_no_more() -> None:
    slicer = Slicer(0.01, 1 << 16)
    for call in [0.05] * 40 + [0.0] * 60:
        slicer.observe(slicer.rows, call + slicer.rows * 2e-6)
    assert slicer.rows * 2e-6 == pytest.approx(0.01, rel=0.1)


def test_a_poll_that_found_nothing_says_nothing() -> None:
    slicer = Slicer(0.01, 1 << 20)
    slicer.observe(0, 1.0)
    assert slicer.rows == FIRST_SLICE


def test_a_slice_is_not_grown_by_batches_that_were_smaller() -> None:
    slicer = Slicer(0.01, 1 << 20)
    for _ in range(20):
        slicer.observe(300, 0.0)
    assert slicer.rows == 600


@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.floats(0, 10)), max_size=50))
def test_a_slice_is_never_empty_and_never_above_the_limit(measured: list[tuple[int, float]]) -> None:
    slicer = Slicer(0.01, 65_536)
    for rows, seconds in measured:
        slicer.observe(min(rows, slicer.rows), seconds)
        assert 1 <= slicer.rows <= 65_536
