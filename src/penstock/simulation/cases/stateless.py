"""Operators without state, and what brings records from one place to another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import polars as pl

from penstock.api.stream import Stream
from penstock.simulation.cases.case import OUT, Case, Input, same


def _pair(row: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return [{"id": row["id"], "x": row["x"], "copy": copy} for copy in range(row["id"] % 3)]


def _rows(stream: Stream, input: Input) -> dict[str, Stream]:
    numbers = stream.filter(pl.col("x") > -20).with_columns(double=pl.col("x") * 2).select("id", "double")
    named = numbers.rebalance().map(
        lambda row: {"id": row["id"], "text": str(row["double"])}, returns={"id": int, "text": str}
    )
    pairs = stream.rebalance().flat_map(_pair, returns={"id": int, "x": int, "copy": int})
    return {OUT: named, "pairs": pairs}


def _check_rows(input: Input, outputs: Mapping[str, pl.DataFrame]) -> None:
    numbers = input.records.filter(pl.col("x") > -20)
    same(outputs[OUT], numbers.select("id", text=(pl.col("x") * 2).cast(pl.String)), "the rows")
    copies = [input.records.with_columns(copy=pl.lit(copy, pl.Int64)) for copy in range(2)]
    wanted = pl.concat(copies).filter(pl.col("copy") < pl.col("id") % 3).select("id", "copy", "x")
    same(outputs["pairs"], wanted, "the pairs")


def _union(stream: Stream, input: Input) -> dict[str, Stream]:
    high, low = stream.filter(pl.col("id") % 2 == 0), stream.filter(pl.col("id") % 3 == 0)
    return {OUT: high.union(low.rebalance(), stream)}


def _check_union(input: Input, outputs: Mapping[str, pl.DataFrame]) -> None:
    records, id = input.records, pl.col("id")
    same(outputs[OUT], pl.concat([records.filter(id % 2 == 0), records.filter(id % 3 == 0), records]), "the union")


CASES: Final = (
    Case("rows and expressions", _rows, _check_rows),
    Case("union", _union, _check_union),
)
