"""A job graph that was shipped the way Spark ships code works where it arrives."""

from __future__ import annotations

import pickle
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark import cloudpickle

import penstock as ps
from penstock.graph.job import JobGraph
from penstock.operators.base import Emitted

BATCH = pa.record_batch({"id": pa.array([1, 2, 3], pa.int64())})


def shipped(graph: JobGraph) -> JobGraph:
    arrived: JobGraph = pickle.loads(cloudpickle.dumps(graph))
    return arrived


def test_operators_with_expressions_and_functions_arrive_whole():
    offset = 10
    p = ps.Pipeline("job")
    stream = p.source(ps.sources.Generator(10, {"id": lambda i: i}), uid="in")
    stream = stream.filter(pl.col("id") > 1).map(lambda row: {"id": row["id"] + offset}, returns={"id": int})
    stream.map_batches(lambda frame: frame.with_columns(pl.col("id") * 2)).sink(ps.sinks.Discard(), uid="out")
    graph = shipped(p.graph())
    batches = [BATCH]
    for spec in graph.chains[0].operators[1:4]:
        operator: Any = spec.factory()
        operator.open(None)
        out = Emitted()
        for batch in batches:
            operator.process(batch, 0, out)
        batches = out.batches
    assert pa.Table.from_batches(batches).to_pydict() == {"id": [24, 26]}


def test_the_shape_of_the_graph_arrives_whole():
    p = ps.Pipeline("job", key_groups=64)
    stream = p.source(ps.sources.Generator(10, {"id": lambda i: i}), uid="in")
    stream.key_by("id").reduce(n=ps.count(), uid="n").sink(ps.sinks.Discard(), uid="out", parallelism=1)
    sent = p.graph()
    arrived = shipped(sent)
    assert arrived.edges == sent.edges
    assert arrived.key_groups == 64
    assert [(c.id, c.parallelism) for c in arrived.chains] == [(c.id, c.parallelism) for c in sent.chains]
