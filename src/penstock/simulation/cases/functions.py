"""Users' functions with state per key, in memory and in RocksDB."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final

import polars as pl

from penstock.api.stream import Stream
from penstock.operators.keyed import KeyedContext, KeyedFunction
from penstock.simulation.cases.case import OUT, Case, Input, same
from penstock.simulation.story import Violation
from penstock.state import declare

Outputs = Mapping[str, pl.DataFrame]
_RETURNS: Final = {"id": int, "n": int, "total": int, "words": int, "most": int}


class _Account(KeyedFunction):
    """Of each record: how many its key has had, their sum, how many different words, and the most of one."""

    ids = declare.list(int)
    total = declare.value(int, default=0)
    words = declare.map(str, int)

    def process(self, row: Any, ctx: KeyedContext) -> None:
        self.ids.append(row.id)
        self.total.value += row.x or 0
        if row.word is not None:
            self.words[row.word] = self.words.get(row.word, 0) + 1
        counts = self.words.value.values()
        ctx.emit(id=row.id, n=len(self.ids), total=self.total.value, words=len(counts), most=max(counts, default=0))


def _process(stream: Stream, input: Input) -> dict[str, Stream]:
    return {OUT: stream.key_by(*input.key).process(_Account, returns=_RETURNS, uid="account")}


def _check_process(input: Input, outputs: Outputs) -> None:
    """In the order of their numbers, the records of a key must give what the function says of them."""
    found = outputs[OUT].join(input.records.select("id", "x", "word", *input.key), on="id")
    same(found.select("id"), input.records.select("id"), "the records")
    accounts = found.sort("n").with_columns(place=pl.int_range(1, pl.len() + 1).over(input.key))
    sums = pl.col("x").fill_null(0).cum_sum().over(input.key)
    wrong = accounts.filter((pl.col("n") != pl.col("place")) | (pl.col("total") != sums))
    if len(wrong):
        raise Violation(f"accounts that do not follow from each other: {wrong.rows(named=True)[:2]}")
    counts = input.records.drop_nulls("word").group_by(*input.key, "word").agg(count=pl.len().cast(pl.Int64))
    words = counts.group_by(input.key).agg(words=pl.len().cast(pl.Int64), most=pl.col("count").max())
    last = accounts.group_by(input.key).agg(pl.col("words", "most").last())
    same(last.filter(pl.col("words") > 0), words.select(*input.key, "words", "most"), "the words at the end")


def _fold(stream: Stream, input: Input) -> dict[str, Stream]:
    def added(one: Any, other: Any) -> dict[str, Any]:
        return {**dict(one), "n": one.n + other.n, "id": max(one.id, other.id), "x": one.x + other.x}

    numbers = stream.select(*input.key, "id", pl.col("x").fill_null(0), n=pl.lit(1, pl.Int64))
    return {OUT: numbers.key_by(*input.key).reduce(added, uid="fold")}


def _check_fold(input: Input, outputs: Outputs) -> None:
    found = outputs[OUT]
    if found.select(*input.key, "n").is_duplicated().any():
        raise Violation("the same row was put out twice")
    last = found.group_by(input.key).agg(pl.all().sort_by("n").last())
    wanted = input.records.group_by(input.key).agg(pl.col("id").max(), pl.col("x").sum(), n=pl.len().cast(pl.Int64))
    same(last, wanted, "the last rows")


IN_MEMORY: Final = (
    Case("process", _process, _check_process),
    Case("reduce with a function", _fold, _check_fold),
)
IN_ROCKSDB: Final = (
    Case("process in RocksDB", _process, _check_process, rocksdb=True),
    Case("reduce with a function in RocksDB", _fold, _check_fold, rocksdb=True),
)
CASES: Final = (*IN_MEMORY, *IN_ROCKSDB) if find_spec("rocksdict") else IN_MEMORY
