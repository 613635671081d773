"""The oracle on jobs that are small enough to see what must come out."""

from collections import Counter
from random import Random

from penstock.graph.job import Partitioning
from penstock.simulation.oracle import expected_output
from penstock.simulation.records import BUCKET_MS, STEP_MS, kept, next_path, row_of
from penstock.simulation.topology import MAX_SUBTASKS, Kind, Link, Node, Topology, random_topology


def source(number: int, *rows: int) -> Node:
    return Node(number, Kind.SOURCE, len(rows), rows=rows, batch=3)


def node(number: int, kind: Kind, parallelism: int, *inputs: tuple[int, Partitioning]) -> Node:
    return Node(number, kind, parallelism, tuple(Link(origin, way) for origin, way in inputs))


FORWARD, HASH, BROADCAST = Partitioning.FORWARD, Partitioning.HASH, Partitioning.BROADCAST


def test_a_plain_copy_puts_out_every_record_once() -> None:
    rows = expected_output(Topology((source(0, 2, 1), node(1, Kind.COLLECT, 2, (0, FORWARD))), keys=3))[1].rows
    inputs = [row_of(0, 0, 0, 3), row_of(0, 0, 1, 3), row_of(0, 1, 0, 3)]
    assert rows == Counter(row._replace(path=next_path(0, 1)) for row in inputs)


def test_a_broadcast_puts_out_every_record_once_for_each_receiver() -> None:
    rows = expected_output(Topology((source(0, 4), node(1, Kind.COLLECT, 3, (0, BROADCAST))), keys=3))[1].rows
    assert set(rows.values()) == {3}
    assert len(rows) == 4


def test_the_two_ways_of_a_diamond_are_told_apart() -> None:
    nodes = (
        source(0, 4),
        node(1, Kind.MAP, 1, (0, FORWARD)),
        node(2, Kind.MAP, 1, (0, FORWARD)),
        node(3, Kind.COLLECT, 1, (1, FORWARD), (2, FORWARD)),
    )
    rows = expected_output(Topology(nodes, keys=3))[3].rows
    assert len(rows) == 8
    assert len({row.path for row in rows}) == 2


def test_a_filter_drops_what_it_must() -> None:
    nodes = (source(0, 20), node(1, Kind.FILTER, 1, (0, FORWARD)), node(2, Kind.COLLECT, 1, (1, FORWARD)))
    rows = expected_output(Topology(nodes, keys=3))[2].rows
    assert {row.id for row in rows} == {index for index in range(20) if kept(index, 1)}
    assert 0 < len(rows) < 20


def test_timers_add_one_row_per_key_and_bucket() -> None:
    nodes = (source(0, 20), node(1, Kind.PROCESS, 2, (0, HASH)), node(2, Kind.COLLECT, 1, (1, HASH)))
    expected = expected_output(Topology(nodes, keys=1))[2]
    timers = [row for row in expected.rows if row.id < 0]
    assert len(timers) == 19 * STEP_MS // BUCKET_MS + 1
    assert expected.complete_after == {1}


def test_behind_a_filter_the_counts_of_a_stateful_node_may_have_gaps() -> None:
    nodes = (
        source(0, 5),
        node(1, Kind.PROCESS, 1, (0, HASH)),
        node(2, Kind.FILTER, 1, (1, FORWARD)),
        node(3, Kind.COLLECT, 1, (2, FORWARD)),
    )
    assert expected_output(Topology(nodes, keys=2))[3].complete_after == frozenset()


def test_an_aggregate_ends_in_the_count_and_sum_of_each_key() -> None:
    nodes = (source(0, 6), node(1, Kind.REDUCE, 2, (0, HASH)), node(2, Kind.COLLECT, 1, (1, HASH)))
    expected = expected_output(Topology(nodes, keys=1))[2]
    assert expected.aggregates == {0: (6, sum(row_of(0, 0, index, 1).value for index in range(6)))}


def test_random_topologies_are_whole_and_show_every_shape() -> None:
    topologies = [random_topology(Random(seed)) for seed in range(300)]
    for topology in topologies:
        read = {link.source for reader in topology.nodes for link in reader.links}
        assert all(node.number in read for node in topology.nodes if not node.kind.is_sink)
        assert all(link.source < node.number for node in topology.nodes for link in node.links)
        assert sum(node.parallelism for node in topology.nodes) <= MAX_SUBTASKS + 6
    assert {node.kind for topology in topologies for node in topology.nodes} == set(Kind)
    assert {link.partitioning for t in topologies for n in t.nodes for link in n.links} == set(Partitioning)
    assert any(len(node.links) == 3 for topology in topologies for node in topology.nodes)
