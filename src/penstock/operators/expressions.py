"""filter, select and with_columns: Polars expressions over batches.

Neighbouring expression operators of a chain arrive here as one list of steps, so that a batch becomes a Polars frame
and an Arrow batch again only once. Each step runs eagerly and in this thread: on batches of a step's budget a lazy
query's planning and Polars' own thread pool cost more than they gain. Expressions travel in Polars' own serialised form
and are read when the operator opens, so that a worker imports Polars only when a pipeline uses it. Where all steps are
filters, Polars makes the masks only, from only the columns that they look at, and Arrow takes the rows: no other column
is ever converted.
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
    from collections.abc import Sequence

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


EAGER = {
    StepKind.FILTER: "filter",
    StepKind.SELECT: "select_seq",
    StepKind.WITH_COLUMNS: "with_columns_seq",
}


class ExpressionOperator(Operator):
    def __init__(self, steps: Sequence[Step], schema: pa.Schema) -> None:
        self._steps, self._schema = tuple(steps), schema

    def open(self, context: OperatorContext) -> None:
        self._only_filters = all(step.kind is StepKind.FILTER for step in self._steps)
        if self._only_filters:
            self._masks = [(list(step.columns), _all_of(step.read())) for step in self._steps]
        else:
            self._calls = [(EAGER[step.kind], step.read()) for step in self._steps]

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        if not self._only_filters:
            frame = frame_of(batch)
            for method, expressions in self._calls:
                frame = getattr(frame, method)(*expressions)
            for result in batches_of(frame, self._schema):
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
    keep = frame_of(batch.select(columns)).select_seq(mask).to_series()
    kept = keep.sum()
    if kept == batch.num_rows:
        return batch
    # A mask without columns of its own (a literal) has one value for all rows.
    return batch.filter(keep.to_arrow()) if len(keep) == batch.num_rows else batch.slice(0, batch.num_rows * kept)
