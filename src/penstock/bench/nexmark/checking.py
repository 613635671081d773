"""Whether the results of a pipeline are those of the SQL: the same rows, each as often, in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import polars.selectors as cs

from penstock.bench.nexmark.answers import answer
from penstock.bench.nexmark.catalogue import QUERIES
from penstock.bench.nexmark.events import Nexmark

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN = 3
_DIGITS = 12
"""Of floats: means are added up in another order here and there."""


def difference(query: str, found: pa.Table, events: Nexmark) -> str | None:
    """What is wrong with the rows that the pipeline of a query put out; None if nothing is."""
    wanted = _frame(answer(query, events))
    rows = settled(query, found)
    if rows.columns != wanted.columns:
        return f"{query} has the columns {rows.columns}, not {wanted.columns}"
    rows = rows.cast(wanted.schema)
    names = wanted.columns
    counted = rows.group_by(names).len("found").join(
        wanted.group_by(names).len("wanted"), on=names, how="full", nulls_equal=True, coalesce=True
    )  # fmt: skip
    wrong = counted.filter(pl.col("found").fill_null(0) != pl.col("wanted").fill_null(0))
    if wrong.is_empty():
        return None
    return (
        f"{query}: {wrong.height} different rows of {wanted.height} are there too often or too seldom (found "
        f"{rows.height} rows), for example {wrong.sort(names).head(_SHOWN).to_dicts()}"
    )


def settled(query: str, found: pa.Table) -> pl.DataFrame:
    """The table that the results make up in the end: of a row that was put out several times, the last."""
    frame = _frame(found)
    if query == "q12":  # which window a bid is in depends on when it came; that all are in one does not
        return frame.group_by("bidder").agg(pl.col("bid_count").sum())
    key = QUERIES[query].key
    return frame.unique(key, keep="last", maintain_order=True) if key else frame


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.DataFrame(table)
    return frame.with_columns(cs.float().round_sig_figs(_DIGITS), cs.decimal().cast(pl.Decimal(38, 3)))
