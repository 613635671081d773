"""The nodes of joins: operators with two inputs, and the checks of what the two sides must have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as pat

from penstock.graph.errors import Site
from penstock.graph.job import Partitioning
from penstock.graph.keyed import key_columns
from penstock.graph.nodes import Routes, checked_site, rerouted, schema_of
from penstock.graph.plan import Node, Plan, Route
from penstock.graph.schemas import check_key
from penstock.graph.windows import WindowSpec, event_time_of, times_of
from penstock.operators.joins.interval import IntervalJoinOperator
from penstock.operators.joins.lookup import LookupJoinOperator
from penstock.operators.joins.running import RunningJoinOperator, gives_changelog, running_schema
from penstock.operators.joins.shape import How, JoinSide, joined_schema
from penstock.operators.joins.temporal import TemporalJoinOperator
from penstock.operators.joins.timed import LATE_RIGHT
from penstock.operators.joins.windowed import SessionJoinOperator, TimeWindowJoinOperator, bounds_of
from penstock.operators.reduce import OPERATION
from penstock.operators.windows.declare import SessionWindows, TimeWindows
from penstock.operators.windows.timed import LATE, WINDOW_END
from penstock.operators.windows.times import EventTime

if TYPE_CHECKING:
    from penstock.graph.job import OperatorFactory

_ALL: Final = tuple(How)
_OF_ONE: Final = (How.INNER, How.LEFT)
"""Joins in which a row of the left side has at most one match."""


@dataclass(frozen=True)
class JoinInput:
    """One of the two streams, and the columns that are compared."""

    plan: Plan
    routes: Routes
    key: tuple[str, ...]
    on: str | None = None
    """The column of event time, if it was named for the join."""

    @property
    def side(self) -> JoinSide:
        return JoinSide(schema_of(self.routes), self.key, is_changelog(self.routes))


def add_join(
    left: JoinInput,
    right: JoinInput,
    how: str,
    ttl: tuple[int | None, int | None],
    suffix: str,
    uid: str | None,
    parallelism: int | None,
) -> Routes:
    site = checked_site(f"join({how})", uid, parallelism)
    kind = _checked_how(how, _ALL, site)
    _check_inputs(left, right, site)
    sides = left.side, right.side
    node = Node(
        site,
        partial(RunningJoinOperator, *sides, kind, suffix, ttl),
        _schema(site, lambda: running_schema(*sides, kind, suffix)),
        _both(left.routes, right.routes),
        parallelism,
        stateful=True,
        key=key_columns(sides[0].schema, left.key),
        changelog=gives_changelog(*sides, kind),
    )
    return (Route(left.plan.add(node)),)


def add_interval_join(
    left: JoinInput,
    right: JoinInput,
    bounds: tuple[int, int],
    how: str,
    suffix: str,
    uid: str | None,
    parallelism: int | None,
) -> tuple[Routes, tuple[Routes, Routes]]:
    """The results, and the late records of both sides."""
    site = checked_site(f"interval_join({how})", uid, parallelism)
    if bounds[0] > bounds[1]:
        raise site.error(f"lower={bounds[0]}ms is above upper={bounds[1]}ms: no two times are that far apart")
    kind = _checked_how(how, _ALL, site)
    times = _check_timed(left, right, site)
    sides = left.side, right.side
    schema = _schema(site, lambda: joined_schema(*sides, kind, suffix))
    factory = partial(IntervalJoinOperator, *sides, times, *bounds, kind, suffix)
    return _timed(site, left, right, factory, schema, _dated(kind, times, sides, suffix), parallelism)


def add_temporal_join(
    left: JoinInput, right: JoinInput, how: str, suffix: str, uid: str | None, parallelism: int | None
) -> tuple[Routes, tuple[Routes, Routes]]:
    site = checked_site(f"temporal_join({how})", uid, parallelism)
    kind = _checked_how(how, _OF_ONE, site)
    times = _check_timed(left, right, site)
    sides = left.side, right.side
    schema = _schema(site, lambda: joined_schema(*sides, kind, suffix))
    factory = partial(TemporalJoinOperator, *sides, times, kind, suffix)
    return _timed(site, left, right, factory, schema, times[0], parallelism)


def add_window_join(
    left: JoinInput,
    right: JoinInput,
    spec: WindowSpec,
    how: str,
    suffix: str,
    uid: str | None,
    parallelism: int | None,
) -> tuple[Routes, tuple[Routes, Routes]]:
    site = checked_site(f"join({how}, {spec.windows})", uid, parallelism)
    if not isinstance(spec.windows, TimeWindows | SessionWindows):
        raise site.error(f"{spec.windows} knows no time: use ps.tumbling, ps.sliding or ps.session")
    if spec.lateness or spec.early is not None:
        raise site.error(
            "windows that are joined are put out once: leave allowed_lateness and early out, and give with_watermark "
            "a longer delay if many records are late"
        )
    if not left.key:
        raise site.error("needs a key: write stream.key_by(...).window(...).join(...)")
    kind = _checked_how(how, _ALL, site)
    times = _check_timed(left, right, site)
    sides = left.side, right.side
    schema = _schema(site, lambda: joined_schema(*sides, kind, suffix, before=bounds_of(sides, times)))
    make: Any = TimeWindowJoinOperator if isinstance(spec.windows, TimeWindows) else SessionJoinOperator
    factory = partial(make, *sides, times, spec.windows, kind, suffix)
    return _timed(site, left, right, factory, schema, EventTime(WINDOW_END, -1), parallelism)


def add_lookup_join(
    facts: JoinInput, table: JoinInput, how: str, suffix: str, uid: str | None, parallelism: int | None
) -> Routes:
    site = checked_site(f"lookup_join({how})", uid, parallelism)
    kind = _checked_how(how, _OF_ONE, site)
    for side in (facts, table):
        check_key(side.key, schema_of(side.routes), site)
    _check_inputs(facts, table, site)
    sides = facts.side, table.side
    if sides[0].changelog:
        raise site.error(
            "the stream is a changelog: what is taken back would not be found again once the table has changed. Use "
            "key_by(...).join(...)"
        )
    broadcast = tuple(replace(route, timeless=True) for route in rerouted(table.routes, Partitioning.BROADCAST))
    known = {time for route in facts.routes for time in times_of(route.node)}
    node = Node(
        site,
        partial(LookupJoinOperator, *sides, kind, suffix),
        _schema(site, lambda: joined_schema(*sides, kind, suffix)),
        _both(facts.routes, broadcast),
        parallelism,
        stateful=True,
        event_time=known.pop() if len(known) == 1 else None,
    )
    return (Route(facts.plan.add(node)),)


def _timed(
    site: Site,
    left: JoinInput,
    right: JoinInput,
    factory: OperatorFactory,
    schema: pa.Schema,
    time: EventTime | None,
    parallelism: int | None,
) -> tuple[Routes, tuple[Routes, Routes]]:
    """A join by event time, whose results have theirs in the column `time`."""
    late: Mapping[str, pa.Schema] = {LATE: left.side.schema, LATE_RIGHT: right.side.schema}
    node = Node(
        site,
        factory,
        schema,
        _both(left.routes, right.routes),
        parallelism,
        stateful=True,
        key=key_columns(left.side.schema, left.key),
        sides=late,
        event_time=time,
        changelog=False,
    )
    left.plan.add(node)
    return (Route(node),), ((Route(node, output=LATE),), (Route(node, output=LATE_RIGHT),))


def _both(left: Routes, right: Routes) -> Routes:
    return left + tuple(replace(route, input=1) for route in right)


def _dated(
    how: How, times: tuple[EventTime, EventTime], sides: tuple[JoinSide, JoinSide], suffix: str
) -> EventTime | None:
    """Where the results of an interval join have their event time: where every row has one."""
    if how is How.FULL:
        return None
    if how is not How.RIGHT:
        return times[0]
    name = times[1].column
    if name in sides[1].key:
        return EventTime(sides[0].key[sides[1].key.index(name)], times[1].shift)
    return EventTime(name + suffix if name in sides[0].schema.names else name, times[1].shift)


def _schema(site: Site, make: Callable[[], pa.Schema]) -> pa.Schema:
    try:
        return make()
    except ValueError as error:
        raise site.error(str(error)) from None


def _checked_how(how: str, known: tuple[How, ...], site: Site) -> How:
    try:
        kind = How(how)
    except ValueError:
        kind = None
    if kind is None or kind not in known:
        raise site.error(f"how={how!r} must be one of {', '.join(repr(str(one)) for one in known)}")
    return kind


def _check_inputs(left: JoinInput, right: JoinInput, site: Site) -> None:
    """Of one pipeline, with keys that can be compared."""
    if left.plan is not right.plan:
        raise site.error(
            f"cannot join streams of two pipelines, {left.plan.name!r} and {right.plan.name!r}: make all sources with "
            "the same pipeline"
        )
    types = [[side.schema.field(name).type for name in side.key] for side in (left.side, right.side)]
    if types[0] != types[1]:
        shown = [
            ", ".join(f"{name} {kind}" for name, kind in zip(side.key, own, strict=True))
            for side, own in zip((left, right), types, strict=True)
        ]
        raise site.error(
            f"the keys cannot be compared: the left side is keyed by ({shown[0]}), the right side by ({shown[1]}). "
            "Key both by as many columns of the same types; with_columns(...) casts them"
        )


def _check_timed(left: JoinInput, right: JoinInput, site: Site) -> tuple[EventTime, EventTime]:
    """Also with event time, and without rows that are taken back. Where the times are."""
    _check_inputs(left, right, site)
    for which, side in (("left", left), ("right", right)):
        if side.side.changelog:
            raise site.error(
                f"the {which} side is a changelog, and only a running join takes rows back: write "
                "key_by(...).join(...), or join before you aggregate"
            )
    left_time, right_time = (event_time_of(one.on, one.side.schema, one.routes, site) for one in (left, right))
    return left_time, right_time


def is_changelog(routes: Routes) -> bool:
    """Whether a column says of every row of the stream whether it is added or taken back."""
    return any(_marked(route) for route in routes)


def _marked(route: Route) -> bool:
    node = route.node
    if route.output or OPERATION not in route.schema.names or not pat.is_string(route.schema.field(OPERATION).type):
        return False
    if node.changelog is not None:
        return node.changelog
    return bool(node.inputs) and any(_marked(before) for before in node.inputs if before.input == 0)
