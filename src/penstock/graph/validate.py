"""Checks of the plan as a whole; what concerns one operator alone is checked where it is written."""

from __future__ import annotations

from penstock.core.keygroups import check_total
from penstock.graph.errors import PipelineError
from penstock.graph.job import Partitioning
from penstock.graph.plan import Plan


def check_plan(plan: Plan) -> None:
    """Raises a `PipelineError` for the first thing that keeps the plan from being a job."""
    _check_ends(plan)
    _check_consumers(plan)
    _check_parallelism(plan)


def check_parallelism(parallelism: int | None) -> None:
    if parallelism is None:
        return
    if not isinstance(parallelism, int) or isinstance(parallelism, bool) or parallelism < 1:
        raise PipelineError(f"parallelism={parallelism!r} must be a whole number of at least 1")


def check_key_groups(key_groups: int) -> None:
    try:
        check_total(key_groups)
    except ValueError as error:
        raise PipelineError(str(error)) from None
    except TypeError:
        raise PipelineError(f"key_groups must be a power of two, not {key_groups!r}") from None


def _check_ends(plan: Plan) -> None:
    if not any(not node.inputs for node in plan.nodes):
        raise PipelineError(f"pipeline {plan.name!r} has no source: begin with stream = pipeline.source(...)")
    if not any(node.schema is None for node in plan.nodes):
        raise PipelineError(
            f"pipeline {plan.name!r} has no sink, so nothing of what it computes would be kept: "
            "end a stream with .sink(...), for example .sink(ps.sinks.Discard())"
        )


def _check_consumers(plan: Plan) -> None:
    consumed = {route.node for node in plan.nodes for route in node.inputs}
    loose = [node for node in plan.nodes if node.schema is not None and node not in consumed]
    if loose:
        ends = "; ".join(map(str, loose))
        raise PipelineError(
            f"pipeline {plan.name!r}: nobody consumes the output of {ends}. Streams are immutable: each call returns a "
            "new one, "
            "which must be used. End it with .sink(...), or remove it"
        )


def _check_parallelism(plan: Plan) -> None:
    for node in plan.nodes:
        keyed = any(route.partitioning is Partitioning.HASH for route in node.inputs)
        if keyed and plan.parallelism_of(node) > plan.key_groups:
            raise node.error(
                f"its parallelism {plan.parallelism_of(node)} exceeds the {plan.key_groups} key groups, so some "
                "subtasks would never get a key: lower the parallelism, or give the pipeline more key_groups (those of "
                "existing state are raised by `penstock rehash`)"
            )
