"""Running aggregates and deduplication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from penstock.api.stream import Stream
from penstock.simulation.cases.case import LATE, OUT, Build, Case, Check, Input, same, sorted_lists
from penstock.simulation.cases.figures import NUMBERS, SKETCHES, VALUES, Figures, by_polars, check_sketches
from penstock.simulation.story import Violation

Outputs = Mapping[str, pl.DataFrame]


# ---- changelogs ----
def _changelog(aggregates: Figures) -> Build:
    def build(stream: Stream, input: Input) -> dict[str, Stream]:
        return {OUT: stream.key_by(*input.key).reduce(output="changelog", uid="reduce", **aggregates)}

    return build


def materialised(changelog: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """What is left of a changelog at its end. Raises `Violation` where it contradicts itself."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    before: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in changelog.iter_rows(named=True):
        op, of = row.pop("op"), tuple(row[name] for name in key)
        if (op == "insert") == (of in rows) or (op == "update_after") != (of in before):
            raise Violation(f"{op} of {row} after {rows.get(of)}")
        if op == "update_before":
            before[of] = row
            if rows[of] != row:
                raise Violation(f"{row} is taken back, but {rows[of]} was put out")
        else:
            before.pop(of, None)
            rows[of] = row
    if before:
        raise Violation(f"{before} were taken back and nothing came after")
    return pl.DataFrame(list(rows.values()), schema=changelog.drop("op").schema)


def _check_changelog(aggregates: Figures, *lists: str) -> Check:
    def check(input: Input, outputs: Outputs) -> None:
        found = sorted_lists(materialised(outputs[OUT], input.key), *lists)
        same(found, by_polars(input.records, input.key, aggregates), "the changelog's end")

    return check


def _check_sketches(input: Input, outputs: Outputs) -> None:
    found = materialised(outputs[OUT], input.key)
    same(found, by_polars(input.records, input.key, ["n"]), "the changelog's end")
    check_sketches(found, input.records, input.key)


# ---- updates ----
def _updates(stream: Stream, input: Input) -> dict[str, Stream]:
    return {OUT: stream.key_by(*input.key).reduce(uid="reduce", **NUMBERS)}


def _check_updates(input: Input, outputs: Outputs) -> None:
    found = outputs[OUT]
    if found.select(*input.key, "n").is_duplicated().any():
        raise Violation("the same update was put out twice")
    last = found.group_by(input.key).agg(pl.all().sort_by("n").last())
    same(last, by_polars(input.records, input.key, NUMBERS), "the last updates")


# ---- deduplicate ----
WITHIN: Final = 120


def _once(stream: Stream, input: Input) -> dict[str, Stream]:
    return {OUT: stream.deduplicate(*input.key, uid="once")}


def _check_once(input: Input, outputs: Outputs) -> None:
    wanted = input.records.unique(input.key, keep="first", maintain_order=True)
    same(outputs[OUT], wanted.select("id", pl.exclude("id")), "the first records")


def _check_any_once(input: Input, outputs: Outputs) -> None:
    found = outputs[OUT]
    same(found.select(input.key), input.records.select(input.key).unique(), "the values that were let through")
    same(found, input.records.filter(pl.col("id").is_in(found["id"].to_list())), "the records that were let through")


def _once_within(stream: Stream, input: Input) -> dict[str, Stream]:
    once = stream.deduplicate(*input.key, within=WITHIN / 1_000, uid="once")
    return {OUT: once, LATE: once.late}


def _check_once_within(input: Input, outputs: Outputs) -> None:
    let_through: dict[tuple[Any, ...], list[int]] = {}
    ids = []
    for row in input.timed.iter_rows(named=True):
        times = let_through.setdefault(tuple(row[name] for name in input.key), [])
        if all(abs(row["ts"] - time) >= WITHIN for time in times):
            times.append(row["ts"])
            ids.append(row["id"])
    same(outputs[OUT], input.records.filter(pl.col("id").is_in(ids)), "the first records within the time")
    same(outputs[LATE], input.records.filter(pl.col("ts").is_null()), "the records without a time")


CASES: Final = (
    Case("changelog of numbers", _changelog(NUMBERS), _check_changelog(NUMBERS)),
    Case("changelog of values", _changelog(VALUES), _check_changelog(VALUES, "ids")),
    Case("changelog of sketches", _changelog(SKETCHES), _check_sketches),
    Case("updates", _updates, _check_updates),
    Case("deduplicate", _once, _check_any_once),
    Case("deduplicate in order", _once, _check_once, in_order=True),
    Case("deduplicate within a time", _once_within, _check_once_within, in_order=True),
)
