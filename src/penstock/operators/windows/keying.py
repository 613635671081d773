"""The key of a window: columns of the stream, or none at all.

Windows over a whole stream are windows of one key: a column that is the same in all rows, which is kept but not shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.state.keys import KeyColumns

_ALL: Final = "#all"


class Keying:
    def __init__(self, key: Sequence[str], schema: pa.Schema) -> None:
        self._names = tuple(key)
        self.columns = KeyColumns(schema, key) if key else KeyColumns(pa.schema([(_ALL, pa.int8())]), (_ALL,))

    @property
    def described(self) -> tuple[str, ...]:
        """Name and type of every column that is kept, as checkpoints have them."""
        return tuple(f"{name}: {kind}" for name, kind in zip(self.columns.names, self.columns.types, strict=True))

    def of(self, batch: pa.RecordBatch) -> list[pa.Array]:
        if not self._names:
            return [pa.array(np.zeros(batch.num_rows, np.int8))]
        return [batch.column(name) for name in self._names]

    def shown(self, columns: list[pa.Array]) -> list[pa.Array]:
        """What the output has of the key."""
        return columns if self._names else []
