"""The node of a function that keeps state per instance, on a stream without a key."""

from __future__ import annotations

from functools import partial

from penstock.graph.nodes import Routes, called, checked_site, schema_of
from penstock.graph.plan import Node, Plan, Route
from penstock.graph.schemas import Returns, declared_schema
from penstock.operators.keyed import KeyedFunction
from penstock.operators.stream_function import StreamFunction, StreamProcessOperator
from penstock.state.operator_state import operator_states_of


def add_stream_process(
    plan: Plan,
    routes: Routes,
    function: StreamFunction | type[StreamFunction],
    returns: Returns | None,
    uid: str | None,
    parallelism: int | None,
) -> Routes:
    site = checked_site(called("process", function), uid, parallelism)
    cls = function if isinstance(function, type) else type(function)
    if issubclass(cls, KeyedFunction):
        raise site.error(
            f"{cls.__name__} keeps state per key, and this stream has no key: write stream.key_by(...).process(...)"
        )
    if not issubclass(cls, StreamFunction):
        raise site.error(
            f"takes a ps.StreamFunction (an object or its class), not {function!r}: derive the class from it; a plain "
            "function of one row is given to map or flat_map, and state per key needs stream.key_by(...).process(...)"
        )
    schema = declared_schema(returns, site)
    factory = partial(StreamProcessOperator, function, schema, schema_of(routes))
    states = tuple(operator_states_of(cls))
    return (Route(plan.add(Node(site, factory, schema, routes, parallelism, stateful=True, states=states))),)
