"""The commands as they are typed, against jobs that answer at once."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.remote.fake import FakeJob
from typer.testing import CliRunner

from penstock import cli
from penstock.core.ids import CheckpointId
from penstock.remote.client import CommandError
from penstock.remote.server import Door
from penstock.store.checkpoints import CheckpointStore
from penstock.store.local import LocalFiles
from penstock.store.statistics import Statistics

OpenJob = Callable[..., tuple[FakeJob, Door]]


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(cli.app, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def said(*arguments: str) -> str:
    result = CliRunner().invoke(cli.app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_jobs_lists_what_runs_and_how_it_is(open_job: OpenJob) -> None:
    assert "no job of this user runs here" in said("jobs")
    open_job("orders", "/data/orders")
    open_job("payments")
    first, second = run("jobs")["jobs"]
    assert (first["name"], first["state"], first["directory"]) == ("orders", "running", "/data/orders")
    assert (second["name"], second["directory"], second["completed_checkpoints"]) == ("payments", None, 2)
    assert "/data/orders" in said("jobs")


def test_a_savepoint_goes_where_the_user_is_not_where_the_driver_is(
    open_job: OpenJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = open_job()
    monkeypatch.chdir(tmp_path)
    assert run("savepoint", "orders", "saved", "--aligned") == {
        "job": "orders",
        "checkpoint": 4,
        "savepoint": str(tmp_path / "saved"),
    }
    run("savepoint", "orders", "s3://bucket/saved")
    run("stop", "orders", "--no-drain", "--savepoint", "end")
    assert job.asked == [
        ("savepoint", str(tmp_path / "saved"), True),
        ("savepoint", "s3://bucket/saved", False),
        ("stop", False, str(tmp_path / "end")),
    ]


@pytest.mark.parametrize(
    ("typed", "asked", "told"),
    [
        (["checkpoint", "orders"], ("checkpoint",), "orders: checkpoint 4 is complete"),
        (["rescale", "orders", "3"], ("rescale", 3), "orders: runs at parallelism 3; nothing ran for 0.25 s"),
        (["stop", "orders"], ("stop", True, None), "orders: finished after 3.5 s, 4 checkpoints, newest checkpoint 5"),
        (["cancel", "orders"], ("cancel",), "orders: finished after 3.5 s"),
        (
            ["configure", "orders", "--every", "5s", "--minimum-pause", "1s", "--keep", "4"],
            ("configure", {"every": "5s", "minimum_pause": "1s", "keep": 4}),
            "every 5.0",
        ),
    ],
)
def test_a_command_asks_its_job_and_tells_the_answer(
    open_job: OpenJob, typed: list[str], asked: tuple[Any, ...], told: str
) -> None:
    job, _ = open_job()
    assert told in said(*typed)
    assert job.asked == [asked]
    assert run(*typed)["job"] == "orders"


def test_on_a_terminal_a_long_command_shows_how_the_job_is(open_job: OpenJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # which is how Rich is told that it writes to a terminal
    job, _ = open_job()
    job.may_answer.clear()

    def answer_once_described() -> None:
        assert job.was_described.wait(30)
        job.may_answer.set()

    answering = threading.Thread(target=answer_once_described)
    answering.start()
    result = CliRunner().invoke(cli.app, ["rescale", "orders", "3"], catch_exceptions=False)
    answering.join()
    assert "orders: runs at parallelism 3" in result.stdout
    assert "orders" in result.stderr and "orders: runs" not in result.stderr


def test_configure_wants_to_know_what_to_change(open_job: OpenJob) -> None:
    open_job()
    with pytest.raises(CommandError, match="name what to change"):
        said("configure", "orders")


def stored(directory: Path) -> None:
    """Of an earlier run: checkpoint 1 failed, checkpoint 2 completed."""
    files = LocalFiles(str(directory))
    generation = CheckpointStore(files, "orders").claim().generation
    facts = {"attempt": 1, "purpose": "checkpoint", "mode": "aligned", "duration_ms": 7, "unaligned": False}
    sizes = {"state_bytes": 1_500, "in_flight_bytes": 0, "reason": ""}
    failed = {"cause": "expired", "subtask": "read[0]", "reason": "it took too long"}
    statistics = Statistics(files)
    statistics.record(generation, {**facts, **sizes, "checkpoint": 1, "triggered_ms": 1, "status": "failed", **failed})
    statistics.record(generation, {**facts, **sizes, "checkpoint": 2, "triggered_ms": 2, "status": "completed"})


def test_the_checkpoints_of_a_job_that_does_not_run_are_on_its_disk(place: Path, tmp_path: Path) -> None:
    stored(tmp_path)
    entries = run("checkpoints", str(tmp_path))["checkpoints"]
    assert [(entry["checkpoint"], entry["status"]) for entry in entries] == [(1, "failed"), (2, "completed")]
    assert [entry["checkpoint"] for entry in run("checkpoints", str(tmp_path), "--last", "1")["checkpoints"]] == [2]
    shown = said("checkpoints", str(tmp_path))
    assert "expired at read[0]: it took too long" in shown and "1.5 kB" in shown


def test_of_a_running_job_those_of_earlier_runs_and_those_under_way_are_shown_each_once(
    open_job: OpenJob, tmp_path: Path
) -> None:
    stored(tmp_path)
    job, _ = open_job("orders", str(tmp_path))
    mine = job.taken[0]
    files = LocalFiles(str(tmp_path))
    Statistics(files).record(CheckpointStore(files, "orders").claim().generation, mine.as_entry())
    entries = run("checkpoints", "orders")["checkpoints"]
    assert [(entry["checkpoint"], entry["status"]) for entry in entries] == [
        (1, "failed"),
        (2, "completed"),
        (CheckpointId(1), "completed"),
        (2, "completed"),
        (3, "in_progress"),
    ]


def test_what_neither_runs_nor_has_checkpoints_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"no job 'nothing' runs .* is no checkpoint directory"):
        said("checkpoints", "nothing")


def test_an_address_of_a_store_that_is_not_known_is_refused(place: Path) -> None:
    with pytest.raises(CommandError, match="ftp:// is not supported"):
        said("checkpoints", "ftp://host/orders")


@pytest.mark.parametrize("as_json", [True, False])
def test_an_error_is_a_sentence_and_not_a_traceback(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    monkeypatch.setattr(sys, "argv", ["penstock", "cancel", "orders", *(["--json"] if as_json else [])])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    printed = capsys.readouterr()
    if as_json:
        assert json.loads(printed.out)["error"] == "no_such_job"
    else:
        assert printed.err.startswith("penstock: no job 'orders' runs") and not printed.out
