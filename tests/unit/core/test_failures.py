"""Tolerable failures of checkpoints in a row."""

import pytest

from penstock.core.causes import Cause
from penstock.core.failures import FailureCounter


def test_none_tolerated_means_that_the_first_is_one_too_many():
    assert FailureCounter(tolerable=0).failed(Cause.EXPIRED)


def test_so_many_in_a_row_are_tolerated_and_the_next_is_not():
    counter = FailureCounter(tolerable=2)
    assert [counter.failed(Cause.DECLINED) for _ in range(3)] == [False, False, True]


def test_a_success_starts_the_count_afresh():
    counter = FailureCounter(tolerable=1)
    counter.failed(Cause.WRITE_FAILED)
    counter.succeeded()
    assert not counter.failed(Cause.WRITE_FAILED)


@pytest.mark.parametrize("cause", [cause for cause in Cause if not cause.counts_as_failure])
def test_causes_that_say_nothing_about_checkpoints_do_not_count(cause: Cause):
    counter = FailureCounter(tolerable=0)
    assert not counter.failed(cause) and counter.in_a_row == 0
