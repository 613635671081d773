"""Jobs that change their size: from every kind of snapshot, there and back, with what is in flight."""

from __future__ import annotations

import pytest

from penstock.simulation.phases import KINDS, PAIRS, Lives, live

BOTH_WAYS = [*PAIRS, *((new, old) for old, new in PAIRS)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("old", "new"), BOTH_WAYS)
def test_a_job_in_three_lives_loses_nothing_and_repeats_nothing(kind: str, old: int, new: int) -> None:
    world = live(Lives(kind, old, new, seed=old * 10 + new))
    assert world.driver.state == "finished"


@pytest.mark.parametrize("kind", ["savepoint", "unaligned savepoint"])
@pytest.mark.parametrize(("old", "new", "seed"), [(3, 3, 1), (7, 7, 124), (5, 3, 2), (2, 12, 3), (4, 9, 4), (4, 4, 5)])
def test_a_job_goes_on_from_a_savepoint_with_more_key_groups(kind: str, old: int, new: int, seed: int) -> None:
    """Also at the size that it had, where some keys move all the same, and at one that it could not have had."""
    world = live(Lives(kind, old, new, seed=seed, rehashed=True))
    assert world.driver.state == "finished"
