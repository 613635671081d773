"""map_batches: a user's function from frame to frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.operators.base import Collector, Operator
from penstock.operators.conform import SchemaMismatch, batches_of, frame_of

if TYPE_CHECKING:
    import polars as pl


class MapBatchesOperator(Operator):
    def __init__(self, function: Callable[[pl.DataFrame], pl.DataFrame], schema: pa.Schema) -> None:
        self._function, self._schema = function, schema

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        import polars as pl

        result = self._function(frame_of(batch))
        if not isinstance(result, pl.DataFrame):
            raise SchemaMismatch(
                f"map_batches must return a polars.DataFrame, but returned {type(result).__name__}: "
                "return the frame (an empty one, frame.clear(), to emit nothing)"
            )
        for mapped in batches_of(result, self._schema):
            out.emit(mapped)
