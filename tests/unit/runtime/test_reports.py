"""What a task says becomes messages of its attempt; errors keep what a person needs to find their cause."""

from __future__ import annotations

import pytest

from penstock.core.causes import Cause
from penstock.core.handles import SnapshotFigures
from penstock.core.ids import Attempt, ChainId, CheckpointId, SubtaskId, Uid
from penstock.operators.base import OperatorError
from penstock.runtime.control.messages import Acknowledge, Decline, Drained, Finished, TaskFailed, ToMaster
from penstock.runtime.reports import Reports, error_report
from penstock.state.tables import StateMismatch
from penstock.store.errors import CorruptCheckpoint, UnknownFormat

SUBTASK = SubtaskId(ChainId("sums"), 3)


class Sent(list[ToMaster]):
    def __init__(self) -> None:
        super().__init__()
        self.reports = Reports(Attempt(2), SUBTASK, self.append)


def test_every_report_carries_attempt_and_subtask() -> None:
    sent = Sent()
    sent.reports.acknowledge(CheckpointId(1), (), {Uid("out"): (b"x",)}, SnapshotFigures(), True)
    sent.reports.decline(CheckpointId(2), Cause.DECLINED, "because")
    sent.reports.drained({})
    sent.reports.finished()
    assert sent == [
        Acknowledge(Attempt(2), SUBTASK, CheckpointId(1), [], {Uid("out"): [b"x"]}, SnapshotFigures(), True),
        Decline(Attempt(2), SUBTASK, CheckpointId(2), Cause.DECLINED, "because"),
        Drained(Attempt(2), SUBTASK, {}),
        Finished(Attempt(2), SUBTASK),
    ]


def test_a_trigger_that_meets_the_end_of_its_task_is_declined() -> None:
    sent = Sent()
    sent.reports.triggered(CheckpointId(5))
    sent.reports.ended()
    assert [(type(m), m.checkpoint, m.cause) for m in sent if isinstance(m, Decline)] == [
        (Decline, 5, Cause.SUBTASK_FINISHED)
    ]


def test_a_trigger_that_was_answered_or_aborted_is_not_declined_at_the_end() -> None:
    sent = Sent()
    for checkpoint in (5, 6, 7):
        sent.reports.triggered(CheckpointId(checkpoint))
    sent.reports.acknowledge(CheckpointId(5), (), {}, SnapshotFigures(), False)
    sent.reports.decline(CheckpointId(6), Cause.WRITE_FAILED, "disk full")
    sent.reports.settled(CheckpointId(7))
    before = len(sent)
    sent.reports.ended()
    assert len(sent) == before


def test_an_operators_error_keeps_operator_row_and_traceback() -> None:
    sent = Sent()
    error = OperatorError(
        "no such thing", uid=Uid("halve"), name="map", subtask=1, sample_row={"n": 7, "s": "x" * 500}, traceback="..."
    )
    sent.reports.failed(error)
    (message,) = sent
    assert isinstance(message, TaskFailed)
    report = message.error
    assert (report.message, report.uid, report.operator, report.subtask) == ("no such thing", "halve", "map", 1)
    assert report.sample_row.startswith("{n: 7, s: 'xxx")
    assert len(report.sample_row) < 100
    assert report.retriable


def test_any_other_error_has_its_traceback() -> None:
    try:
        raise KeyError("lost")
    except KeyError as error:
        report = error_report(error, SUBTASK)
    assert report.message == "KeyError: 'lost'"
    assert "test_reports.py" in report.traceback
    assert report.retriable


@pytest.mark.parametrize(
    "cause",
    [
        CorruptCheckpoint("checkpoints/3/x.data", "the file is too short"),
        UnknownFormat("checkpoints/3/g1.json", 9, 2),
        StateMismatch("the state 'total' is stored in format 9"),
    ],
)
def test_what_cannot_be_read_is_not_tried_again_even_when_an_operator_found_it(cause: Exception) -> None:
    found = OperatorError("cannot open", uid=Uid("sums"), name="sums", subtask=0, sample_row=None, traceback="")
    found.__cause__ = cause
    assert not error_report(found, SUBTASK).retriable
