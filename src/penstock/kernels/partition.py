"""Splits a batch by the subtask that owns each row's key.

The rows are gathered once, ordered by owner and otherwise in their old order; what each owner gets is a slice of that
one batch without a further copy. A batch whose rows all have the same owner is handed on as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.keygroups import check_total
from penstock.kernels.gathering import taken
from penstock.kernels.hashing import hash_rows, key_groups_of_hashes
from penstock.kernels.loading import compiled


def key_groups_of(batch: pa.RecordBatch, key: tuple[str, ...], total: int) -> npt.NDArray[np.int32]:
    """The key group of every row."""
    return key_groups_of_hashes(hash_rows(batch, key), total)


def partition(
    batch: pa.RecordBatch, key: tuple[str, ...], key_groups: int, parallelism: int
) -> list[pa.RecordBatch | None]:
    """What each of `parallelism` subtasks gets of the batch, by `core.keygroups.owner_of`; None for nothing."""
    check_total(key_groups)
    if not 1 <= parallelism <= key_groups:
        raise ValueError(f"parallelism must be from 1 to the number of key groups ({key_groups}), not {parallelism}")
    if parallelism == 1:
        return [batch if batch.num_rows else None]
    hashes = hash_rows(batch, key)
    kernels = compiled(batch.num_rows)
    if kernels is None:
        owner = key_groups_of_hashes(hashes, key_groups) * parallelism // key_groups
        counts = np.bincount(owner, minlength=parallelism)
    else:
        bits = key_groups.bit_length() - 1
        owner, counts = kernels.owners(hashes, np.uint64(64 - bits), np.uint64(bits), np.uint64(parallelism))
    if counts.max(initial=0) == batch.num_rows:
        return [batch if count else None for count in counts]
    rows = np.argsort(owner, kind="stable") if kernels is None else kernels.rows_by_owner(owner, counts)
    columns = [taken(column, rows) for column in batch.columns]
    return _slices(pa.RecordBatch.from_arrays(columns, schema=batch.schema), counts.tolist())


def rows_by_group(
    hashes: npt.NDArray[np.uint64], key_groups: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The rows of these hashes in the order of their key groups, otherwise in their old one; and the groups in that
    order."""
    check_total(key_groups)
    kernels = compiled(len(hashes)) if key_groups > 1 else None
    if kernels is None:
        groups = key_groups_of_hashes(hashes, key_groups)
        return np.argsort(groups, kind="stable").astype(np.int32), np.sort(groups)
    bits = key_groups.bit_length() - 1
    group, counts = kernels.owners(hashes, np.uint64(64 - bits), np.uint64(bits), np.uint64(key_groups))
    return kernels.rows_by_owner(group, counts), np.repeat(np.arange(key_groups, dtype=np.int32), counts)


def _slices(batch: pa.RecordBatch, counts: Sequence[int]) -> list[pa.RecordBatch | None]:
    slices: list[pa.RecordBatch | None] = []
    start = 0
    for count in counts:
        slices.append(batch.slice(start, count) if count else None)
        start += count
    return slices
