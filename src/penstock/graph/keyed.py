"""The nodes of keyed streams: functions and aggregates that keep state per key."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.graph.errors import Site
from penstock.graph.nodes import Routes, called, checked_site, schema_of
from penstock.graph.plan import Node, Plan, Route
from penstock.graph.schemas import Returns, declared_schema
from penstock.operators.keyed import KeyedContext, KeyedFunction, PlainFunction
from penstock.operators.process import ProcessOperator
from penstock.state.declare import StateDeclaration

Function = KeyedFunction | type[KeyedFunction] | Callable[[Any, Any, KeyedContext], None]


def add_process(
    plan: Plan,
    routes: Routes,
    key: tuple[str, ...],
    function: Function,
    returns: Returns | None,
    state: StateDeclaration[Any] | None,
    uid: str | None,
    parallelism: int | None,
) -> Routes:
    site = checked_site(called("process", function), uid, parallelism)
    keyed_function = _keyed_function(function, state, site)
    schema = declared_schema(returns, site)
    factory = partial(ProcessOperator, keyed_function, key, schema, schema_of(routes))
    return (Route(plan.add(Node(site, factory, schema, routes, parallelism, stateful=True))),)


def _keyed_function(
    function: Function, state: StateDeclaration[Any] | None, site: Site
) -> KeyedFunction | type[KeyedFunction]:
    if isinstance(function, KeyedFunction) or (isinstance(function, type) and issubclass(function, KeyedFunction)):
        if state is not None:
            raise site.error(
                "state= belongs to plain functions: declare the state as an attribute of the class instead"
            )
        return function
    if isinstance(function, type) or not callable(function):
        raise site.error(
            f"takes a ps.KeyedFunction (an object or its class) or a plain function, not {function!r}: "
            "derive the class from ps.KeyedFunction"
        )
    if not isinstance(state, StateDeclaration):
        raise site.error(
            "a plain function needs the state it keeps, for example state=ps.value(int, default=0); "
            "for several states or timers derive a class from ps.KeyedFunction"
        )
    return PlainFunction(function, state)
