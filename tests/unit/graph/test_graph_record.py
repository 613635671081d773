"""A job graph as the protocol sees it."""

import pyarrow as pa

from penstock.core.ids import ChainId, EdgeId, SubtaskId, Uid
from penstock.graph.job import Chain, Edge, JobGraph, OperatorSpec, Partitioning
from penstock.graph.record import graph_record, topology
from penstock.operators.base import Operator

SCHEMA = pa.schema([("n", pa.int64())])


def chain(name: str, parallelism: int, stateful: bool = False) -> Chain:
    return Chain(ChainId(name), (OperatorSpec(Uid(name), f"op({name})", Operator, SCHEMA, stateful),), parallelism)


def edge(number: int, source: str, target: str, partitioning: Partitioning, target_input: int = 0) -> Edge:
    return Edge(EdgeId(number), ChainId(source), ChainId(target), partitioning, SCHEMA, (), target_input)


GRAPH = JobGraph(
    "join",
    (chain("left", 2), chain("right", 1), chain("join", 2, stateful=True)),
    (edge(0, "left", "join", Partitioning.FORWARD), edge(1, "right", "join", Partitioning.BROADCAST, 1)),
    key_groups=64,
)


def subtask(name: str, index: int) -> SubtaskId:
    return SubtaskId(ChainId(name), index)


def test_the_record_keeps_what_a_restore_compares():
    record = graph_record(GRAPH)
    assert (record.job, record.key_groups) == ("join", 64)
    assert [(c.id, c.parallelism, c.operators[0].stateful) for c in record.chains] == [
        ("left", 2, False),
        ("right", 1, False),
        ("join", 2, True),
    ]
    assert [(e.source, e.target, e.partitioning, e.target_input) for e in record.edges] == [
        ("left", "join", "forward", 0),
        ("right", "join", "broadcast", 1),
    ]


def test_predecessors_follow_the_channels_not_the_chains():
    senders = topology(GRAPH).predecessors
    assert senders[subtask("left", 1)] == frozenset()
    assert senders[subtask("join", 0)] == {subtask("left", 0), subtask("right", 0)}
    assert senders[subtask("join", 1)] == {subtask("left", 1), subtask("right", 0)}


def test_every_subtask_is_in_the_topology_once():
    assert topology(GRAPH).subtasks == tuple(GRAPH.subtasks())
