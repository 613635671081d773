"""Windows: of time, of sessions, of counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from penstock.api.stream import Stream
from penstock.operators.aggregation import declare as agg
from penstock.operators.windows.declare import (
    SessionWindows,
    TimeWindows,
    count_window,
    every_count,
    global_window,
    session,
    sliding,
    tumbling,
)
from penstock.simulation.cases.case import LATE, OUT, Build, Case, Check, Input, same, sorted_lists
from penstock.simulation.cases.figures import IN_ORDER, NUMBERS, VALUES, Figures, by_polars
from penstock.simulation.story import Violation

Outputs = Mapping[str, pl.DataFrame]

BOUNDS: Final = ("window_start", "window_end")
FIGURES: Final[Figures] = {
    **{name: NUMBERS[name] for name in ("n", "total", "amount", "high", "variance", "squares")},
    **{name: VALUES[name] for name in ("ids", "low_word", "last_x", "words", "latest")},
}
TUMBLING: Final = tumbling("100ms", offset="30ms")
SLIDING: Final = sliding("90ms", every="60ms")
SESSIONS: Final = session("40ms")
LATENESS: Final = 60
COUNT: Final = 4


def windowed(windows: TimeWindows | SessionWindows, lateness: int = 0, *, keyed: bool = True) -> Build:
    def build(stream: Stream, input: Input) -> dict[str, Stream]:
        by = stream.key_by(*input.key) if keyed else stream
        result = by.window(windows, allowed_lateness=lateness / 1_000).aggregate(uid="windows", **FIGURES)
        return {OUT: result, LATE: result.late}

    return build


# ---- which records are in which windows, by Polars ----
def in_time_windows(records: pl.DataFrame, windows: TimeWindows) -> pl.DataFrame:
    """Every record with the bounds of its windows, once for each."""
    last = (pl.col("ts") - windows.offset).floordiv(windows.every) * windows.every + windows.offset
    starts = [last - windows.every * back for back in range(-(-windows.size // windows.every))]
    every = pl.concat([records.with_columns(window_start=start) for start in starts])
    return every.with_columns(window_end=pl.col("window_start") + windows.size).filter(
        pl.col("ts") < pl.col("window_end")
    )


def in_sessions(records: pl.DataFrame, gap: int, key: tuple[str, ...]) -> pl.DataFrame:
    """Every record with the bounds of its session."""
    one = records.sort("ts").with_columns(all=pl.lit(0))
    pauses = (pl.col("ts").diff() >= gap).fill_null(False)
    of_key = one.with_columns(session=pauses.cum_sum().over("all", *key))
    first, last = (of.over(*key, "session") for of in (pl.col("ts").min(), pl.col("ts").max()))
    return of_key.with_columns(window_start=first, window_end=last + gap).drop("all", "session")


def members(records: pl.DataFrame, windows: TimeWindows | SessionWindows, key: tuple[str, ...]) -> pl.DataFrame:
    if isinstance(windows, TimeWindows):
        return in_time_windows(records, windows)
    return in_sessions(records, windows.gap, key)


# ---- nothing is late ----
def exact(windows: TimeWindows | SessionWindows, *, keyed: bool = True) -> Check:
    def check(input: Input, outputs: Outputs) -> None:
        key = input.key if keyed else ()
        wanted = by_polars(members(input.timed, windows, key), [*key, *BOUNDS], FIGURES)
        same(sorted_lists(outputs[OUT], "ids"), wanted, "the windows")
        same(outputs[LATE], input.records.filter(pl.col("ts").is_null()), "the records without a time")

    return check


# ---- what is late depends on the run ----
def conserving(windows: TimeWindows | SessionWindows, *, again: bool = False) -> Check:
    """Every record is in its windows or late; what the windows say follows from the records that are in them. Where
    windows are put out `again`, the largest row of each counts."""

    def check(input: Input, outputs: Outputs) -> None:
        by = [*input.key, *BOUNDS]
        found = sorted_lists(outputs[OUT], "ids")
        if found.select(*by, "n").is_duplicated().any():
            raise Violation("the same row was put out twice")
        if again:
            found = found.group_by(by).agg(pl.all().sort_by("n").last()).select(found.columns)
        placed = found.select(*BOUNDS, id=pl.col("ids")).explode("id").join(input.records, on="id")
        same(found, by_polars(placed, by, FIGURES), "the windows, by the records in them")
        if isinstance(windows, TimeWindows):
            _check_places(placed, in_time_windows(input.timed, windows))
        else:
            _check_sessions(placed, windows.gap, by)
        fates = Counter([*outputs[LATE]["id"].to_list(), *placed["id"].unique().to_list()])
        if fates != Counter(input.records["id"].to_list()):
            wrong = [id for id in input.records["id"].to_list() if fates[id] != 1]
            raise Violation(f"neither in a window nor late, or more than once: {wrong}")

    return check


def _check_places(placed: pl.DataFrame, possible: pl.DataFrame) -> None:
    """A record can only miss the first of its windows."""
    own = _starts(possible)
    for id, starts in _starts(placed).items():
        if starts != own[id][-len(starts) :]:
            raise Violation(f"record {id} belongs to the windows that begin at {own[id]}, but is in {starts}")


def _starts(frame: pl.DataFrame) -> dict[int, list[int]]:
    """Of the windows of each record."""
    return dict(frame.group_by("id").agg(pl.col("window_start").sort()).iter_rows())


def _check_sessions(placed: pl.DataFrame, gap: int, by: list[str]) -> None:
    if placed["id"].is_duplicated().any():
        raise Violation("a record is in two sessions")
    wanted = placed.group_by(by).agg(
        start=pl.col("ts").min(), end=pl.col("ts").max() + gap, pause=pl.col("ts").sort().diff().max().fill_null(0)
    )
    wrong = wanted.filter(
        (pl.col("start") != pl.col("window_start")) | (pl.col("end") != pl.col("window_end")) | (pl.col("pause") >= gap)
    )
    if len(wrong):
        raise Violation(f"sessions that do not fit their records: {wrong.rows(named=True)[:2]}")


# ---- windows of windows ----
def _windows_of_windows(stream: Stream, input: Input) -> dict[str, Stream]:
    key = input.key
    first = stream.key_by(*key).window(tumbling("50ms")).aggregate(n=agg.count(), total=agg.sum("x"), uid="first")
    second = (
        first.key_by(*key)
        .window(sliding("200ms", every="100ms"))
        .aggregate(windows=agg.count(), n=agg.sum("n"), best=agg.max("total"), uid="second")
    )
    return {OUT: second, LATE: second.late}


def _check_windows_of_windows(input: Input, outputs: Outputs) -> None:
    key = list(input.key)
    first = by_polars(in_time_windows(input.timed, tumbling("50ms")), [*key, *BOUNDS], ["n", "total"])
    times = first.with_columns(ts=pl.col("window_end") - 1).drop(BOUNDS)
    second = in_time_windows(times, sliding("200ms", every="100ms"))
    wanted = second.group_by([*key, *BOUNDS]).agg(
        windows=pl.len().cast(pl.Int64), n=pl.col("n").sum(), best=pl.col("total").max()
    )
    same(outputs[OUT], wanted, "the windows of windows")
    same(outputs[LATE], times.clear().select(*key), "what no window was late for")


# ---- windows of counts ----
def _counted(stream: Stream, input: Input) -> dict[str, Stream]:
    by = stream.key_by(*input.key)
    whole = by.window(global_window(trigger=every_count(COUNT))).aggregate(uid="whole", **IN_ORDER)
    return {OUT: by.window(count_window(COUNT)).aggregate(uid="counted", **IN_ORDER), "global": whole}


def _check_counted_in_order(input: Input, outputs: Outputs) -> None:
    key = list(input.key)
    numbered = input.records.with_columns(place=pl.int_range(pl.len()).over(key), size=pl.len().over(key))
    full = numbered.filter(pl.col("place") < pl.col("size") // COUNT * COUNT)
    numbered_windows = full.with_columns(window=pl.col("place") // COUNT)
    wanted = by_polars(numbered_windows, [*key, "window"], IN_ORDER).drop("window")
    same(outputs[OUT], wanted, "the count windows")
    pieces = [
        by_polars(numbered.filter((pl.col("place") < upto) & (pl.col("size") >= upto)), key, IN_ORDER)
        for upto in range(COUNT, len(numbered) + 1, COUNT)
    ]
    same(outputs["global"], pl.concat([wanted.clear(), *pieces]), "the global window")


def _check_counted(input: Input, outputs: Outputs) -> None:
    """Which records a window has depends on the run, but not how many."""
    key = input.key
    sizes = Counter(input.records.select(key).rows())
    windows: Counter[tuple[Any, ...]] = Counter(outputs[OUT].select(key).rows())
    if windows != Counter({of: size // COUNT for of, size in sizes.items() if size >= COUNT}):
        raise Violation(f"{windows} count windows of {sizes} records")
    placed = outputs[OUT].select(*key, id=pl.col("ids")).explode("id")
    if placed["id"].is_duplicated().any():
        raise Violation("a record is in two count windows")
    same(
        placed, input.records.filter(pl.col("id").is_in(placed["id"].to_list())).select(*key, "id"), "the count windows"
    )
    if (outputs[OUT]["n"] != COUNT).any():
        raise Violation(f"a count window has not {COUNT} records")


CASES: Final = (
    Case("tumbling windows", windowed(TUMBLING), exact(TUMBLING)),
    Case("sliding windows", windowed(SLIDING), exact(SLIDING)),
    Case("sessions", windowed(SESSIONS), exact(SESSIONS)),
    Case("windows without a key", windowed(TUMBLING, keyed=False), exact(TUMBLING, keyed=False)),
    Case("sessions without a key", windowed(SESSIONS, keyed=False), exact(SESSIONS, keyed=False)),
    Case("windows of windows", _windows_of_windows, _check_windows_of_windows),
    Case("late in tumbling windows", windowed(TUMBLING), conserving(TUMBLING), late=True),
    Case("late in sliding windows", windowed(SLIDING), conserving(SLIDING), late=True),
    Case("late in sessions", windowed(SESSIONS), conserving(SESSIONS), late=True),
    Case("late but allowed", windowed(TUMBLING, LATENESS), conserving(TUMBLING, again=True), late=True),
    Case("late but allowed, sliding", windowed(SLIDING, LATENESS), conserving(SLIDING, again=True), late=True),
    Case("count windows in order", _counted, _check_counted_in_order, in_order=True),
    Case("count windows", _counted, _check_counted),
)
