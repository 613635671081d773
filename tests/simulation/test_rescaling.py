"""Jobs that change their size: from every kind of snapshot, there and back, with what is in flight."""

from __future__ import annotations

import pytest

from penstock.core.record import GraphRecord
from penstock.simulation.phases import KINDS, PAIRS, Lives, live
from penstock.simulation.story import Violation

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


def test_the_simulation_notices_when_records_of_keys_that_moved_go_to_their_former_owners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GraphRecord, "moves_keys", lambda graph, parallelism: False)
    with pytest.raises(Violation):
        for seed in range(124, 164):
            live(Lives("unaligned savepoint", 7, 7, seed=seed, rehashed=True))
