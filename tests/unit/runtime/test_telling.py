"""Acknowledgements that say only what is new."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.handles import PartHandle, PartKind, SnapshotFigures
from penstock.core.ids import Attempt, ChainId, CheckpointId, SubtaskId, Uid
from penstock.runtime.control.messages import Acknowledge
from penstock.runtime.reports import Reports
from penstock.runtime.telling import Heard

SUBTASK = SubtaskId(ChainId("sums"), 0)


def handle(number: int) -> PartHandle:
    return PartHandle(Uid("sums"), f"part {number}", PartKind.KEYED, "file", 0, number, 0)


class Job:
    """A subtask and the master's end of its connection."""

    def __init__(self, attempt: int = 1) -> None:
        self.sent: list[Acknowledge] = []
        self.reports = Reports(Attempt(attempt), SUBTASK, self.send)
        self.heard = Heard(Attempt(attempt))

    def send(self, message: object) -> None:
        self.sent.append(msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Acknowledge))

    def acknowledge(self, *handles: PartHandle) -> Acknowledge:
        self.reports.acknowledge(CheckpointId(len(self.sent) + 1), handles, {}, SnapshotFigures(), False)
        return self.sent[-1]


def test_only_what_is_new_is_sent_and_all_is_heard() -> None:
    job, base, first, second = Job(), handle(0), handle(1), handle(2)
    assert job.heard.hear(job.acknowledge(base)) == [base]
    message = job.acknowledge(base, first)
    assert message.handles == [first] and message.kept == [(0, 1)]
    assert job.heard.hear(message) == [base, first]
    message = job.acknowledge(base, first, second)
    assert message.handles == [second] and message.kept == [(0, 2)]
    assert job.heard.hear(message) == [base, first, second]


def test_a_long_chain_with_other_parts_costs_two_runs_and_what_is_new() -> None:
    job, layers = Job(), [handle(number) for number in range(300)]
    for length in range(1, len(layers) + 1):
        others = [handle(1000 + length), handle(2000 + length)]
        message = job.acknowledge(*others, *layers[:length])
        assert len(message.handles) <= 3 and len(message.kept) <= 2
        heard = job.heard.hear(message)
        assert heard is not None
        assert sorted(heard, key=lambda one: one.length) == [*layers[:length], *others]


@given(st.lists(st.lists(st.integers(0, 20), unique=True)))
def test_whatever_is_named_is_heard(checkpoints: list[list[int]]) -> None:
    job, known = Job(), [handle(number) for number in range(21)]
    for numbers in checkpoints:
        heard = job.heard.hear(job.acknowledge(*(known[number] for number in numbers)))
        assert heard is not None
        assert sorted(one.length for one in heard) == sorted(numbers)
        assert [one for one in heard if one.length in numbers] == heard


def test_a_repetition_says_nothing_and_changes_nothing() -> None:
    job, base, first, second = Job(), handle(0), handle(1), handle(2)
    early, late = job.acknowledge(base), job.acknowledge(base, first)
    assert job.heard.hear(early) == [base]
    assert job.heard.hear(early) is None
    assert job.heard.hear(late) == [base, first]
    assert job.heard.hear(early) is None and job.heard.hear(late) is None
    assert job.heard.hear(job.acknowledge(base, first, second)) == [base, first, second]


def test_another_attempt_begins_anew() -> None:
    old, new, base = Job(1), Job(2), handle(0)
    assert new.heard.hear(old.acknowledge(base)) is None
    assert new.heard.hear(new.acknowledge(base)) == [base]


def test_one_that_is_missing_is_noticed() -> None:
    job = Job()
    job.acknowledge(handle(0))
    with pytest.raises(AssertionError, match=r"acknowledgement 2 of sums\[0\] came after 0"):
        job.heard.hear(job.acknowledge(handle(1)))
