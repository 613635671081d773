"""A job graph as the protocol sees it: its shape in a checkpoint, and who sends to whom."""

from __future__ import annotations

from penstock.core.ids import SubtaskId
from penstock.core.plan import Topology
from penstock.core.record import ChainRecord, EdgeRecord, GraphRecord, OperatorRecord, StateRecord
from penstock.graph.job import JobGraph, OperatorSpec


def graph_record(graph: JobGraph) -> GraphRecord:
    """What a checkpoint remembers of the graph that took it."""
    return GraphRecord(
        job=graph.name,
        key_groups=graph.key_groups,
        chains=tuple(
            ChainRecord(
                chain.id,
                chain.parallelism,
                tuple(map(_operator_record, chain.operators)),
            )
            for chain in graph.chains
        ),
        edges=tuple(
            EdgeRecord(
                edge.source,
                edge.target,
                str(edge.partitioning),
                edge.target_input,
                key=tuple(edge.key),
                columns=tuple(f"{column.name}: {column.type}" for column in edge.schema),
            )
            for edge in graph.edges
        ),
    )


def _operator_record(spec: OperatorSpec) -> OperatorRecord:
    states = tuple(StateRecord(state.name, state.kind, state.description) for state in spec.states)
    return OperatorRecord(spec.uid, spec.name, spec.stateful, states, spec.key)


def topology(graph: JobGraph) -> Topology:
    """The subtasks, and for each the senders of its input channels."""
    senders: dict[SubtaskId, set[SubtaskId]] = {subtask: set() for subtask in graph.subtasks()}
    for edge in graph.edges:
        for channel in graph.channels(edge):
            senders[graph.receiver(channel)].add(graph.sender(channel))
    return Topology(tuple(senders), {subtask: frozenset(group) for subtask, group in senders.items()})
