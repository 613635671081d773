"""The nodes of joins: an operator with two inputs, and the checks of what the two sides must have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pyarrow.types as pat

from penstock.graph.errors import Site
from penstock.graph.keyed import key_columns
from penstock.graph.nodes import Routes, checked_site, schema_of
from penstock.graph.plan import Node, Plan, Route
from penstock.operators.joins.running import RunningJoinOperator, gives_changelog, running_schema
from penstock.operators.joins.shape import How, JoinSide
from penstock.operators.reduce import OPERATION


@dataclass(frozen=True)
class JoinInput:
    """One of the two streams, and the columns that are compared."""

    plan: Plan
    routes: Routes
    key: tuple[str, ...]

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
    kind = checked_how(how, tuple(How), site)
    check_inputs(left, right, site)
    sides = left.side, right.side
    try:
        schema = running_schema(*sides, kind, suffix)
    except ValueError as error:
        raise site.error(str(error)) from None
    node = Node(
        site,
        partial(RunningJoinOperator, *sides, kind, suffix, ttl),
        schema,
        both(left, right),
        parallelism,
        stateful=True,
        key=key_columns(sides[0].schema, left.key),
        changelog=gives_changelog(*sides, kind),
    )
    return (Route(left.plan.add(node)),)


def both(left: JoinInput, right: JoinInput) -> Routes:
    return left.routes + tuple(replace(route, input=1) for route in right.routes)


def checked_how(how: str, known: tuple[How, ...], site: Site) -> How:
    try:
        kind = How(how)
    except ValueError:
        kind = None
    if kind is None or kind not in known:
        raise site.error(f"how={how!r} must be {', '.join(repr(str(one)) for one in known)}")
    return kind


def check_inputs(left: JoinInput, right: JoinInput, site: Site) -> None:
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
