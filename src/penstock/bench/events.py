"""The events of the benchmark workloads: a pure function of the index, the same for every engine that is compared.

Making them is part of every measured run, so it has to cost next to nothing: one compiled pass over the indices fills
all columns, and steps from key to key by an addition, because a source deals its indices out at even distances.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import penstock as ps

Index = npt.NDArray[np.int64]

HOT_SHARE = 0.01
"""Of the keys, where they are skewed: these get four fifths of the records."""
MOST_KEYS = 10**8
_PREFIX = np.frombuffer(b"user-", np.uint8)
_FOUR_DIGITS = np.frombuffer("".join(f"{number:04}" for number in range(10_000)).encode(), np.uint8)


class KeyType(StrEnum):
    INT = "int"
    STRING = "string"


@dataclass(frozen=True)
class Events:
    """`key` scattered over `keys` values, `value` from 0 to `values` - 1, `ts` 100 events per millisecond.

    Skewed: four of five events have a key of the first hundredth. Recent: after one event for each key, all events are
    about a few neighbouring keys, which move on through all of them.
    """

    keys: int
    values: int = 1_000
    key_type: KeyType = KeyType.INT
    skewed: bool = False
    recent: int = 0
    """How many keys the events are about at a time, once every key was seen; 0: any of them."""

    def __post_init__(self) -> None:
        if not 1 <= self.keys <= MOST_KEYS:
            raise ValueError(f"keys must be from 1 to {MOST_KEYS}, not {self.keys}")

    def __call__(self, index: Index) -> pa.RecordBatch:
        """The events of these indices."""
        from penstock.bench import kernels

        keys, values, times = kernels.columns(index, self.keys, self.hot_keys, self.values)
        if self.recent:
            keys = kernels.recent_keys(index, self.keys, self.recent)
        made = pa.array(keys) if self.key_type is KeyType.INT else _named(keys)
        return pa.RecordBatch.from_arrays([made, pa.array(values), pa.array(times)], ["key", "value", "ts"])

    @property
    def key_class(self) -> type:
        return int if self.key_type is KeyType.INT else str

    @property
    def hot_keys(self) -> int:
        """How many keys four of five events are of; 0: all keys are alike."""
        return max(1, int(self.keys * HOT_SHARE)) if self.skewed else 0

    def source(self, count: int | None = None, *, rate: float | None = None) -> ps.sources.Generator:
        return ps.sources.Generator(count, self, rate=rate)


def _named(keys: Index) -> pa.StringArray:
    from penstock.bench import kernels

    names = kernels.names(keys, _PREFIX, _FOUR_DIGITS)
    width = len(_PREFIX) + 8
    offsets = np.arange(0, (len(keys) + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(len(keys), pa.py_buffer(offsets), pa.py_buffer(names))


def events(count: int | None, keys: int, *, rate: float | None = None) -> ps.sources.Generator:
    """The plain events: whole numbers as keys, all alike."""
    return Events(keys).source(count, rate=rate)
