"""How operators become chains, and what becomes an edge between them."""

from __future__ import annotations

import polars as pl
import pytest

import penstock as ps
from penstock.graph.job import JobGraph, Partitioning


def numbers(pipeline: ps.Pipeline, uid: str, parallelism: int | None = None) -> ps.Stream:
    generator = ps.sources.Generator(10, {"id": lambda i: i, "user": lambda i: i % 3})
    return pipeline.source(generator, uid=uid, parallelism=parallelism)


def chains(graph: JobGraph) -> dict[str, list[str]]:
    return {chain.id: [operator.uid for operator in chain.operators] for chain in graph.chains}


def edges(graph: JobGraph) -> list[tuple[str, str, str]]:
    return [(edge.source, edge.target, edge.partitioning.value) for edge in graph.edges]


def identity(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


def test_operators_connected_one_to_one_become_one_chain():
    p = ps.Pipeline("job")
    numbers(p, "in").map_batches(identity, uid="a").with_watermark("id", uid="b").sink(ps.sinks.Discard(), uid="out")
    graph = p.graph()
    assert chains(graph) == {"in": ["in", "a", "b", "out"]}
    assert graph.edges == ()
    assert graph.chains[0].parallelism == 2


def test_a_fan_out_breaks_the_chain_after_the_shared_operator():
    p = ps.Pipeline("job")
    shared = numbers(p, "in").map_batches(identity, uid="shared")
    shared.sink(ps.sinks.Discard(), uid="left")
    shared.sink(ps.sinks.Discard(), uid="right")
    graph = p.graph()
    assert chains(graph) == {"in": ["in", "shared"], "left": ["left"], "right": ["right"]}
    assert edges(graph) == [("in", "left", "forward"), ("in", "right", "forward")]


def test_a_union_is_several_edges_on_one_input():
    p = ps.Pipeline("job")
    united = numbers(p, "a").union(numbers(p, "b"), numbers(p, "c", parallelism=1))
    united.map_batches(identity, uid="m").sink(ps.sinks.Discard(), uid="out")
    graph = p.graph()
    assert chains(graph) == {"a": ["a"], "b": ["b"], "c": ["c"], "m": ["m", "out"]}
    assert edges(graph) == [("a", "m", "forward"), ("b", "m", "forward"), ("c", "m", "rebalance")]
    assert {edge.target_input for edge in graph.edges} == {0}


def test_a_stream_united_with_itself_comes_twice():
    p = ps.Pipeline("job")
    stream = numbers(p, "in")
    stream.union(stream).sink(ps.sinks.Discard(), uid="out")
    assert edges(p.graph()) == [("in", "out", "forward")] * 2


def test_a_change_of_parallelism_is_a_rebalance():
    p = ps.Pipeline("job", parallelism=3)
    numbers(p, "in", parallelism=1).map_batches(identity, uid="m").sink(ps.sinks.Discard(), uid="out", parallelism=2)
    graph = p.graph()
    assert edges(graph) == [("in", "m", "rebalance"), ("m", "out", "rebalance")]
    assert [chain.parallelism for chain in graph.chains] == [1, 3, 2]
    assert graph.slots == 3


def test_chains_and_edges_are_the_same_at_any_parallelism():
    """Or records that were in flight between two chains would have no place in one of both."""
    p = ps.Pipeline("job", parallelism=2)
    numbers(p, "in").map_batches(identity, uid="one", parallelism=1).sink(ps.sinks.Discard(), uid="out", parallelism=1)
    graph = p.graph()
    assert [[operator.uid for operator in chain.operators] for chain in graph.chains] == [["in"], ["one", "out"]]
    assert graph.scaled is not None
    alone = graph.scaled(1)
    assert [chain.id for chain in alone.chains] == [chain.id for chain in graph.chains]
    assert [(edge.source, edge.target) for edge in alone.edges] == [("in", "one")]


@pytest.mark.parametrize("how", ["rebalance", "broadcast"])
def test_an_exchange_breaks_the_chain_even_at_equal_parallelism(how: str):
    p = ps.Pipeline("job")
    getattr(numbers(p, "in"), how)().sink(ps.sinks.Discard(), uid="out")
    assert edges(p.graph()) == [("in", "out", how)]


def test_the_last_of_several_exchanges_counts():
    p = ps.Pipeline("job")
    numbers(p, "in").broadcast().rebalance().sink(ps.sinks.Discard(), uid="out")
    assert edges(p.graph()) == [("in", "out", Partitioning.REBALANCE)]


def test_neighbouring_expressions_of_a_chain_become_one_operator():
    p = ps.Pipeline("job")
    stream = numbers(p, "in").filter(pl.col("id") > 1, uid="f").select("id", uid="s").with_columns(n=pl.col("id") + 1)
    stream.map_batches(identity, uid="m").filter(pl.col("n") > 3, uid="g").sink(ps.sinks.Discard(), uid="out")
    graph = p.graph()
    assert chains(graph) == {"in": ["in", "f", "m", "g", "out"]}
    fused = graph.chains[0].operators[1]
    assert fused.name == "filter + select + with_columns"
    assert fused.schema is not None
    assert fused.schema.names == ["id", "n"]


def test_expressions_across_a_fan_out_stay_apart():
    p = ps.Pipeline("job")
    shared = numbers(p, "in").filter(pl.col("id") > 1, uid="f")
    shared.select("id", uid="s").sink(ps.sinks.Discard(), uid="left")
    shared.sink(ps.sinks.Discard(), uid="right")
    assert chains(p.graph()) == {"in": ["in", "f"], "s": ["s", "left"], "right": ["right"]}


def test_chains_stand_in_topological_order_and_edges_by_their_number():
    p = ps.Pipeline("job")
    a = numbers(p, "a")
    b = numbers(p, "b").map_batches(identity, uid="m", parallelism=1)
    late = a.union(b).rebalance().map_batches(identity, uid="late")
    late.union(a).sink(ps.sinks.Discard(), uid="out")
    graph = p.graph()
    order = {chain.id: place for place, chain in enumerate(graph.chains)}
    assert all(order[edge.source] < order[edge.target] for edge in graph.edges)
    assert [edge.id for edge in graph.edges] == list(range(len(graph.edges)))


def test_an_edge_carries_the_schema_and_the_sink_its_description():
    p = ps.Pipeline("job")
    sink = ps.sinks.Collect()
    numbers(p, "in").select(pl.col("id").cast(pl.String)).rebalance().sink(sink, uid="out")
    graph = p.graph()
    (edge,) = graph.edges
    assert [(field.name, str(field.type)) for field in edge.schema] == [("id", "string")]
    assert graph.chain(edge.target).operators[0].sink is sink


def test_streams_are_immutable_so_one_can_be_used_many_times():
    p = ps.Pipeline("job")
    stream = numbers(p, "in")
    stream.rebalance()
    stream.sink(ps.sinks.Discard(), uid="out")
    assert edges(p.graph()) == []


def test_the_explanation_shows_chains_operators_ways_and_columns():
    p = ps.Pipeline("job")
    numbers(p, "in").filter(pl.col("id") > 1).rebalance().sink(ps.sinks.Discard(), uid="out", parallelism=1)
    assert p.explain().splitlines() == [
        "job: 2 chains, 2 slots",
        "",
        "in x2",
        "  source(Generator) [in] : id int64, user int64 (state)",
        "  filter [in.filter]     : id int64, user int64",
        "",
        "out x1",
        "  <- in x2 by rebalance",
        "  sink(Discard) [out] (state)",
    ]
