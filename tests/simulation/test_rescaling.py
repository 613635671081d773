"""Jobs that change their size: from every kind of snapshot, there and back, with what is in flight."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.core.record import GraphRecord
from penstock.simulation.matrix import KEPT, named, runs_of, verify_lives
from penstock.simulation.phases import KINDS, PAIRS, Lives, Sizes, live

PLAIN_KINDS = ("aligned", "unaligned", "savepoint")


def seeds_of(pair: Sizes) -> range:
    """Other ones for each pair: every run is a job of its own. Large jobs take long: `penstock verify --rescale` runs
    more of them."""
    first = (pair[0] * 10 + pair[1]) * 10
    return range(first, first + (2 if 1 in pair else 1))


@pytest.mark.parametrize("kind", PLAIN_KINDS)
@pytest.mark.parametrize("pair", PAIRS, ids=named)
def test_a_job_in_three_lives_loses_nothing_and_repeats_nothing(kind: str, pair: Sizes) -> None:
    summary = verify_lives(runs_of(seeds_of(pair), [pair], [kind]), processes=1)
    assert [(failure.replay, failure.message) for failure in summary.failures] == []
    assert summary.three_lives == summary.runs > 0


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(PLAIN_KINDS)))
@pytest.mark.parametrize("pair", [(1, 2), (4, 1)], ids=named)
def test_so_does_one_whose_snapshots_are_of_a_mixed_kind(kind: str, pair: Sizes) -> None:
    test_a_job_in_three_lives_loses_nothing_and_repeats_nothing(kind, pair)


def test_the_lives_begin_with_state_of_every_kind_and_records_in_flight() -> None:
    summary = verify_lives(runs_of(range(3), [(2, 1)], ["unaligned"]), processes=1)
    assert summary.three_lives == summary.runs == 3
    assert set(summary.had) == set(KEPT)
    assert all(count >= 2 for count in summary.had.values()), summary.had


def test_the_same_lives_are_lived_again() -> None:
    lives = Lives("adaptive", 2, 1, seed=4)
    assert live(lives).digest == live(lives).digest != live(Lives("adaptive", 2, 1, seed=5)).digest


@pytest.mark.parametrize("kind", ["savepoint", "unaligned savepoint"])
@pytest.mark.parametrize(("old", "new", "seed"), [(3, 3, 1), (5, 3, 2), (2, 12, 3)])
def test_a_job_goes_on_from_a_savepoint_with_more_key_groups(kind: str, old: int, new: int, seed: int) -> None:
    """Also at the size that it had, where some keys move all the same, and at one that it could not have had."""
    outcome = live(Lives(kind, old, new, seed=seed, rehashed=True))
    assert outcome.violation is None
    assert outcome.figures["lives"] == 3


def test_the_simulation_notices_when_records_of_keys_that_moved_go_to_their_former_owners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GraphRecord, "moves_keys", lambda graph, parallelism: False)
    runs = (Lives("unaligned savepoint", 7, 7, seed=seed, rehashed=True) for seed in (10, 13, 22))
    assert any(live(lives).violation for lives in runs)


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["verify", *arguments])
    return result.exit_code, result.output


def test_the_command_sums_up_by_pair_and_kind() -> None:
    chosen = ("--rescale", "--pair", "1-2", "--kind", "unaligned")
    code, output = invoke(*chosen, "--seeds", "2", "--processes", "1", "--json")
    summary: dict[str, Any] = json.loads(output)
    assert (code, summary["runs"], summary["violations"]) == (0, 2, 0)
    (cell,) = summary["cells"]
    assert (cell["pair"], cell["kind"], cell["runs"], cell["had"].keys()) == ("1-2", "unaligned", 2, set(KEPT))


def test_the_command_replays_one_run_by_its_pair_kind_and_seed() -> None:
    lives = Lives("unaligned", 1, 2, seed=7)
    code, output = invoke("--rescale", "--pair", "1-2", "--kind", "unaligned", "--seed", "7")
    assert code == 0
    assert f"{lives}: no violation" in output
    assert live(lives).digest in output


@pytest.mark.parametrize(
    "arguments",
    [
        ("--rescale", "--simulate"),
        (),
        ("--simulate", "--pair", "1-2"),
        ("--rescale", "--pair", "1-7"),
        ("--rescale", "--kind", "crooked"),
        ("--rescale", "--seed", "1"),
    ],
)
def test_what_the_command_cannot_do_is_refused(arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments)[0] == 2
