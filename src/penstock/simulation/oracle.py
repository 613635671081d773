"""What a job must put out, from its topology alone: plain Python over whole inputs, without production code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.graph.job import Partitioning
from penstock.simulation.records import (
    AFTER_ALL,
    BUCKET_MS,
    Row,
    held_identity,
    kept,
    next_path,
    split_rows,
    timer_identity,
)
from penstock.simulation.topology import Kind, Node, Topology

Rows = Counter[Row]


@dataclass(frozen=True)
class Expected:
    """Of one sink: either rows, how often each, or (behind a running aggregate) the last figures of each key."""

    rows: Rows = field(default_factory=Counter)
    aggregates: Mapping[int, tuple[int, int]] | None = None
    """Key to (count, sum)."""
    complete_after: frozenset[int] = frozenset()
    """Stateful nodes whose output comes here whole and only once: their counts must be here without a gap."""


def expected_output(topology: Topology) -> dict[int, Expected]:
    """By the number of the sink's node."""
    streams: dict[int, Rows] = {}
    for node in topology.nodes:
        streams[node.number] = _output(topology, node, streams)
    return {sink.number: _at_sink(topology, sink, streams) for sink in topology.sinks}


def _output(topology: Topology, node: Node, streams: Mapping[int, Rows]) -> Rows:
    if node.kind.is_source:
        return Counter(row for split in range(len(node.rows)) for row in split_rows(topology, node, split))
    arrived = _stamped(node, _arriving(node, streams))
    if node.kind is Kind.FILTER:
        return Counter({row: count for row, count in arrived.items() if kept(row.id, node.number)})
    if node.kind is Kind.PROCESS:
        arrived.update(_timer_rows(node, arrived))
    if node.kind is Kind.KEEP:
        arrived.update(_kept_rows(node, arrived))
    return arrived


def _arriving(node: Node, streams: Mapping[int, Rows]) -> Rows:
    arriving: Rows = Counter()
    for link in node.links:
        if link.source == node.rules and link.partitioning is Partitioning.BROADCAST:
            continue
        copies = node.parallelism if link.partitioning is Partitioning.BROADCAST else 1
        for row, count in streams[link.source].items():
            arriving[row] += count * copies
    return arriving


def _stamped(node: Node, rows: Rows) -> Rows:
    stamped: Rows = Counter()
    for row, count in rows.items():
        stamped[row._replace(path=next_path(row.path, node.number))] += count
    return stamped


def _timer_rows(node: Node, rows: Rows) -> set[Row]:
    """One row for every key and bucket of event time, however many records fell into it."""
    buckets = {(row.key, row.time // BUCKET_MS) for row in rows if row.id >= 0}
    return {
        Row(timer_identity(node.number, key, bucket), key, 0, (bucket + 1) * BUCKET_MS, next_path(0, node.number))
        for key, bucket in buckets
    }


def _kept_rows(node: Node, rows: Rows) -> Rows:
    """A copy of every record, at the end."""
    copies = {
        row._replace(id=held_identity(node.number, row.id), time=AFTER_ALL): count
        for row, count in rows.items()
        if row.id >= 0
    }
    return Counter(copies)


def _at_sink(topology: Topology, sink: Node, streams: Mapping[int, Rows]) -> Expected:
    source = topology.nodes[sink.links[0].source]
    if source.kind is Kind.REDUCE:
        aggregates: dict[int, tuple[int, int]] = {}
        for row, count in streams[source.number].items():
            n, total = aggregates.get(row.key, (0, 0))
            aggregates[row.key] = (n + count, total + count * row.value)
        return Expected(aggregates=aggregates)
    return Expected(rows=streams[sink.number], complete_after=_whole_streams(topology, sink))


def _whole_streams(topology: Topology, sink: Node) -> frozenset[int]:
    """Stateful nodes from which exactly one way leads to the sink, without a filter, a copy or another stateful
    node on it."""
    ways: Counter[int] = Counter()
    unclean: set[int] = set()

    def walk(node: Node, clean: bool) -> None:
        for link in node.links:
            source = topology.nodes[link.source]
            still = clean and link.partitioning is not Partitioning.BROADCAST
            if source.kind is Kind.PROCESS:
                ways[source.number] += 1
                if not still:
                    unclean.add(source.number)
            else:
                walk(source, still and source.kind is not Kind.FILTER)

    walk(sink, True)
    return frozenset(number for number, count in ways.items() if count == 1 and number not in unclean)
