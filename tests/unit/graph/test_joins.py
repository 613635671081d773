"""Joins in the plan: two inputs, what comes out, where event time is found, what is a changelog, what is refused."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as ps
from penstock.core.redistribution import matching_edges
from penstock.core.watermarks import WatermarkCombiner
from penstock.graph.build import build
from penstock.graph.job import JobGraph, Partitioning
from penstock.graph.joins import is_changelog
from penstock.graph.record import graph_record


def orders(pipeline: ps.Pipeline, uid: str = "orders") -> ps.Stream:
    columns = {"user": lambda i: i % 3, "amount": lambda i: i, "ts": lambda i: i}
    return pipeline.source(ps.sources.Generator(10, columns), uid=uid)


def users(pipeline: ps.Pipeline, uid: str = "users") -> ps.Stream:
    columns = {"id": lambda i: i, "amount": lambda i: i / 2, "at": lambda i: i}
    return pipeline.source(ps.sources.Generator(10, columns), uid=uid)


def both(pipeline: ps.Pipeline) -> tuple[ps.KeyedStream, ps.KeyedStream]:
    left = orders(pipeline).with_watermark("ts", uid="left-time")
    return left.key_by("user"), users(pipeline).with_watermark("at", uid="right-time").key_by("id")


def graph_of(pipeline: ps.Pipeline, stream: ps.Stream) -> JobGraph:
    stream.sink(ps.sinks.Discard(), uid="out")
    return build(pipeline._plan)


def refused(write: Any) -> str:
    with pytest.raises(ps.PipelineError) as error:
        write()
    return str(error.value)


# ---- the graph ----
def test_each_side_feeds_its_own_input() -> None:
    p = ps.Pipeline("job", parallelism=2)
    left, right = both(p)
    graph = graph_of(p, left.join(right, uid="joined"))
    edges = [edge for edge in graph.edges if edge.target == "joined"]
    assert [(edge.source, edge.target_input, edge.key, edge.partitioning) for edge in edges] == [
        ("orders", 0, ("user",), Partitioning.HASH),
        ("users", 1, ("id",), Partitioning.HASH),
    ]
    assert "<- orders x2 by hash of user, left" in p.explain()
    assert "<- users x2 by hash of id, right" in p.explain()


def test_both_sides_may_be_unions_and_the_same_stream() -> None:
    p = ps.Pipeline("job")
    stream = orders(p, "a").union(orders(p, "b"))
    joined = stream.key_by("user").join(stream.key_by("user"), uid="joined")
    assert joined.columns == ["user", "amount", "ts", "amount_right", "ts_right"]
    graph = graph_of(p, joined)
    inputs = [(edge.source, edge.target_input) for edge in graph.edges if edge.target == "joined"]
    assert inputs == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_records_in_flight_find_their_side_again_though_both_edges_look_alike() -> None:
    def record(swap: bool) -> Any:
        p = ps.Pipeline("job")
        stream = orders(p)
        ahead = stream.filter(pl.col("amount") > 1, uid="filter") if swap else stream
        other = ahead.key_by("user").reduce(n=ps.count(), uid="other") if swap else None
        if other is not None:
            other.sink(ps.sinks.Discard(), uid="other-out")
        return graph_record(graph_of(p, stream.key_by("user").join(stream.key_by("user"), uid="joined")))

    old, new = record(False), record(True)
    for before, after in matching_edges(old, new).items():
        if old.edges[before].target == "joined":
            assert old.edges[before].target_input == new.edges[after].target_input
            assert old.edges[before].source == new.edges[after].source


def test_an_operator_on_a_join_is_chained_to_it() -> None:
    p = ps.Pipeline("job")
    left, right = both(p)
    graph = graph_of(p, left.join(right, uid="joined").filter(pl.col("amount") > 1))
    assert [operator.name for operator in graph.chain("joined").operators] == ["join(inner)", "filter", "sink(Discard)"]  # type: ignore[arg-type]


def test_a_lookup_table_is_broadcast_and_has_no_say_about_event_time() -> None:
    p = ps.Pipeline("job", parallelism=2)
    facts = orders(p).with_watermark("ts", uid="time")
    joined = facts.lookup_join(users(p), left_on="user", right_on="id", uid="joined")
    counted = joined.window(ps.tumbling("1s")).aggregate(n=ps.count(), uid="counted")
    graph = graph_of(p, counted)
    edges = {edge.source: edge for edge in graph.edges if edge.target == "joined"}
    assert [(edge.partitioning, edge.timeless) for edge in edges.values()] == [
        (Partitioning.FORWARD, False),
        (Partitioning.BROADCAST, True),
    ]
    channels = [channel for edge in edges.values() for channel in graph.channels(edge) if channel.target == 0]
    time = WatermarkCombiner(channels, [channel for channel in channels if graph.edges[channel.edge].timeless])
    assert time.watermark(channels[0], 7) and time.time == 7


# ---- columns ----
@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_the_result_has_the_key_once_and_the_columns_of_both(how: str) -> None:
    left, right = both(ps.Pipeline("job"))
    columns = ["user", "amount", "ts"] + ([] if how in ("semi", "anti") else ["amount_right", "at"])
    marks = ["op"] if how in ("left", "right", "full", "anti") else []
    assert left.join(right, how=how).columns == marks + columns
    assert left.interval_join(right, lower="-1s", upper=0, how=how).columns == columns
    windowed = left.window(ps.sliding("10s", every="5s")).join(right, how=how)
    assert windowed.columns == ["window_start", "window_end", *columns]
    if how in ("inner", "left"):
        assert left.temporal_join(right, how=how).columns == columns


def test_a_column_that_both_have_gets_the_suffix() -> None:
    left, right = both(ps.Pipeline("job"))
    joined = left.join(right, suffix="_of_user")
    assert joined.schema.field("amount_of_user").type == pa.float64()


def test_late_records_of_both_sides_are_streams_of_their_own() -> None:
    left, right = both(ps.Pipeline("job"))
    joined = left.temporal_join(right)
    assert joined.late.columns == ["user", "amount", "ts"]
    assert joined.late_right.columns == ["id", "amount", "at"]


# ---- event time ----
@pytest.mark.parametrize(("how", "time"), [("inner", "ts"), ("left", "ts"), ("right", "at"), ("semi", "ts")])
def test_results_of_an_interval_join_have_the_event_time_of_the_side_that_is_always_there(how: str, time: str) -> None:
    left, right = both(ps.Pipeline("job"))
    joined = left.interval_join(right, lower="-1s", upper="1s", how=how, uid="joined")
    assert joined._routes[0].node.event_time.column == time  # type: ignore[union-attr]


def test_results_of_a_full_interval_join_have_none_that_is_always_there() -> None:
    left, right = both(ps.Pipeline("job"))
    joined = left.interval_join(right, lower="-1s", upper="1s", how="full", uid="joined")
    assert "needs event time" in refused(lambda: joined.window(ps.tumbling("1s")).aggregate(n=ps.count()))
    assert joined.window(ps.tumbling("1s"), on="ts").aggregate(n=ps.count()).columns[-1] == "n"


def test_windows_of_window_joins_need_no_further_watermark() -> None:
    left, right = both(ps.Pipeline("job"))
    joined = left.window(ps.tumbling("1s")).join(right)
    assert "n" in joined.window(ps.tumbling("10s")).aggregate(n=ps.count()).columns


# ---- changelogs ----
def test_a_changelog_stays_one_through_expressions_and_unions_but_not_through_aggregates() -> None:
    p = ps.Pipeline("job")
    changes = orders(p).key_by("user").reduce(n=ps.count(), output="changelog", uid="a")
    assert is_changelog(changes._routes)
    assert is_changelog(changes.filter(pl.col("n") > 1).select("op", "user", "n")._routes)
    assert not is_changelog(changes.select("user", "n")._routes)
    assert not is_changelog(changes.key_by("op").reduce(n=ps.count(), uid="b")._routes)
    assert not is_changelog(orders(p, "plain").with_columns(op=pl.lit("x"))._routes)


def test_the_marks_of_a_changelog_are_no_column_of_the_result() -> None:
    p = ps.Pipeline("job")
    changes = orders(p).key_by("user").reduce(n=ps.count(), output="changelog", uid="a")
    joined = changes.key_by("user").join(users(p).key_by("id"), uid="joined")
    assert joined.columns == ["op", "user", "n", "amount", "at"]
    assert is_changelog(joined._routes)
    assert not is_changelog(orders(p, "b").key_by("user").join(users(p, "c").key_by("id"))._routes)


# ---- what is refused ----
def test_what_cannot_be_joined_is_refused_where_it_is_written() -> None:
    p = ps.Pipeline("job")
    left, right = both(p)
    changes = left.reduce(n=ps.count(), output="changelog").key_by("user")
    text = users(p, "text").select(pl.col("id").cast(pl.String), "amount").key_by("id")
    elsewhere = users(ps.Pipeline("other")).key_by("id")
    plain, facts = users(p, "plain"), orders(p, "facts")
    for write, message in [
        (lambda: left.join(right, how="outer"), "how='outer' must be one of 'inner', 'left', 'right', 'full', 'semi'"),
        (lambda: left.join(plain), "takes a keyed stream, not Stream: write other.key_by"),
        (lambda: left.join(elsewhere), "cannot join streams of two pipelines, 'job' and 'other'"),
        (lambda: left.join(text), "keyed by (user int64), the right side by (id string)"),
        (lambda: left.join(plain.key_by("id", "at")), "keyed by (user int64), the right side by (id int64, at int64)"),
        (lambda: left.join(right, suffix=""), "'amount' would be called 'amount', which another column is called"),
        (lambda: left.join(right, ttl="soon"), "ttl='soon' is no duration"),
        (lambda: left.join(right, ttl=("1h", 0)), "ttl=0 must be more than 0"),
        (lambda: left.interval_join(right, lower="5s", upper="-5s"), "lower=5000ms is above upper=-5000ms"),
        (lambda: left.interval_join(right, lower="-x", upper=0), "lower='-x' is no duration"),
        (lambda: left.interval_join(plain.key_by("id"), lower=0, upper=0), "needs event time: say where"),
        (lambda: left.temporal_join(right, how="full"), "how='full' must be one of 'inner', 'left'"),
        (lambda: left.temporal_join(changes), "the right side is a changelog, and only a running join takes rows back"),
        (lambda: left.window(ps.count_window(3)).join(right), "knows no time: use ps.tumbling"),
        (lambda: left.window(ps.tumbling(1), allowed_lateness=1).join(right), "are put out once"),
        (lambda: facts.window(ps.tumbling(1), on="ts").join(right), "needs a key: write stream.key_by"),
        (lambda: facts.lookup_join(plain, on="user"), "there is no column 'user'"),
        (lambda: facts.lookup_join(plain), 'name the key: either on="id", or both'),
        (lambda: facts.lookup_join(plain, left_on="user"), 'name the key: either on="id", or both'),
        (lambda: facts.lookup_join(right, on="user"), "takes a stream without a key, not KeyedStream"),
        (lambda: facts.lookup_join(plain, left_on="user", right_on="id", how="right"), "one of 'inner', 'left'"),
        (
            lambda: left.reduce(n=ps.count(), output="changelog").lookup_join(plain, left_on="user", right_on="id"),
            "the stream is a changelog: what is taken back would not be found",
        ),
        (lambda: facts.with_columns(op=pl.lit("x")).key_by("user").join(right, how="left"), "a column 'op' of its own"),
    ]:
        assert message in refused(write)


def test_a_stream_without_a_key_says_what_a_join_needs() -> None:
    with pytest.raises(AttributeError, match=r"join keeps state per key, .* write stream.key_by\(...\).join\(...\)"):
        orders(ps.Pipeline("job")).join  # type: ignore[attr-defined]  # noqa: B018
