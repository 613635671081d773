"""The rows of a batch by pane, against looking at every row."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.loading import COMPILED_FROM_ROWS
from penstock.operators.windows.splitting import split_by_pane


def by_definition(times: list[int], origin: int, length: int) -> list[tuple[int, list[int]]]:
    def start(row: int) -> int:
        return (times[row] - origin) // length * length + origin

    return [(pane, list(rows)) for pane, rows in groupby(sorted(range(len(times)), key=start), key=start)]


def split(times: list[int], origin: int, length: int) -> list[tuple[int, list[int]]]:
    rows = pa.record_batch({"row": pa.array(range(len(times)), pa.int64()), "text": list(map(str, range(len(times))))})
    panes = list(split_by_pane(rows, np.array(times, np.int64), origin, length))
    for _, own in panes:
        assert own.column("text").to_pylist() == list(map(str, own.column("row").to_pylist()))
    return [(start, own.column("row").to_pylist()) for start, own in panes]


@given(st.lists(st.integers(-(10**12), 10**12) | st.integers(-50, 50), min_size=1), st.integers(-5, 5), st.booleans())
def test_every_row_is_in_its_pane_in_its_order(times: list[int], origin: int, rising: bool) -> None:
    times = sorted(times) if rising else times
    assert split(times, origin, 7) == by_definition(times, origin, 7)


@pytest.mark.parametrize("panes", [1, 2, 30, 3 * COMPILED_FROM_ROWS, 1 << 20])
@pytest.mark.parametrize("rising", [True, False])
def test_large_batches_too(panes: int, rising: bool) -> None:
    numbers = np.random.default_rng(3).integers(0, panes * 10, 2 * COMPILED_FROM_ROWS)
    times = (np.sort(numbers) if rising else numbers).tolist()
    assert split(times, 4, 10) == by_definition(times, 4, 10)
