from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.api.durations import seconds


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("200ms", 0.2), ("1s", 1.0), ("1.5s", 1.5), ("5min", 300.0), ("2h", 7200.0), ("1d", 86400.0),
        ("250us", 0.00025), ("1h30min", 5400.0), ("1h 30min", 5400.0), (" 3 s ", 3.0),
        (2, 2.0), (0.5, 0.5), (timedelta(minutes=1), 60.0), (0, 0.0),
    ],
)  # fmt: skip
def test_durations_are_read_as_people_write_them(written, meant):
    assert seconds(written, "every") == pytest.approx(meant)


@pytest.mark.parametrize("written", ["soon", "", "1", "1 m", "s", "1s!", "-1s", True, None, float("nan"), float("inf")])
def test_what_is_no_duration_is_refused_with_examples(written):
    with pytest.raises(ValueError, match=r'every=.* is no duration: write "200ms", "1s"'):
        seconds(written, "every")


def test_a_negative_duration_is_refused():
    with pytest.raises(ValueError, match=r"delay=-1 must be 0 or more"):
        seconds(-1, "delay")


def test_zero_is_refused_where_time_must_pass():
    assert seconds(0, "pause") == 0
    with pytest.raises(ValueError, match=r"every='0s' must be more than 0"):
        seconds("0s", "every", positive=True)
