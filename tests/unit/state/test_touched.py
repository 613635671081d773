"""Slots that were touched are the same as a list and as marks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state import touched
from penstock.state.touched import Touched


@given(st.lists(st.lists(st.integers(0, 200), max_size=30), max_size=8), st.sampled_from([0, 5, 1_000]))
def test_every_slot_that_was_added_is_there_once(batches: list[list[int]], many: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(touched, "_MANY", many)
        patch.setattr(touched, "_PORTION", 16)
        patch.setattr(touched, "FEW", 10)
        under_test, expected = Touched(), set[int]()
        for batch in batches:
            new = [slot for slot in dict.fromkeys(batch) if slot not in expected]
            expected |= set(new)
            under_test.add(np.array(new, np.int32))
            assert len(under_test) == len(expected)
            numbers = under_test.numbers().tolist()
            assert len(numbers) == len(expected) and set(numbers) == expected
            assert len(numbers) <= touched.FEW or numbers == sorted(numbers)
        marks = np.zeros(201, np.bool_)
        under_test.mark(marks)
        assert set(np.flatnonzero(marks).tolist()) == expected


def test_many_slots_need_a_bit_each() -> None:
    under_test = Touched()
    for begin in range(0, 2_000_000, 100_000):
        under_test.add(np.arange(begin, begin + 100_000, dtype=np.int32))
    assert len(under_test) == 2_000_000
    assert under_test._listed <= len(under_test._bits) <= 2_000_000 // 8 * 5 // 4 + 1
