"""What is made of phases with and without checkpoints."""

from __future__ import annotations

import pytest

from penstock.bench.alternation import Phase, cost, summary
from penstock.bench.changelog import compared, table
from penstock.bench.throughput import Figure
from penstock.core.barrier import Mode, Purpose
from penstock.core.ids import Attempt, CheckpointId
from penstock.core.statistics import CheckpointStatistics, Status


def checkpoint(duration_ms: float, status: Status = Status.COMPLETED) -> CheckpointStatistics:
    return CheckpointStatistics(
        CheckpointId(1), Attempt(1), Purpose.CHECKPOINT, Mode.ADAPTIVE, status, 0, duration_ms, 4, 0
    )


def phases(*rates: float, durations: tuple[float, ...] = (50.0,)) -> list[Phase]:
    """Without and with checkpoints in turn."""
    return [
        Phase(place % 2 == 1, rate, 1e9 / rate, [checkpoint(one) for one in durations] if place % 2 else ())
        for place, rate in enumerate(rates)
    ]


def test_each_phase_is_compared_with_its_neighbours_so_that_drift_costs_nothing() -> None:
    drifting = phases(100.0, 110.0 * 0.9, 120.0, 130.0 * 0.9, 140.0)
    assert cost(drifting, lambda phase: phase.events_per_s).each == pytest.approx([0.1, 0.1])


def test_what_happens_seldom_counts_as_often_as_it_happens() -> None:
    seldom = phases(*([100.0, 100.0] * 9 + [100.0, 50.0, 100.0]))
    assert cost(seldom, lambda phase: phase.events_per_s).mean == pytest.approx(0.05)


def test_the_interval_is_narrow_if_phases_agree_and_wide_if_they_do_not() -> None:
    agreeing, differing = summary([0.05, 0.05, 0.05, 0.05]), summary([-0.2, 0.3, -0.1, 0.2])
    assert agreeing.interval == pytest.approx((0.05, 0.05))
    low, high = differing.interval
    assert low < 0.0 < differing.mean < 0.15 < high


def whole(p99: float) -> Figure:
    return Figure(50.0, 1, 1.0, 1, 2, 10, 0, p99 - 100.0, p99, 10_000_000, {}, None, [], 0, 0, 0, [], [])


def test_a_comparison_has_the_cost_of_all_phases_and_the_durations_of_completed_checkpoints() -> None:
    rounds = [phases(100.0, 95.0, 100.0, durations=(50.0, 60.0)), phases(100.0, 97.0, 100.0, durations=(70.0,))]
    found = compared(1_000, 10, "100ms", [whole(600.0), whole(700.0)], rounds)
    assert found.throughput_cost == pytest.approx(0.04) and found.throughput_cost_range == (0.03, 0.05)
    assert found.cpu_cost == pytest.approx(0.04) and found.phases == 2
    assert found.checkpoints == {"whole": 20, "changelog": 3}
    assert found.checkpoint_ms_p99 == {"whole": 650.0, "changelog": 65.0}
    assert found.faster_p99_range == (10.0, 10.0)
    assert found.events_per_s == {"none": 100.0, "whole": 50.0, "changelog": 96.0}
    assert "at 4.0% of the throughput without checkpoints" in table(found)
