"""Every operator as a whole job, against Polars: at parallelism 1, 2 and 3, with and without failures; and the means to
tell: an operator that is broken on purpose, or an output that was tampered with, is found out."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from itertools import product
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from penstock.cli import app
from penstock.operators.aggregation.table import AggregateTable
from penstock.operators.windows.fired import FiredKeys
from penstock.operators.windows.progress import Progress
from penstock.operators.windows.timed import TimeWindowOperator
from penstock.simulation.cases.case import OUT, Case, Input
from penstock.simulation.cases.catalogue import CASES
from penstock.simulation.cases.inputs import KEYS, TIMES, schema_of
from penstock.simulation.operators import OperatorRun, OperatorWorld, operate, operator_runs, verify_operators
from penstock.simulation.story import Violation
from penstock.state.columns import ColumnState

of_every_case = pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name.replace(" ", "-"))


def first_seed(case: Case) -> int:
    """Other ones for each case."""
    return list(CASES).index(case.name) * 20


@of_every_case
def test_an_operator_puts_out_what_polars_says_at_any_parallelism(case: Case) -> None:
    for parallelism in (2, 3):  # at 1 it is tampered with, below
        run = OperatorRun(case.name, first_seed(case) + parallelism, faults=False, parallelism=parallelism)
        assert operate(run).violation is None, run


@of_every_case
def test_an_operator_puts_out_what_polars_says_though_parts_of_its_job_fail(case: Case) -> None:
    summary = verify_operators(operator_runs([first_seed(case) + 4], [case.name]), processes=1)
    assert [(failure.replay, failure.message) for failure in summary.failures] == []


# ---- records that Hypothesis thinks of ----
ROW = st.fixed_dictionaries(
    {
        "number": st.none() | st.integers(0, 2),
        "name": st.none() | st.sampled_from(["", "a", "b"]),
        "x": st.none() | st.integers(-5, 5),
        "y": st.none() | st.integers(-8, 8).map(lambda quarters: quarters / 4),
        "word": st.none() | st.sampled_from(["", "a", "ä"]),
        "price": st.none() | st.integers(-500, 500).map(lambda cents: Decimal(cents) / 100),
        "ts": st.none() | st.integers(-250, 250),
    }
)
DISORDER = 500


@st.composite
def inputs(draw: st.DrawFn, case: Case) -> Input:
    """Records of any time in any order."""
    time = draw(st.sampled_from(TIMES))
    rows = [{"id": id, **row} for id, row in enumerate(draw(st.lists(ROW, min_size=1, max_size=12)))]
    if time != pa.int64():
        epoch = dt.datetime(1970, 1, 1)
        for row in rows:
            row["ts"] = None if row["ts"] is None else epoch + dt.timedelta(milliseconds=row["ts"])
    delay = draw(st.sampled_from([0, 30])) if case.late else DISORDER
    splits = 1 if case.in_order else draw(st.integers(1, 3))
    return Input(pa.Table.from_pylist(rows, schema_of(time)), draw(st.sampled_from(KEYS)), splits, DISORDER, delay)


@of_every_case
@settings(max_examples=4, deadline=None)
@given(data=st.data(), parallelism=st.integers(1, 3), seed=st.integers(0, 50))
def test_an_operator_puts_out_what_polars_says_of_any_records(
    case: Case, data: st.DataObject, parallelism: int, seed: int
) -> None:
    run = OperatorRun(case.name, seed, faults=False, parallelism=parallelism)
    assert operate(run, data.draw(inputs(case))).violation is None


# ---- the checks can fail ----
def outputs_of(case: Case) -> tuple[Input, dict[str, pl.DataFrame]]:
    """Of the first run that puts out enough."""
    for seed in range(40):
        world = OperatorWorld(OperatorRun(case.name, seed, faults=False, parallelism=1))
        world.run()
        found = world.found()
        if len(found[OUT]) > 2:
            return world.input, found
    raise AssertionError(f"{case.name} puts out nothing")


@of_every_case
def test_an_output_with_a_row_too_few_or_too_many_is_refused(case: Case) -> None:
    input, found = outputs_of(case)
    case.check(input, found)
    whole = found[OUT]
    for changed in (pl.concat([whole, whole[:1]]), whole[:-1]):
        with pytest.raises(Violation):
            case.check(input, {**found, OUT: changed})


# ---- operators that are broken on purpose ----
def forget_what_was_aggregated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ColumnState, "restore", lambda *arguments: None)


def put_out_a_window_again_that_was_half_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FiredKeys, "restore", lambda *arguments: None)


def forget_how_far_event_time_has_come(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "restore", lambda *arguments: None)


def take_late_records_anyway(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TimeWindowOperator, "_late_rows", lambda *arguments: None)


def lose_every_merge(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AggregateTable, "merge", lambda *arguments: None)


@pytest.mark.parametrize(
    ("mutate", "case"),
    [
        (forget_what_was_aggregated, "changelog of numbers"),
        (forget_what_was_aggregated, "deduplicate"),
        (forget_what_was_aggregated, "count windows"),
        (put_out_a_window_again_that_was_half_out, "tumbling windows"),
        (forget_how_far_event_time_has_come, "late in sliding windows"),
        (take_late_records_anyway, "late in tumbling windows"),
        (lose_every_merge, "sliding windows"),
    ],
)
def test_a_broken_operator_is_found(
    mutate: Callable[[pytest.MonkeyPatch], None], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    assert any(operate(OperatorRun(case, seed)).violation for seed in range(60))


# ---- the command ----
def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["verify", *arguments])
    return result.exit_code, result.output


def test_the_command_sums_up_by_case() -> None:
    code, output = invoke("--operators", "--case", "union", "--seeds", "2", "--processes", "1", "--json")
    summary: dict[str, Any] = json.loads(output)
    assert (code, summary["runs"], summary["violations"]) == (0, 2, 0)
    (of_case,) = summary["cases"]
    assert (of_case["case"], of_case["runs"]) == ("union", 2)
    assert of_case["records"] > 0


def test_the_command_replays_one_run_by_its_case_and_seed() -> None:
    code, output = invoke("--operators", "--case", "union", "--seed", "7")
    assert code == 0
    assert operate(OperatorRun("union", 7)).digest in output


@pytest.mark.parametrize(
    "arguments",
    [
        ("--operators", "--simulate"),
        ("--operators", "--seed", "1"),
        ("--operators", "--case", "nothing"),
        ("--operators", "--pair", "1-2"),
        ("--simulate", "--case", "union"),
    ],
)
def test_what_the_command_cannot_do_is_refused(arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments)[0] == 2


def test_the_same_run_goes_the_same_way_again_and_another_one_another() -> None:
    digests = [operate(OperatorRun(case, seed)).digest for case, seed in product(["sessions", "union"], (3, 3, 4))]
    assert len(set(digests)) == 4
