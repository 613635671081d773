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
