"""Gathering against NumPy and Arrow, with and without the compiled kernel."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels import compiled, gathering
from penstock.kernels.gathering import gathered, taken

_LENGTH = 40


def columns() -> list[pa.Array]:
    numbers = np.arange(_LENGTH)
    return [
        pa.array(numbers),
        pa.array(numbers, pa.int8()),
        pa.array(numbers / 7, pa.float32()),
        pa.array(numbers, pa.timestamp("us", "UTC")),
        pa.array(numbers % 2 == 0),
        pa.array([n if n % 5 else None for n in numbers.tolist()]),
        pa.array([f"word {n}" for n in numbers.tolist()]),
        pa.array(["x" * (n % 23) for n in numbers.tolist()], pa.large_string()),
        pa.array([bytes(n % 9) for n in numbers.tolist()]),
        pa.array(["word" if n % 5 else None for n in numbers.tolist()], pa.string()),
        pa.array([[n] for n in numbers.tolist()]),
    ]


rows_of_any_order = st.lists(st.integers(0, _LENGTH - 6), max_size=60)


@pytest.fixture(params=[True, False], ids=["compiled", "numpy"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "compiled", lambda _rows: compiled if request.param else None)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("width", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int16, np.float16, np.float32, np.int64, np.float64])
def test_values_are_those_that_indexing_gives(dtype: type, width: type) -> None:
    values = (np.arange(_LENGTH) % 3).astype(dtype)
    rows = np.array([3, 0, 39, 39, 7], width)
    result = gathered(values, rows)
    assert result.dtype == values.dtype
    assert result.tolist() == values[rows].tolist()
    assert values.flags.writeable, "its owner goes on writing to it"
    result[0] = 1  # and the copy is the reader's own


@given(rows=rows_of_any_order, skipped=st.integers(0, 5), use_compiled=st.booleans())
def test_columns_are_those_that_arrow_takes(rows: list[int], skipped: int, use_compiled: bool) -> None:
    wanted = np.array(rows, np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering, "compiled", lambda _rows: compiled if use_compiled else None)
        for whole in columns():
            column = whole.slice(skipped)
            result = taken(column, wanted)
            result.validate(full=True)
            assert result.equals(column.take(pa.array(wanted)))
