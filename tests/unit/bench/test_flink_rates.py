"""What is made of the counter of Flink's source, which may move steadily or in bursts."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

PEERS = Path(__file__).parents[3] / "bench" / "peers"
Reading = tuple[float, float]


@pytest.fixture
def run_flink(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PEERS))
    return importlib.import_module("run_flink")


def readings(*moves: tuple[float, float], until: float) -> list[Reading]:
    """Four a second, of a counter that moves on by so much at these seconds."""
    times = [number / 4 for number in range(int(until * 4) + 1)]
    return [(sum(size for at, size in moves if at <= time), time) for time in times]


def rate(run_flink: ModuleType, found: list[Reading]) -> float:
    (before, since), (after, until) = run_flink.span(found)
    return float(after - before) / (until - since)


def test_a_steady_counter_is_taken_between_two_of_its_moves(run_flink: ModuleType) -> None:
    found = readings(*((second + 0.5, 100.0) for second in range(10)), until=10)
    assert run_flink.tells_a_rate(found)
    assert rate(run_flink, found) == pytest.approx(100)


def test_bursts_count_with_the_pauses_between_them(run_flink: ModuleType) -> None:
    bursts = [(start + part, 1_000.0) for start in (5, 25, 45) for part in (0, 0.25, 0.5)]
    found = readings(*bursts, until=50)
    assert run_flink.tells_a_rate(found)
    assert rate(run_flink, found) == pytest.approx(3_000 / 20)


def test_a_single_burst_is_no_rate_and_counts_for_all_the_time(run_flink: ModuleType) -> None:
    found = readings((5, 1_000.0), (5.25, 1_000.0), (5.5, 1_000.0), until=60)
    assert not run_flink.tells_a_rate(found)
    assert rate(run_flink, found) == pytest.approx(3_000 / 60)


def test_a_burst_that_was_on_when_the_watch_began_is_no_rate_either(run_flink: ModuleType) -> None:
    found = readings((0.25, 1_000.0), (0.5, 1_000.0), (0.75, 1_000.0), until=30)
    assert not run_flink.tells_a_rate(found)
    assert rate(run_flink, found) == pytest.approx(3_000 / 30)
