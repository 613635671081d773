"""What requests mean for a job, without any transport."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from tests.unit.remote.fake import FakeJob

from penstock.remote import messages as wire
from penstock.remote.handling import Handler
from penstock.runtime.control.messages import ErrorReport


@pytest.fixture
def job() -> FakeJob:
    return FakeJob()


@pytest.mark.parametrize(
    ("request_", "asked", "answer"),
    [
        (wire.TakeCheckpoint(), ("checkpoint",), wire.CheckpointTaken(4)),
        (wire.TakeSavepoint("/saved", aligned=True), ("savepoint", "/saved", True), wire.CheckpointTaken(4)),
        (wire.Stop(False, "/saved"), ("stop", False, "/saved"), wire.Ended("finished", 3.5, 1, 4, 5)),
        (wire.Cancel(), ("cancel",), wire.Ended("finished", 3.5, 1, 4, 5)),
        (wire.Rescale(3), ("rescale", 3), wire.Rescaled(3, 4, 0.25)),
    ],
)
def test_a_request_asks_the_job_one_thing_and_tells_what_came_of_it(
    job: FakeJob, request_: wire.Request, asked: tuple[object, ...], answer: wire.Answer
) -> None:
    assert Handler(job).handle(request_) == answer
    assert job.asked == [asked]


def test_a_job_is_described_with_the_checkpoints_under_way(job: FakeJob) -> None:
    view = Handler(job).handle(wire.Describe())
    assert isinstance(view, wire.JobView)
    assert (view.name, view.state, view.slots, view.workers, view.newest_checkpoint) == ("orders", "running", 2, 1, 2)
    assert view.underway == [wire.Underway(3, "checkpoint", 1, 2, 12.5)]
    assert view.settings is not None and view.settings["every"] == 1.0
    assert job.asked == []


def test_the_last_checkpoints_are_listed_as_they_are_written_down(job: FakeJob) -> None:
    listed = Handler(job).handle(wire.ListCheckpoints(2))
    assert isinstance(listed, wire.Checkpoints)
    assert [(entry["checkpoint"], entry["status"]) for entry in listed.entries] == [
        (2, "completed"),
        (3, "in_progress"),
    ]
    assert listed.entries[0]["state_bytes"] == 2_000


def test_options_are_configured_in_the_words_of_the_pipeline(job: FakeJob) -> None:
    answer = Handler(job).handle(wire.Configure({"every": "5s", "keep": 7}))
    assert isinstance(answer, wire.Configured)
    assert (answer.settings["every"], answer.settings["keep"], answer.settings["timeout"]) == (5.0, 7, 600.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": "soon"}, "'soon' is no duration"),
        ({"color": "red"}, "'color' cannot be configured; choose from 'every'"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(
    job: FakeJob, options: dict[str, str | int | float], message: str
) -> None:
    refused = Handler(job).handle(wire.Configure(options))
    assert isinstance(refused, wire.Refused) and message in refused.message
    settings = job.settings()
    assert settings is not None and settings.every == 1.0


def test_what_the_job_refuses_is_an_answer(job: FakeJob) -> None:
    job.refuses = ValueError("the job is being rescaled to 3 already: wait for that")
    assert Handler(job).handle(wire.Rescale(4)) == wire.Refused("ValueError", str(job.refuses))


def test_a_bug_is_an_answer_too_and_is_logged(job: FakeJob, caplog: pytest.LogCaptureFixture) -> None:
    job.refuses = KeyError("oops")
    with caplog.at_level(logging.ERROR):
        refused = Handler(job).handle(wire.TakeCheckpoint())
    assert isinstance(refused, wire.Refused) and refused.error == "KeyError"
    assert "Traceback" in caplog.text


def test_the_last_failure_is_told_in_words(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    status = replace(job.status(), last_failure=ErrorReport("division by zero"))
    monkeypatch.setattr(job, "status", lambda: status)
    view = Handler(job).handle(wire.Describe())
    assert isinstance(view, wire.JobView) and view.last_failure == "division by zero"
