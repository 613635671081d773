"""When the checkpoint directory is cleaned."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

from tests.unit.runtime.master_harness import ManualClock

from penstock.core.barrier import Mode, Purpose
from penstock.core.handles import SnapshotFigures
from penstock.core.ids import Attempt, ChainId, CheckpointId, SubtaskId
from penstock.core.statistics import CheckpointStatistics, Status
from penstock.runtime.housekeeping import Housekeeping
from penstock.store.checkpoints import CheckpointStore


class Store:
    """Whose cleaning takes a while."""

    def __init__(self, clock: ManualClock, takes: float) -> None:
        self.clock, self.takes = clock, takes
        self.cleaned_at: list[float] = []
        self.recorded = 0

    def clean(self, *_: object) -> None:
        self.cleaned_at.append(self.clock.now())
        self.clock.time += self.takes

    def record_statistics(self, *entries: object) -> None:
        self.recorded += len(entries)


def at_once(work: Callable[[], Any], then: Callable[[Any], None]) -> None:
    then(work())


def cleanings(takes: float, bytes: int, seconds: float, every: float = 0.1) -> list[float]:
    """When they begin, with checkpoints of so many bytes at short intervals."""
    clock = ManualClock()
    store = Store(clock, takes)
    in_use = lambda: ((), Attempt(1))  # noqa: E731
    keeping = Housekeeping(cast(CheckpointStore, store), at_once, lambda reason: None, in_use, clock, 1.0)
    start, figures = clock.now(), {SubtaskId(ChainId("a"), 0): SnapshotFigures(state_bytes=bytes)}
    number = 0
    while clock.now() < start + seconds:
        number += 1
        done = CheckpointStatistics(
            CheckpointId(number), Attempt(1), Purpose.CHECKPOINT, Mode.ADAPTIVE, Status.COMPLETED, 0, 1.0, 1, 0, figures
        )
        keeping.ended(done)
        clock.time += every
    keeping.finish(clean=False)
    assert store.recorded == number, "no figures are lost"
    return [at - start for at in store.cleaned_at]


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


def test_a_quick_cleaning_is_done_every_second() -> None:
    assert all(1.0 <= gap < 1.2 for gap in gaps(cleanings(0.001, 1_000, 10.0)))


def test_a_cleaning_that_takes_long_is_done_seldom() -> None:
    assert all(4.0 <= gap < 4.3 for gap in gaps(cleanings(0.02, 1_000, 30.0)))


def test_it_waits_no_longer_than_a_minute() -> None:
    assert all(60.0 <= gap < 62.0 for gap in gaps(cleanings(1.0, 1_000, 200.0)))


def test_what_takes_much_space_is_cleaned_soon_however_long_that_takes() -> None:
    assert all(1.0 <= gap < 1.3 for gap in gaps(cleanings(0.1, 300 << 20, 10.0)))
