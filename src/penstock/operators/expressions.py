"""filter, select and with_columns: Polars expressions over batches.

Neighbouring expression operators of a chain arrive here as one list of steps and run as one lazy query. Expressions
travel in Polars' own serialised form and are read when the operator opens, so that a worker imports Polars only when a
pipeline uses it. A query of filters alone asks Polars for the mask only, from only the columns that it needs, and
leaves the rows to Arrow: columns that the filters do not look at are never converted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.operators.conform import batches_of, frame_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import polars as pl


class StepKind(StrEnum):
    FILTER = "filter"
    SELECT = "select"
    WITH_COLUMNS = "with_columns"


@dataclass(frozen=True, slots=True)
class Step:
    kind: StepKind
    expressions: tuple[bytes, ...]
    """As `pl.Expr.meta.serialize()` writes them."""
    columns: tuple[str, ...] = ()
    """Of a filter: those that it looks at."""

    def read(self) -> list[pl.Expr]:
        import polars as pl

        return [pl.Expr.deserialize(BytesIO(expression)) for expression in self.expressions]


def query(steps: Sequence[Step]) -> Callable[[pl.LazyFrame], pl.LazyFrame]:
    """The steps as one function of lazy frames."""
    apply = [(step.kind.value, step.read()) for step in steps]

    def run(frame: pl.LazyFrame) -> pl.LazyFrame:
        for method, expressions in apply:
            frame = getattr(frame, method)(*expressions)
        return frame

    return run


class ExpressionOperator(Operator):
    def __init__(self, steps: Sequence[Step], schema: pa.Schema) -> None:
        self._steps, self._schema = tuple(steps), schema

    def open(self, context: OperatorContext) -> None:
        self._only_filters = all(step.kind is StepKind.FILTER for step in self._steps)
        if self._only_filters:
            self._masks = [(list(step.columns), _all_of(step.read())) for step in self._steps]
        else:
            self._query = query(self._steps)

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        if not self._only_filters:
            for result in batches_of(self._query(frame_of(batch).lazy()).collect(), self._schema):
                out.emit(result)
            return
        for columns, mask in self._masks:
            batch = _filtered(batch, columns, mask)
            if batch.num_rows == 0:
                return
        out.emit(batch)


def _all_of(predicates: Sequence[pl.Expr]) -> pl.Expr:
    import polars as pl

    return pl.all_horizontal(*predicates)


def _filtered(batch: pa.RecordBatch, columns: list[str], mask: pl.Expr) -> pa.RecordBatch:
    keep = frame_of(batch.select(columns)).select(mask).to_series()
    kept = keep.sum()
    if kept == batch.num_rows:
        return batch
    # A mask without columns of its own (a literal) has one value for all rows.
    return batch.filter(keep.to_arrow()) if len(keep) == batch.num_rows else batch.slice(0, batch.num_rows * kept)
