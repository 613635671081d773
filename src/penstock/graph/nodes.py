"""What each call of the API adds to the plan: the checks, the schema and the operator factory of every kind of node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from penstock.graph.errors import Site
from penstock.graph.job import Partitioning
from penstock.graph.places import calling_place
from penstock.graph.plan import Node, Plan, Route
from penstock.graph.schemas import (
    Returns,
    check_key,
    check_same_schema,
    check_time_column,
    checked_schema,
    declared_schema,
)
from penstock.graph.uids import check_uid
from penstock.graph.validate import check_parallelism
from penstock.operators.batches import MapBatchesOperator
from penstock.operators.expressions import ExpressionOperator, StepKind
from penstock.operators.rows import FlatMapOperator, MapOperator
from penstock.operators.sink import SinkOperator
from penstock.operators.watermark import WatermarkOperator
from penstock.operators.windows.times import EventTime

if TYPE_CHECKING:
    import polars as pl

    from penstock.connectors.base import Sink, Source

Routes = tuple[Route, ...]
ExpressionKind = Literal["filter", "select", "with_columns"]


def site_of(name: str, uid: str | None = None) -> Site:
    """The operator that is being written, as messages call it. Every message of a bad `uid` or `parallelism` needs it
    first."""
    return Site(name, uid, calling_place())


def schema_of(routes: Routes) -> pa.Schema:
    """Of the stream that the routes make up: the same for all of them."""
    return routes[0].schema


def add_source(plan: Plan, source: Source, uid: str | None, parallelism: int | None) -> Routes:
    site = checked_site(f"source({type(source).__name__})", uid, parallelism)
    if isinstance(source, type) or not callable(getattr(source, "operator", None)) or not hasattr(source, "schema"):
        raise site.error(
            f"{source!r} is no source: pass an object such as ps.sources.Generator(...) or ps.sources.Files(...)"
        )
    schema = checked_schema(source.schema, site)
    node = Node(site, source.operator, schema, parallelism=parallelism, stateful=True)
    return (Route(plan.add(node)),)


def add_sink(plan: Plan, routes: Routes, sink: Sink, uid: str | None, parallelism: int | None) -> None:
    site = checked_site(f"sink({type(sink).__name__})", uid, parallelism)
    if (
        isinstance(sink, type)
        or not callable(getattr(sink, "writer", None))
        or not callable(getattr(sink, "check", None))
    ):
        raise site.error(f"{sink!r} is no sink: pass an object such as ps.sinks.Files(...) or ps.sinks.Collect()")
    try:
        sink.check(schema_of(routes))
    except ValueError as error:
        raise site.error(str(error)) from error
    plan.add(Node(site, partial(_sink_operator, sink), None, routes, parallelism, stateful=True, sink=sink))


def add_expressions(
    plan: Plan,
    routes: Routes,
    kind: ExpressionKind,
    positional: Sequence[Any],
    named: Mapping[str, Any],
    uid: str | None,
    parallelism: int | None,
) -> Routes:
    site = checked_site(kind, uid, parallelism)
    return _add_step(plan, routes, StepKind(kind), positional, named, site, parallelism)


def add_sql(
    plan: Plan,
    routes: Routes,
    kind: ExpressionKind,
    texts: Sequence[Any],
    named: Mapping[str, Any],
    uid: str | None,
    parallelism: int | None,
) -> Routes:
    """The same from SQL text."""
    from penstock.graph.sql import sql_expressions

    site = checked_site(f"{kind}_sql", uid, parallelism)
    if not texts and not named:
        example = "amount > 100" if kind == "filter" else "amount * 2 as double"
        raise site.error(f'needs at least one SQL expression, for example {kind}_sql("{example}")')
    expressions = sql_expressions(StepKind(kind), texts, named, schema_of(routes), site)
    return _add_step(plan, routes, StepKind(kind), expressions, {}, site, parallelism)


def _add_step(
    plan: Plan,
    routes: Routes,
    kind: StepKind,
    positional: Sequence[Any],
    named: Mapping[str, Any],
    site: Site,
    parallelism: int | None,
) -> Routes:
    from penstock.graph.expressions import step_of  # a pipeline without expressions never loads Polars

    step, schema = step_of(kind, positional, named, schema_of(routes), site)
    factory = partial(ExpressionOperator, (step,), schema)
    return (Route(plan.add(Node(site, factory, schema, routes, parallelism, steps=(step,)))),)


def add_map_batches(
    plan: Plan,
    routes: Routes,
    function: Callable[[pl.DataFrame], pl.DataFrame],
    returns: Returns | None,
    uid: str | None,
    parallelism: int | None,
) -> Routes:
    site = function_site("map_batches", function, uid, parallelism)
    schema = schema_of(routes) if returns is None else declared_schema(returns, site)
    return (Route(plan.add(Node(site, partial(MapBatchesOperator, function, schema), schema, routes, parallelism))),)


def add_map(
    plan: Plan,
    routes: Routes,
    function: Callable[[dict[str, Any]], Mapping[str, Any]],
    returns: Returns | None,
    uid: str | None,
    parallelism: int | None,
) -> Routes:
    site = function_site("map", function, uid, parallelism)
    schema = declared_schema(returns, site)
    return (Route(plan.add(Node(site, partial(MapOperator, function, schema), schema, routes, parallelism))),)


def add_flat_map(
    plan: Plan,
    routes: Routes,
    function: Callable[[dict[str, Any]], Iterable[Mapping[str, Any]]],
    returns: Returns | None,
    uid: str | None,
    parallelism: int | None,
) -> Routes:
    site = function_site("flat_map", function, uid, parallelism)
    schema = declared_schema(returns, site)
    return (Route(plan.add(Node(site, partial(FlatMapOperator, function, schema), schema, routes, parallelism))),)


def add_watermark(
    plan: Plan,
    routes: Routes,
    column: str,
    delay: float,
    idle_after: float | None,
    max_drift: float | None,
    uid: str | None,
    parallelism: int | None,
) -> Routes:
    site = checked_site("with_watermark", uid, parallelism)
    schema = schema_of(routes)
    check_time_column(column, schema, site)
    idle_ms = None if idle_after is None else round(idle_after * 1_000)
    drift_ms = None if max_drift is None else round(max_drift * 1_000)
    factory = partial(WatermarkOperator, column, round(delay * 1_000), idle_ms, drift_ms)
    node = Node(
        site,
        factory,
        schema,
        routes,
        parallelism,
        stateful=True,
        pauses_source=max_drift is not None,
        event_time=EventTime(column),
    )
    return (Route(plan.add(node)),)


def rerouted(routes: Routes, partitioning: Partitioning, key: tuple[str, ...] = ()) -> Routes:
    return tuple(replace(route, partitioning=partitioning, key=key) for route in routes)


def keyed(routes: Routes, columns: tuple[str, ...], name: str = "key_by") -> Routes:
    check_key(columns, schema_of(routes), site_of(name))
    return rerouted(routes, Partitioning.HASH, columns)


def united(plan: Plan, routes: Routes, others: Sequence[tuple[Plan, Routes]]) -> Routes:
    site = site_of("union")
    if not others:
        raise site.error("needs at least one other stream, for example a.union(b)")
    for other_plan, other in others:
        if other_plan is not plan:
            raise site.error(
                f"cannot unite streams of two pipelines, {plan.name!r} and {other_plan.name!r}: make all sources with "
                "the same pipeline"
            )
        check_same_schema(schema_of(routes), schema_of(other), site, other[0].node.site)
    return routes + tuple(route for _, other in others for route in other)


def _sink_operator(sink: Sink) -> SinkOperator:
    return SinkOperator(sink.writer())


def checked_site(name: str, uid: str | None, parallelism: int | None) -> Site:
    """The site of a node to be, with the options that all nodes share checked."""
    site = site_of(name, uid)
    try:
        if uid is not None:
            check_uid(uid)
        check_parallelism(parallelism)
    except ValueError as error:
        raise site_of(name).error(str(error)) from None
    return site


def called(kind: str, function: object) -> str:
    """`map(double)`; of a function without a name, what it is: `map`."""
    name = getattr(function, "__name__", type(function).__name__)
    return f"{kind}({name})" if name.isidentifier() else kind


def function_site(name: str, function: object, uid: str | None, parallelism: int | None) -> Site:
    site = checked_site(called(name, function), uid, parallelism)
    if not callable(function):
        raise site.error(f"takes a function, not {type(function).__name__} {function!r}")
    return site
