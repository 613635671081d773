"""The job graph as text for people."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.graph.job import Chain, Edge, JobGraph, Partitioning


def explain(graph: JobGraph) -> str:
    """One block per chain, in topological order, with what goes in and what comes out of every operator."""
    return "\n".join(_lines(graph))


def _lines(graph: JobGraph) -> Iterator[str]:
    keyed = (
        f", {graph.key_groups} key groups"
        if any(edge.partitioning is Partitioning.HASH for edge in graph.edges)
        else ""
    )
    yield f"{graph.name}: {_counted(len(graph.chains), 'chain')}, {_counted(graph.slots, 'slot')}{keyed}"
    for chain in graph.chains:
        yield ""
        yield f"{chain.id} x{chain.parallelism}"
        inputs = graph.inputs(chain.id)
        joined = any(edge.target_input for edge in inputs)
        for edge in inputs:
            side = f", {('left', 'right')[edge.target_input]}" if joined else ""
            yield f"  <- {edge.source} x{graph.chain(edge.source).parallelism} by {_way(edge)}{side}"
        yield from _operators(chain)


def _operators(chain: Chain) -> Iterator[str]:
    named = [(f"{operator.name} [{operator.uid}]", operator) for operator in chain.operators]
    width = max(len(text) for text, _ in named)
    for text, operator in named:
        kept = " (state)" if operator.stateful else ""
        gives = f" : {_columns(operator.schema)}" if operator.schema is not None else ""
        yield f"  {text:<{width}}{gives}{kept}".rstrip()


def _way(edge: Edge) -> str:
    way = f"hash of {', '.join(edge.key)}" if edge.partitioning is Partitioning.HASH else edge.partitioning.value
    return f"{way}, combined" if edge.combiner is not None else way


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
