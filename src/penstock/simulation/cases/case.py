"""What an operator case is: how to build a job around the operator, and what the job must put out.

The answer comes from Polars, or from a plain reading of the records, never from Penstock. Which records of a stream are
late, and in which order those of several splits come, depends on the run. So a case is one of two kinds: either
nothing that the answer depends on is left open (no record is later than the delay of the watermarks; there is one
split), and the output must be exactly what Polars says; or the output itself tells what became of each record, and then
every record must be in it exactly once, where it may be, and all figures must follow from that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa
from polars.testing import assert_frame_equal

from penstock.api.stream import Stream
from penstock.simulation.story import Violation

LATE = "late"
OUT = "out"


@dataclass(frozen=True)
class Input:
    """The records of a run."""

    table: pa.Table
    key: tuple[str, ...]
    splits: int
    disorder: int
    """In milliseconds: how much earlier than a record at most those are that come after it in its split."""
    delay: int
    """Of the watermarks: less than the disorder makes records late."""

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    @property
    def records(self) -> pl.DataFrame:
        return plain(self.table)

    @property
    def timed(self) -> pl.DataFrame:
        """The records that have a time."""
        return self.records.filter(pl.col("ts").is_not_null())

    @property
    def punctual(self) -> bool:
        return self.delay >= self.disorder


Build = Callable[[Stream, Input], Mapping[str, Stream]]
"""From the stream of records, with watermarks, to the streams that are collected, by name."""
Check = Callable[[Input, Mapping[str, pl.DataFrame]], None]
"""Looks at what was collected, which is `plain`. Raises `Violation`."""


@dataclass(frozen=True)
class Case:
    name: str
    build: Build
    check: Check
    in_order: bool = False
    """All records are in one split: those of a key come in the order of their ids."""
    late: bool = False
    """Records may be late."""
    rocksdb: bool = False
    """User state is kept in RocksDB."""


def plain(table: pa.Table) -> pl.DataFrame:
    """As it is compared: times as milliseconds, decimals as floats; lists in an order of their own and as text, for
    the order in which values come is nobody's promise, unless a list says so itself."""
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(*(_plain(name, kind) for name, kind in frame.schema.items()))


def _plain(name: str, kind: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    if isinstance(kind, pl.Datetime):
        return column.dt.epoch("ms")
    if isinstance(kind, pl.Decimal):
        return column.cast(pl.Float64)
    return column


def sorted_lists(frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
    return frame.with_columns(pl.col(name).list.sort() for name in columns)


def listed(frame: pl.DataFrame) -> pl.DataFrame:
    """With its lists as text."""
    lists = [name for name, kind in frame.schema.items() if isinstance(kind, pl.List)]
    texts = (pl.col(name).list.eval(pl.element().cast(pl.String)).list.join(" ") for name in lists)
    return frame.with_columns(*texts)


def same(found: pl.DataFrame, wanted: pl.DataFrame, what: str) -> None:
    """The same rows, in whatever order; floats almost. The first columns of `wanted` should tell its rows apart."""
    columns = wanted.columns
    try:
        assert_frame_equal(
            listed(found.select(columns)),
            listed(wanted),
            check_row_order=False,
            check_dtypes=False,
            rel_tol=1e-9,
            abs_tol=1e-9,
        )
    except AssertionError as error:
        difference = " ".join(str(error).split())
        raise Violation(f"{what}: {difference}. {_example(found.select(columns), wanted)}") from None


def _example(found: pl.DataFrame, wanted: pl.DataFrame) -> str:
    have, want = (listed(frame).rows() for frame in (found, wanted))
    extra = [row for row in have if row not in want]
    lost = [row for row in want if row not in have]
    return f"Found {len(have)} rows, wanted {len(want)}; only found: {extra[:2]}; only wanted: {lost[:2]}"


def keys_of(frame: pl.DataFrame, key: Sequence[str]) -> list[tuple[Any, ...]]:
    return frame.select(key).rows()
