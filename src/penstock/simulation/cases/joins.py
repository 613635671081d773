"""Joins: the records with an even number are the left side, the others the right one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal

import polars as pl

from penstock.api.stream import Stream
from penstock.operators.windows.declare import SessionWindows, TimeWindows
from penstock.simulation.cases.case import LATE, OUT, Build, Case, Check, Input, same
from penstock.simulation.cases.windows import BOUNDS, SESSIONS, SLIDING, TUMBLING, members
from penstock.simulation.story import Violation

Outputs = Mapping[str, pl.DataFrame]
How = Literal["inner", "left", "right", "full", "semi", "anti"]
HOWS: Final[tuple[How, ...]] = ("inner", "left", "right", "full", "semi", "anti")

LATE_RIGHT: Final = "late_right"
LOWER, UPPER = -30, 50
"""Milliseconds, of the interval join."""
_IS_LEFT: Final = pl.col("id") % 2 == 0


def _sides(stream: Stream, input: Input) -> tuple[Stream, Stream]:
    left = stream.filter(_IS_LEFT).select(*input.key, "id", "x", "ts")
    right = stream.filter(~_IS_LEFT).select(*input.key, "word", "ts", rid=pl.col("id"))
    return left, right


def _left(records: pl.DataFrame) -> pl.DataFrame:
    return records.filter(_IS_LEFT).drop("word")


def _right(records: pl.DataFrame) -> pl.DataFrame:
    return records.filter(~_IS_LEFT).drop("x").rename({"id": "rid"})


def _columns(how: How) -> list[str]:
    return ["id", "x"] if how in ("semi", "anti") else ["id", "rid", "x", "word"]


def materialised(output: pl.DataFrame) -> pl.DataFrame:
    """What is left of all that was put out. Raises `Violation` if more is taken back than there was."""
    if "op" not in output.columns:
        return output
    rows: Counter[tuple[Any, ...]] = Counter()
    for op, *row in output.select("op", pl.exclude("op")).iter_rows():
        rows[tuple(row)] += 1 if op == "insert" else -1
        if rows[tuple(row)] < 0:
            raise Violation(f"{row} is taken back, but was not there")
    return pl.DataFrame(list(rows.elements()), schema=output.drop("op").schema, orient="row")


# ---- running ----
def _running(how: How) -> Build:
    def build(stream: Stream, input: Input) -> dict[str, Stream]:
        left, right = _sides(stream, input)
        return {OUT: left.key_by(*input.key).join(right.key_by(*input.key), how=how, uid="join")}

    return build


def _check_running(how: How) -> Check:
    def check(input: Input, outputs: Outputs) -> None:
        left, right = _left(input.records), _right(input.records)
        wanted = left.join(right, on=input.key, how=how, coalesce=None if how in ("semi", "anti") else True)
        columns = [*_columns(how), *input.key]
        same(materialised(outputs[OUT]), wanted.select(columns), "the join")

    return check


# ---- by event time: records without a time are late ----
def _check_late(input: Input, outputs: Outputs) -> None:
    timeless = input.records.filter(pl.col("ts").is_null())
    same(outputs[LATE], _left(timeless).select("id"), "the left side's records without a time")
    same(outputs[LATE_RIGHT], _right(timeless).select("rid"), "the right side's records without a time")


def _interval(how: How) -> Build:
    def build(stream: Stream, input: Input) -> dict[str, Stream]:
        left, right = _sides(stream, input)
        joined = left.key_by(*input.key).interval_join(
            right.key_by(*input.key), lower=LOWER / 1_000, upper=UPPER / 1_000, how=how, uid="join"
        )
        return {OUT: joined, LATE: joined.late, LATE_RIGHT: joined.late_right}

    return build


def _check_interval(how: How) -> Check:
    def check(input: Input, outputs: Outputs) -> None:
        left, right = _left(input.timed), _right(input.timed)
        every = left.join(right, on=input.key)
        pairs = every.filter((pl.col("ts_right") - pl.col("ts")).is_between(LOWER, UPPER)).select("id", "rid")
        wanted = pairs.join(left, on="id", how="full" if how in ("left", "full") else "inner", coalesce=True).join(
            right.select("rid", "word"), on="rid", how="full" if how in ("right", "full") else "left", coalesce=True
        )
        same(outputs[OUT], wanted.select(_columns(how)), "the interval join")
        _check_late(input, outputs)

    return check


def _temporal(stream: Stream, input: Input) -> dict[str, Stream]:
    left, right = _sides(stream, input)
    joined = left.key_by(*input.key).temporal_join(right.key_by(*input.key), how="left", uid="join")
    return {OUT: joined, LATE: joined.late, LATE_RIGHT: joined.late_right}


def _check_temporal(input: Input, outputs: Outputs) -> None:
    versions = _right(input.timed).drop_nulls(input.key).sort("ts", maintain_order=True)
    orders = _left(input.timed).sort("ts", maintain_order=True)
    wanted = orders.join_asof(versions, on="ts", by=list(input.key), check_sortedness=False)
    same(outputs[OUT], wanted.select(_columns("left")), "the temporal join")
    _check_late(input, outputs)


# ---- of windows ----
def _windowed(windows: TimeWindows | SessionWindows, how: How) -> Build:
    def build(stream: Stream, input: Input) -> dict[str, Stream]:
        left, right = _sides(stream, input)
        joined = left.key_by(*input.key).window(windows).join(right.key_by(*input.key), how=how, uid="join")
        return {OUT: joined, LATE: joined.late, LATE_RIGHT: joined.late_right}

    return build


def _check_windowed(windows: TimeWindows | SessionWindows, how: How) -> Check:
    def check(input: Input, outputs: Outputs) -> None:
        placed = members(input.timed, windows, input.key)
        wanted = _left(placed).join(_right(placed), on=[*input.key, *BOUNDS], how=how, coalesce=True)
        same(outputs[OUT], wanted.select(*_columns(how), *BOUNDS), "the window join")
        _check_late(input, outputs)

    return check


# ---- with what is known when a record comes ----
def _lookup(stream: Stream, input: Input) -> dict[str, Stream]:
    left, right = _sides(stream, input)
    return {OUT: left.lookup_join(right, on=list(input.key), how="left", uid="join")}


def _check_lookup(input: Input, outputs: Outputs) -> None:
    """Every record once, with nothing or with some row of its key."""
    found, columns = outputs[OUT], ["id", *input.key]
    same(found.select(columns), _left(input.records).select(columns), "the records")
    known = found.drop_nulls("rid").select("rid", "word", *input.key)
    rows = _right(input.records).filter(pl.col("rid").is_in(known["rid"].to_list())).select(known.columns)
    same(known.unique(), rows, "the rows that were looked up")


CASES: Final = (
    *(Case(f"{how} join", _running(how), _check_running(how)) for how in HOWS),
    *(Case(f"{how} interval join", _interval(how), _check_interval(how)) for how in ("inner", "left", "full")),
    Case("temporal join", _temporal, _check_temporal, in_order=True),
    Case("join of tumbling windows", _windowed(TUMBLING, "full"), _check_windowed(TUMBLING, "full")),
    Case("join of sliding windows", _windowed(SLIDING, "left"), _check_windowed(SLIDING, "left")),
    Case("join of sessions", _windowed(SESSIONS, "inner"), _check_windowed(SESSIONS, "inner")),
    Case("lookup join", _lookup, _check_lookup),
)
