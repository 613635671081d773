"""Partitioning against the plain rule: a row goes to the owner of its key's group, in its old order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.keygroups import owner_of
from penstock.kernels import compiled, hashing
from penstock.kernels import partition as partition_module
from penstock.kernels.partition import key_groups_of, partition


def batch_of(rows: int, seed: int = 0) -> pa.RecordBatch:
    random = np.random.default_rng(seed)
    numbers = random.integers(0, 50, rows)
    return pa.record_batch(
        {
            "key": pa.array(numbers),
            "word": pa.array([f"word {n}" if n % 3 else None for n in numbers.tolist()], pa.string()),
            "small": pa.array(random.integers(0, 100, rows), pa.int8()),
            "flag": pa.array(numbers % 2 == 0),
            "nullable": pa.array([n if n % 5 else None for n in numbers.tolist()], pa.float32()),
            "when": pa.array(numbers, pa.timestamp("us", "UTC")),
            "nested": pa.array([[n] for n in numbers.tolist()]),
        }
    )


def expected(
    batch: pa.RecordBatch, key: tuple[str, ...], total: int, parallelism: int
) -> list[list[dict[str, object]]]:
    parts: list[list[dict[str, object]]] = [[] for _ in range(parallelism)]
    for group, row in zip(key_groups_of(batch, key, total).tolist(), batch.to_pylist(), strict=True):
        parts[owner_of(total, parallelism, group)].append(row)
    return parts


@given(
    rows=st.integers(0, 60),
    skipped=st.integers(0, 5),
    parallelism=st.integers(1, 16),
    key=st.sampled_from([("key",), ("word",), ("key", "word"), ("nullable", "flag", "when")]),
    use_compiled=st.booleans(),
)
def test_every_row_goes_to_the_owner_of_its_key_in_order(
    rows: int, skipped: int, parallelism: int, key: tuple[str, ...], use_compiled: bool
) -> None:
    batch = batch_of(rows + skipped, seed=rows).slice(skipped)
    with pytest.MonkeyPatch.context() as patch:
        for module in (hashing, partition_module):
            patch.setattr(module, "compiled", lambda _rows: compiled if use_compiled else None)
        parts = partition(batch, key, 16, parallelism)
    assert [part.to_pylist() if part else [] for part in parts] == expected(batch, key, 16, parallelism)
    for part in parts:
        assert part is None or (part.num_rows > 0 and part.schema == batch.schema)
        if part is not None:
            part.validate(full=True)


def test_a_batch_of_one_key_is_handed_on_without_a_copy() -> None:
    batch = pa.record_batch({"key": pa.array([7] * 1000), "value": pa.array(range(1000))})
    assert [part is batch for part in partition(batch, ("key",), 128, 4) if part is not None] == [True]


def test_one_subtask_gets_the_batch_as_it_is() -> None:
    batch = batch_of(10)
    (only,) = partition(batch, ("key",), 128, 1)
    assert only is batch


def test_the_parts_are_slices_of_one_gathered_batch() -> None:
    parts = [part for part in partition(batch_of(2000), ("key",), 128, 3) if part is not None]
    assert len(parts) > 1
    assert len({part.column("key").buffers()[1].address for part in parts}) == 1


def test_an_empty_batch_goes_nowhere() -> None:
    assert partition(batch_of(0), ("key",), 128, 2) == [None, None]


def test_more_subtasks_than_key_groups_are_refused() -> None:
    with pytest.raises(ValueError, match=r"parallelism must be from 1 to the number of key groups \(4\), not 5"):
        partition(batch_of(1), ("key",), 4, 5)


def test_a_number_of_key_groups_that_is_no_power_of_two_is_refused() -> None:
    with pytest.raises(ValueError, match="power of two"):
        key_groups_of(batch_of(1), ("key",), 100)
