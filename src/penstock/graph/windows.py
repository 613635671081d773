"""The nodes of windows: which operator does the work, where event time is, and what the output looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.graph.errors import Site
from penstock.graph.keyed import checked_aggregates, key_columns
from penstock.graph.nodes import Routes, checked_site, schema_of, site_of
from penstock.graph.plan import Node, Plan, Route
from penstock.graph.schemas import check_time_column
from penstock.operators.aggregation.declare import Aggregate
from penstock.operators.deduplicate import DeduplicateOperator, DeduplicateWithinOperator
from penstock.operators.windows.counted import CountWindowOperator, counted_schema
from penstock.operators.windows.declare import (
    CountWindows,
    EveryCount,
    GlobalWindow,
    SessionWindows,
    TimeWindows,
    Trigger,
    Windows,
)
from penstock.operators.windows.keying import Keying
from penstock.operators.windows.sessions import SessionWindowOperator
from penstock.operators.windows.timed import LATE, WINDOW_END, TimeWindowOperator, windowed_schema
from penstock.operators.windows.times import EventTime, TimeColumn

if TYPE_CHECKING:
    from penstock.graph.job import OperatorFactory


@dataclass(frozen=True)
class WindowSpec:
    """What was said about windows before the aggregates are named."""

    windows: Windows
    lateness: int
    early: Trigger | None
    on: str | None


def window_spec(windows: Any, lateness: int, early: Any, on: str | None) -> WindowSpec:
    """Checked as far as it can be without the aggregates."""
    site = site_of("window")
    if not isinstance(windows, Windows):
        raise site.error(f"{windows!r} is no window: use ps.tumbling, ps.sliding, ps.session, ps.count_window ...")
    timed = isinstance(windows, TimeWindows | SessionWindows)
    if early is not None and not isinstance(early, Trigger):
        raise site.error(f"early={early!r} must be ps.every(...) or ps.every_count(...)")
    if not timed and (lateness or early is not None or on is not None):
        raise site.error(f"{windows} knows no time: allowed_lateness, early and on are for windows of event time")
    if isinstance(early, EveryCount) and isinstance(windows, TimeWindows) and windows.size != windows.every:
        raise site.error("early=ps.every_count(...) is for tumbling windows and sessions; use early=ps.every(...)")
    return WindowSpec(windows, lateness, early, on)


def add_windows(
    plan: Plan,
    routes: Routes,
    key: tuple[str, ...],
    spec: WindowSpec,
    aggregates: Mapping[str, Aggregate],
    uid: str | None,
    parallelism: int | None,
) -> tuple[Routes, Routes | None]:
    """The results, and the late records."""
    site = checked_site(f"window({spec.windows})", uid, parallelism)
    if not key:
        if parallelism not in (None, 1):
            raise site.error(f"parallelism={parallelism}: windows of all records are kept in one place; key them first")
        parallelism = 1
    schema = schema_of(routes)
    checked_aggregates(schema, aggregates, site)
    try:
        factory, result = _operator(spec, key, dict(aggregates), schema, routes, site)
    except (ValueError, TypeError) as error:
        raise site.error(str(error)) from None
    timed = isinstance(spec.windows, TimeWindows | SessionWindows)
    node = Node(
        site,
        factory,
        result,
        routes,
        parallelism,
        stateful=True,
        key=Keying(key, schema).described,
        sides={LATE: schema} if timed else {},
        event_time=EventTime(WINDOW_END, -1) if timed else None,
        changelog=False,
    )
    plan.add(node)
    return (Route(node),), (Route(node, output=LATE),) if timed else None


def _operator(
    spec: WindowSpec,
    key: tuple[str, ...],
    aggregates: dict[str, Aggregate],
    schema: pa.Schema,
    routes: Routes,
    site: Site,
) -> tuple[OperatorFactory, pa.Schema]:
    windows = spec.windows
    if isinstance(windows, CountWindows | GlobalWindow):
        return partial(CountWindowOperator, windows, key, aggregates, schema), counted_schema(schema, key, aggregates)
    time = event_time_of(spec.on, schema, routes, site)
    result = windowed_schema(schema, key, aggregates, TimeColumn(time, schema).bound_type)
    make: Any = TimeWindowOperator if isinstance(windows, TimeWindows) else SessionWindowOperator
    return partial(make, windows, key, aggregates, schema, time, spec.lateness, spec.early), result


def add_deduplicate(
    plan: Plan,
    routes: Routes,
    key: tuple[str, ...],
    within: int | None,
    on: str | None,
    uid: str | None,
    parallelism: int | None,
) -> tuple[Routes, Routes | None]:
    """What is let through, and the late records."""
    site = checked_site("deduplicate", uid, parallelism)
    schema = schema_of(routes)
    if within is None:
        factory: OperatorFactory = partial(DeduplicateOperator, key, schema)
    else:
        known = on is not None or {time for route in routes for time in times_of(route.node)} != {None}
        time = event_time_of(on, schema, routes, site) if known else None
        factory = partial(DeduplicateWithinOperator, key, schema, within, time)
    node = Node(
        site,
        factory,
        schema,
        routes,
        parallelism,
        stateful=True,
        key=key_columns(schema, key),
        sides={} if within is None else {LATE: schema},
    )
    plan.add(node)
    return (Route(node),), (Route(node, output=LATE),) if within is not None else None


def event_time_of(on: str | None, schema: pa.Schema, routes: Routes, site: Site) -> EventTime:
    """Where the stream has its event time: as said, or as the nearest operator upstream says."""
    if on is not None:
        check_time_column(on, schema, site)
        return EventTime(on)
    known = {time for route in routes for time in times_of(route.node)}
    if known == {None}:
        raise site.error(
            'needs event time: say where it is with with_watermark("ts", delay="5s") before (windows can count records '
            "instead)"
        )
    if len(known) > 1 or None in known:
        raise site.error('the united streams have their event time in different columns: say which with on="ts"')
    (time,) = known
    assert time is not None
    if time.column not in schema.names:
        raise site.error(
            f"the column of event time, {time.column!r}, is not in the stream any more: keep it, or say which column "
            'to use with on="ts"'
        )
    check_time_column(time.column, schema, site)
    return time


def times_of(node: Node) -> set[EventTime | None]:
    if node.event_time is not None:
        return {node.event_time}
    if not node.inputs or any(route.input for route in node.inputs):
        return {None}  # rows of two inputs have none unless the operator says so
    return {time for route in node.inputs for time in times_of(route.node)}
