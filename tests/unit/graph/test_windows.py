"""Windows in the plan: what comes out, where event time is found, side outputs as edges, and what is refused."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as ps
from penstock.graph.job import Partitioning

SCHEMA = pa.schema([("user", pa.string()), ("amount", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])


def orders(pipeline: ps.Pipeline, uid: str = "orders", time: str = "ts") -> ps.Stream:
    columns = {
        "user": lambda i: pa.array([f"u{n % 3}" for n in i], pa.string()),
        "amount": lambda i: i,
        time: lambda i: pa.array(i * 1_000_000).cast(pa.timestamp("us", "UTC")),
    }
    return pipeline.source(ps.sources.Generator(10, columns), uid=uid)


def timed(pipeline: ps.Pipeline) -> ps.Stream:
    return orders(pipeline).with_watermark("ts", delay="5s", uid="time")


def refused(write: Any) -> str:
    with pytest.raises(ps.PipelineError) as error:
        write()
    return str(error.value)


def test_the_result_has_the_key_the_bounds_and_the_aggregates() -> None:
    windowed = timed(ps.Pipeline("job")).key_by("user").window(ps.tumbling("10s"))
    assert repr(windowed) == "<WindowedStream of tumbling(10000ms) by user>"
    result = windowed.aggregate(n=ps.count(), mean=ps.mean("amount"), uid="totals")
    bound = pa.timestamp("us", "UTC")
    wanted = [("user", pa.string()), ("window_start", bound), ("window_end", bound), ("n", pa.int64())]
    assert result.schema == pa.schema([*wanted, ("mean", pa.float64())])
    assert result.late.schema == SCHEMA


@pytest.mark.parametrize(
    ("windows", "columns"),
    [
        (ps.sliding("1min", every="10s"), ["user", "window_start", "window_end", "n"]),
        (ps.session(gap="30s"), ["user", "window_start", "window_end", "n"]),
        (ps.count_window(5), ["user", "n"]),
        (ps.global_window(trigger=ps.every("1s"), purge=True), ["user", "n"]),
    ],
)
def test_every_kind_of_window_has_its_columns(windows: Any, columns: list[str]) -> None:
    assert timed(ps.Pipeline("job")).key_by("user").window(windows).aggregate(n=ps.count()).columns == columns


def test_late_records_leave_the_window_on_an_edge_of_their_own_and_the_results_go_on_in_its_chain() -> None:
    p = ps.Pipeline("job")
    totals = timed(p).key_by("user").window(ps.tumbling("10s")).aggregate(n=ps.count(), uid="totals")
    totals.filter(pl.col("n") > 1).sink(ps.sinks.Discard(), uid="out")
    totals.late.sink(ps.sinks.Discard(), uid="too-late")
    graph = p.graph()
    by_source = [(edge.source, edge.target, edge.partitioning, edge.output, edge.schema.names) for edge in graph.edges]
    assert by_source == [
        ("orders", "totals", Partitioning.HASH, "", SCHEMA.names),
        ("totals", "too-late", Partitioning.FORWARD, "late", SCHEMA.names),
    ]
    assert [spec.name for spec in graph.chain("totals").operators][-1] == "sink(Discard)"  # type: ignore[arg-type]


def test_windows_without_a_key_are_kept_in_one_place() -> None:
    p = ps.Pipeline("job", parallelism=3)
    timed(p).window(ps.tumbling("10s")).aggregate(n=ps.count(), uid="all").sink(
        ps.sinks.Discard(), uid="out", parallelism=1
    )
    assert {chain.id: chain.parallelism for chain in p.graph().chains} == {"orders": 3, "all": 1}
    assert "kept in one place" in refused(
        lambda: timed(ps.Pipeline("job")).window(ps.tumbling("1s")).aggregate(n=ps.count(), parallelism=2)
    )


def test_event_time_is_found_through_what_keeps_the_column_and_in_the_results_of_windows() -> None:
    stream = timed(ps.Pipeline("job")).filter(pl.col("amount") > 1).with_columns(x=1)
    minutes = stream.key_by("user").window(ps.tumbling("1min")).aggregate(n=ps.count(), uid="minutes")
    hours = minutes.key_by("user").window(ps.tumbling("1h")).aggregate(n=ps.sum("n"), uid="hours")
    assert hours.columns == ["user", "window_start", "window_end", "n"]
    named = orders(ps.Pipeline("job")).key_by("user").window(ps.session(gap="1s"), on="ts")
    assert named.aggregate(n=ps.count()).columns == ["user", "window_start", "window_end", "n"]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda p: orders(p).key_by("user").window(ps.tumbling("1s")).aggregate(n=ps.count()),
            "needs event time",
        ),
        (
            lambda p: timed(p).select("user").key_by("user").window(ps.tumbling("1s")).aggregate(n=ps.count()),
            "the column of event time, 'ts', is not in the stream any more",
        ),
        (
            lambda p: (
                timed(p).union(orders(p, "more")).key_by("user").window(ps.tumbling("1s")).aggregate(n=ps.count())
            ),
            "have their event time in different columns",
        ),
        (lambda p: timed(p).key_by("user").window("10s"), "'10s' is no window: use ps.tumbling"),
        (lambda p: timed(p).key_by("user").window(ps.tumbling("1s"), early=3), "early=3 must be ps.every"),
        (lambda p: timed(p).key_by("user").window(ps.count_window(3), allowed_lateness="1s"), "knows no time"),
        (
            lambda p: timed(p).key_by("user").window(ps.sliding("2s", every="1s"), early=ps.every_count(3)),
            "is for tumbling windows and sessions",
        ),
        (lambda p: timed(p).key_by("user").window(ps.tumbling("1s"), allowed_lateness="x"), "is no duration"),
        (
            lambda p: timed(p).key_by("user").window(ps.tumbling("1s"), on="amout").aggregate(n=ps.count()),
            "no column 'amout'",
        ),
        (lambda p: timed(p).key_by("user").window(ps.tumbling("1s")).aggregate(), "needs at least one aggregate"),
        (
            lambda p: timed(p).key_by("user").window(ps.tumbling("1s")).aggregate(window_end=ps.count()),
            "'window_end' has the name of another column",
        ),
        (lambda p: timed(p).key_by("user").window(ps.count_window(3)).aggregate(n=ps.count()).late, "no late records"),
        (lambda p: timed(p).deduplicate(), "needs at least one column"),
        (lambda p: timed(p).deduplicate("amout"), "there is no column 'amout'"),
        (lambda p: timed(p).deduplicate("user", within="0s"), "within='0s' must be more than 0"),
        (lambda p: timed(p).key_by("user").reduce(n=ps.count(), output="all"), "must be 'updates' or 'changelog'"),
        (lambda p: timed(p).key_by("user").reduce(lambda a, b: a, output="changelog"), "needs named aggregates"),
        (lambda p: orders(p).with_watermark("ts", idle_after="0s"), "idle_after='0s' must be more than 0"),
    ],
)
def test_what_cannot_run_is_refused_with_a_reason(write: Any, message: str) -> None:
    assert message in refused(lambda: write(ps.Pipeline("job")))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ps.tumbling("0s"), "size='0s' must be more than 0"),
        (lambda: ps.tumbling("1us"), "must be a whole number of milliseconds"),
        (lambda: ps.sliding("1s", every="2s"), "must not be more than size"),
        (lambda: ps.count_window(0), "must be a whole number of at least 1"),
        (lambda: ps.global_window(trigger="1s"), "must be ps.every_count"),  # type: ignore[arg-type]
    ],
)
def test_windows_that_are_none_are_refused(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_only_a_source_that_is_in_the_same_chain_can_be_paused() -> None:
    p = ps.Pipeline("job")
    orders(p).filter(pl.col("amount") > 0).with_watermark("ts", max_drift="1min", uid="time").sink(
        ps.sinks.Discard(), uid="out"
    )
    assert [chain.id for chain in p.graph().chains] == ["orders"]
    p = ps.Pipeline("job")
    orders(p).rebalance().with_watermark("ts", max_drift="1min", uid="time").sink(ps.sinks.Discard(), uid="out")
    assert "max_drift pauses the source, so the two must be in one chain" in refused(p.graph)


def test_the_time_of_deduplication_is_event_time_where_there_is_one() -> None:
    p = ps.Pipeline("job")
    once = timed(p).deduplicate("user", "amount", within="1h", uid="once")
    assert once.schema == SCHEMA
    assert once.late.schema == SCHEMA
    once.sink(ps.sinks.Discard(), uid="out")
    edge = p.graph().edges[0]
    assert (edge.partitioning, edge.key) == (Partitioning.HASH, ("user", "amount"))
