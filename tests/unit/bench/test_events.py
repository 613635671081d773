"""The benchmarks' events are what the workloads' definition says, whatever way the indices come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.events import Events, KeyType

INDICES = st.one_of(
    st.lists(st.integers(0, 1 << 40), min_size=1, max_size=50),
    st.tuples(st.integers(0, 1 << 40), st.integers(1, 200), st.integers(1, 50)).map(
        lambda run: list(range(run[0], run[0] + run[1] * run[2], run[1]))
    ),
)


@given(INDICES, st.sampled_from([1, 7, 1_000_000, 100_000_000]), st.sampled_from([997, 1_000]))
def test_events_are_the_function_of_their_index_that_every_engine_uses(
    indices: list[int], keys: int, values: int
) -> None:
    batch = Events(keys, values)(np.array(indices))
    assert batch.column("key").to_pylist() == [i * 2_654_435_761 % keys for i in indices]
    assert batch.column("value").to_pylist() == [i % values for i in indices]
    assert batch.column("ts").to_pylist() == [i // 100 for i in indices]


@given(INDICES)
def test_keys_as_strings_name_the_same_keys(indices: list[int]) -> None:
    numbers = Events(1_000_000)(np.array(indices)).column("key").to_pylist()
    names = Events(1_000_000, key_type=KeyType.STRING)(np.array(indices)).column("key").to_pylist()
    assert names == [f"user-{number:08}" for number in numbers]


def test_skewed_events_have_four_fifths_on_a_hundredth_of_the_keys() -> None:
    keys = Events(1_000, skewed=True)(np.arange(100_000)).column("key").to_numpy()
    assert np.mean(keys < 10) == pytest.approx(0.8, abs=0.01)
    assert len(np.unique(keys)) > 10


def test_more_keys_than_names_have_digits_are_refused() -> None:
    with pytest.raises(ValueError, match="keys must be from 1 to 100000000, not 0"):
        Events(0)
