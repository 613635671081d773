"""Which source is the slowest, and who is told."""

from __future__ import annotations

from penstock.core.drift import SourceAlignment
from penstock.core.ids import Attempt, WorkerId

A, B = WorkerId("a"), WorkerId("b")
FIRST, SECOND = Attempt(1), Attempt(2)


def test_the_slowest_of_all_workers_is_told_when_it_moves() -> None:
    alignment = SourceAlignment()
    assert alignment.report(FIRST, A, {"x[0]": 50, "y[0]": 70}) == 50
    assert alignment.report(FIRST, B, {"x[1]": 60}) is None
    assert alignment.report(FIRST, A, {"x[0]": 90, "y[0]": 95}) == 60
    assert alignment.report(FIRST, B, {"x[1]": 61}) == 61


def test_nobody_waits_for_a_source_that_says_nothing() -> None:
    alignment = SourceAlignment()
    alignment.report(FIRST, A, {"x[0]": 50})
    alignment.report(FIRST, B, {"x[1]": 10})
    assert alignment.report(FIRST, B, {}) == 50
    assert alignment.report(FIRST, A, {}) is None


def test_what_was_said_in_an_earlier_attempt_does_not_count() -> None:
    alignment = SourceAlignment()
    alignment.report(FIRST, A, {"x[0]": 50})
    assert alignment.report(SECOND, B, {"x[0]": 80}) == 80
