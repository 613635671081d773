"""The rows of a batch, split by the pane that each is in.

Most streams come nearly in the order of their times, and within a batch often altogether: then a pane's rows follow
each other, and are slices of the batch. Otherwise the batch is put into the order of its panes once, and sliced then.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.kernels.gathering import taken
from penstock.kernels.loading import compiled

Times = npt.NDArray[np.int64]

_COUNTED = 1 << 12
"""Panes: those of a batch that may be in more are sorted."""


def split_by_pane(rows: pa.RecordBatch, times: Times, origin: int, length: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The start of every pane that has rows, and these, in their order. `origin`: where some pane starts; all of one
    unit, and there is at least one row."""
    rising = bool((times[1:] >= times[:-1]).all())
    least, most = (times[0], times[-1]) if rising else (times.min(), times.max())
    first, last = ((int(time) - origin) // length for time in (least, most))
    start, panes = first * length + origin, last - first + 1
    if panes == 1:
        yield start, rows
        return
    if rising and panes <= len(times):
        bounds = np.searchsorted(times, start + length * np.arange(panes + 1))
        numbers = np.arange(panes)
    else:
        places = (times - start) // length
        if not rising:
            order = _by_pane(places, panes)
            rows = pa.RecordBatch.from_arrays([taken(column, order) for column in rows.columns], schema=rows.schema)
            places = places[order]
        changes = np.flatnonzero(places[1:] != places[:-1]) + 1
        bounds = np.concatenate([[0], changes, [len(places)]])
        numbers = places[bounds[:-1]]
    for number, begin, end in zip(numbers.tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if end > begin:
            yield start + number * length, rows.slice(begin, end - begin)


def _by_pane(places: Times, panes: int) -> npt.NDArray[np.int32] | npt.NDArray[np.int64]:
    """The rows in the order of their panes, otherwise in their old one."""
    kernels = compiled(len(places)) if panes <= _COUNTED else None
    if kernels is None:
        return np.argsort(places, kind="stable")
    rows: npt.NDArray[np.int32] = kernels.rows_by_owner(places.astype(np.uint16), np.bincount(places, minlength=panes))
    return rows
