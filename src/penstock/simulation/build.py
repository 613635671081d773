"""From a topology to the production job graph.

Built anew for every driver, as every driver process would: sinks that keep results in memory start empty there.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.connectors.base import Sink
from penstock.connectors.collect import Collect
from penstock.connectors.files_sink import Files
from penstock.connectors.generator import Generator, Index
from penstock.core.ids import ChainId, EdgeId, Uid
from penstock.graph.job import Chain, Edge, JobGraph, OperatorSpec, Partitioning
from penstock.operators.aggregation import declare as aggregates
from penstock.operators.process import ProcessOperator
from penstock.operators.reduce import ReduceOperator
from penstock.operators.sink import SinkOperator
from penstock.operators.stream_function import StreamProcessOperator
from penstock.operators.watermark import WatermarkOperator
from penstock.simulation.files import MemoryFiles
from penstock.simulation.functions import KEEPERS, TALLIES, Recall, Tally
from penstock.simulation.ledger import Ledger, WatchedSink
from penstock.simulation.nodes import ScriptedSource, Stamp
from penstock.simulation.records import AGGREGATE_SCHEMA, SCHEMA, Row, batch_of, split_rows
from penstock.simulation.scenario import Scenario
from penstock.simulation.topology import Kind, Node, Topology, resized
from penstock.simulation.witness import Witness

if TYPE_CHECKING:
    from penstock.graph.job import OperatorFactory

JOB = "simulated"
KEY_GROUPS = 8
SINK_ROOT = "/sinks"
SINK_FORMAT = "parquet"


def build_job(
    scenario: Scenario,
    topology: Topology,
    witness: Witness,
    ledger: Ledger,
    sink_files: MemoryFiles,
    driver: int,
    key_groups: int = KEY_GROUPS,
    version: int = 0,
) -> JobGraph:
    """`topology` is the scenario's, perhaps at another parallelism; `version` is that of the program's state."""
    builder = _Builder(scenario, witness, ledger, sink_files, driver, version)
    chains = tuple(builder.chain(node) for node in topology.nodes)
    edges: list[Edge] = []
    for node in topology.nodes:
        for link in node.links:
            source = topology.nodes[link.source]
            key = ("key",) if link.partitioning is Partitioning.HASH else ()
            ends = chains[link.source].id, chains[node.number].id
            edges.append(Edge(EdgeId(len(edges)), *ends, link.partitioning, _schema(source), key))

    def scaled(parallelism: int) -> JobGraph:
        other = resized(topology, lambda node: parallelism)
        return build_job(scenario, other, witness, ledger, sink_files, driver, key_groups, version)

    return JobGraph(JOB, chains, tuple(edges), key_groups, scaled=scaled)


def _schema(node: Node) -> pa.Schema:
    return AGGREGATE_SCHEMA if node.kind is Kind.REDUCE else SCHEMA


class _Builder:
    def __init__(
        self, scenario: Scenario, witness: Witness, ledger: Ledger, sink_files: MemoryFiles, driver: int, version: int
    ) -> None:
        self._scenario, self._witness, self._ledger = scenario, witness, ledger
        self._sink_files, self._driver, self._version = sink_files, driver, version
        self._random = Random(f"sources {scenario.seed} {driver}")

    @property
    def _topology(self) -> Topology:
        return self._scenario.topology

    def chain(self, node: Node) -> Chain:
        operators = self._sources(node) if node.kind.is_source else self._consumers(node)
        return Chain(ChainId(operators[0].uid), tuple(operators), node.parallelism)

    def _sources(self, node: Node) -> list[OperatorSpec]:
        splits = [split_rows(self._topology, node, split) for split in range(len(node.rows))]
        if node.kind is Kind.GENERATOR:
            generator = _generator(node, splits)
            return [
                _spec(node.uid, generator.operator, SCHEMA, stateful=True),
                _spec(f"{node.uid}-time", lambda: WatermarkOperator("time", 0), SCHEMA, stateful=True),
            ]
        batches = [batch_of(rows) for rows in splits]
        random, idle, witness = self._random, self._scenario.idle, self._witness
        return [_spec(node.uid, lambda: ScriptedSource(node, batches, random, idle, witness), SCHEMA, stateful=True)]

    def _consumers(self, node: Node) -> list[OperatorSpec]:
        witness, by_key, ordered = self._witness, self._scenario.rescaling, self._scenario.keeps_order(node)
        stamp = _spec(f"{node.uid}-stamp", lambda: Stamp(node, witness, ordered, by_key), SCHEMA, stateful=True)
        if node.kind in (Kind.MAP, Kind.FILTER):
            return [stamp]
        if node.kind.is_sink:
            behind_aggregate = self._topology.nodes[node.links[0].source].kind is Kind.REDUCE
            schema = AGGREGATE_SCHEMA if behind_aggregate else SCHEMA
            sink = self._sink(node, schema)
            return [sink] if behind_aggregate else [stamp, sink]
        return [stamp, self._stateful(node)]

    def _sink(self, node: Node, schema: pa.Schema) -> OperatorSpec:
        sink = WatchedSink(self._inner_sink(node), self._ledger, self._driver)
        sink.check(schema)
        return OperatorSpec(
            Uid(node.uid), node.kind, lambda: SinkOperator(sink.writer()), None, stateful=True, sink=sink
        )

    def _inner_sink(self, node: Node) -> Sink:
        if node.kind is Kind.COLLECT:
            return Collect()
        return Files(f"{SINK_ROOT}/{node.uid}", SINK_FORMAT, files=self._sink_files)

    def _stateful(self, node: Node) -> OperatorSpec:
        if node.kind is Kind.REDUCE:
            figures = {"n": aggregates.count(), "total": aggregates.sum("value")}
            return _keyed_spec(node.uid, lambda: ReduceOperator(("key",), figures, SCHEMA), AGGREGATE_SCHEMA)
        if node.kind is Kind.KEEP:
            rules = None if node.rules is None else self._topology.nodes[node.rules]
            keeper = KEEPERS[self._version](node, rules, self._witness)
            return _spec(node.uid, lambda: StreamProcessOperator(keeper, SCHEMA, SCHEMA), SCHEMA, stateful=True)
        function: type[Recall | Tally] = Recall if node.kind is Kind.RECALL else TALLIES[self._version]
        keyed = function(node.number, self._witness)
        return _keyed_spec(node.uid, lambda: ProcessOperator(keyed, ("key",), SCHEMA, SCHEMA), SCHEMA)


def _spec(uid: str, factory: OperatorFactory, schema: pa.Schema, stateful: bool) -> OperatorSpec:
    return OperatorSpec(Uid(uid), uid, factory, schema, stateful)


def _keyed_spec(uid: str, factory: OperatorFactory, schema: pa.Schema) -> OperatorSpec:
    key = (f"key: {SCHEMA.field('key').type}",)
    return OperatorSpec(Uid(uid), uid, factory, schema, stateful=True, key=key)


def _generator(node: Node, splits: list[list[Row]]) -> Generator:
    """Index i is record i // splits of split i % splits."""
    count = sum(node.rows)
    rows = [splits[index % len(splits)][index // len(splits)] for index in range(count)]
    table = batch_of(rows or [Row(0, 0, 0, 0, 0)])

    def generate(index: Index) -> pa.RecordBatch:
        return table.take(pa.array(np.asarray(index)))

    return Generator(count, generate, splits=len(splits))
