"""From the plan to the job graph: operators that are connected one to one become chains, the rest become edges.

An operator joins the chain of its input if that input is its only one, comes by FORWARD, has the same parallelism,
and nobody else consumes it (side outputs are consumed apart). Everything else - an exchange, a union, a fan-out,
another parallelism - needs channels and begins a new chain. The same parallelism means that both have the pipeline's,
or that both name the same number: then the chains are the same whatever the pipeline's is, and records in flight find
their channels again when it has changed. A forward way between different parallelisms is a
REBALANCE. Within a chain, neighbouring expression operators (filter, select, with_columns) become one operator under
the first one's uid, so that a batch goes to Polars and back only once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from penstock.core.ids import ChainId, EdgeId, Uid
from penstock.graph.job import MAIN, Chain, Edge, JobGraph, OperatorSpec, Partitioning
from penstock.graph.plan import Node, Plan, Route
from penstock.graph.uids import assign_uids
from penstock.graph.validate import check_plan
from penstock.operators.expressions import ExpressionOperator


def build(plan: Plan) -> JobGraph:
    """Checks the plan as a whole and cuts it into chains and edges."""
    check_plan(plan)
    uids = assign_uids(plan)
    runs = _chain_up(plan)
    _check_pauses(runs)
    chains = tuple(_chain(run, plan, uids) for run in runs)
    chain_of = {node: chain.id for run, chain in zip(runs, chains, strict=True) for node in run}
    edges: list[Edge] = []
    for run in runs:
        for route in run[0].inputs:
            edges.append(_edge(EdgeId(len(edges)), route, run[0], plan, chain_of))
    return JobGraph(plan.name, chains, tuple(edges), plan.key_groups, scaled=partial(_build_at, plan))


def _check_pauses(runs: Sequence[Sequence[Node]]) -> None:
    for run in runs:
        for node in run:
            if node.pauses_source and run[0].inputs:
                raise node.error(
                    "max_drift pauses the source, so the two must be in one chain: put with_watermark behind the "
                    "source, before any exchange, union or second use of the stream, with the same parallelism"
                )


def _build_at(plan: Plan, parallelism: int) -> JobGraph:
    return build(replace(plan, parallelism=parallelism))


def partitioning_of(plan: Plan, route: Route, consumer: Node) -> Partitioning:
    """As written, but a forward way between different parallelisms spreads whole batches instead."""
    if route.partitioning is Partitioning.FORWARD and plan.parallelism_of(route.node) != plan.parallelism_of(consumer):
        return Partitioning.REBALANCE
    return route.partitioning


def _chain_up(plan: Plan) -> list[list[Node]]:
    """The chains as runs of nodes. A run's place is that of its first node, which makes the order topological: whatever
    feeds a run's first node was written before it, and so was the first node of the run it belongs to."""
    consumers = Counter((route.node, route.output) for node in plan.nodes for route in node.inputs)
    run_of: dict[Node, list[Node]] = {}
    runs: list[list[Node]] = []
    for node in plan.nodes:
        if _continues_its_input(node, consumers):
            run = run_of[node.inputs[0].node]
        else:
            run = []
            runs.append(run)
        run.append(node)
        run_of[node] = run
    return runs


def _continues_its_input(node: Node, consumers: Mapping[tuple[Node, str], int]) -> bool:
    if len(node.inputs) != 1:
        return False
    (route,) = node.inputs
    if route.output != MAIN or consumers[route.node, MAIN] != 1:
        return False
    return route.partitioning is Partitioning.FORWARD and node.parallelism == route.node.parallelism


def _chain(run: Sequence[Node], plan: Plan, uids: Mapping[Node, Uid]) -> Chain:
    operators: list[OperatorSpec] = []
    for is_expression, group in groupby(run, key=lambda node: bool(node.steps)):
        if is_expression:
            operators.append(_fused(list(group), uids))
        else:
            operators.extend(_spec(node, uids[node]) for node in group)
    return Chain(ChainId(uids[run[0]]), tuple(operators), plan.parallelism_of(run[0]))


def _spec(node: Node, uid: Uid) -> OperatorSpec:
    return OperatorSpec(uid, node.name, node.factory, node.schema, node.stateful, node.sink, node.states, node.key)


def _fused(nodes: Sequence[Node], uids: Mapping[Node, Uid]) -> OperatorSpec:
    steps = tuple(step for node in nodes for step in node.steps)
    schema = nodes[-1].schema
    name = " + ".join(node.name for node in nodes)
    return OperatorSpec(uids[nodes[0]], name, partial(ExpressionOperator, steps, schema), schema)


def _edge(edge: EdgeId, route: Route, target: Node, plan: Plan, chain_of: Mapping[Node, ChainId]) -> Edge:
    partitioning = partitioning_of(plan, route, target)
    source = chain_of[route.node]
    return Edge(
        edge,
        source,
        chain_of[target],
        partitioning,
        route.schema,
        route.key,
        route.input,
        route.output,
        route.timeless,
        route.combined.make if route.combined is not None else None,
    )
