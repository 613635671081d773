"""The nodes of keyed streams: functions and aggregates that keep state per key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from penstock.graph.errors import Site, unknown_column
from penstock.graph.job import Combined
from penstock.graph.nodes import Routes, called, checked_site, schema_of
from penstock.graph.plan import Node, Plan, Route
from penstock.graph.schemas import Returns, declared_schema
from penstock.operators.aggregation.declare import Aggregate
from penstock.operators.combining import AggregatesCombiner, Combine, combinable, combined_schema, combining
from penstock.operators.fold import FoldOperator, RowFunction
from penstock.operators.keyed import KeyedContext, KeyedFunction, PlainFunction, declarations_of
from penstock.operators.process import ProcessOperator
from penstock.operators.reduce import Output, ReduceOperator, reduced_schema
from penstock.state.declare import StateDeclaration
from penstock.state.keys import KeyColumns
from penstock.state.operator_state import operator_states_of

if TYPE_CHECKING:
    from penstock.graph.job import DeclaredState, OperatorFactory

Choice = TypeVar("Choice", bound=StrEnum)
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
    states = tuple(states_of(keyed_function))
    for hidden in (one.name for one in states if hasattr(KeyedFunction, one.name)):
        raise site.error(f"the state {hidden!r} hides the method of that name: give it another name")
    key_types = key_columns(schema_of(routes), key)
    node = Node(site, factory, schema, routes, parallelism, stateful=True, states=states, key=key_types)
    return (Route(plan.add(node)),)


def states_of(function: KeyedFunction | type[KeyedFunction]) -> list[DeclaredState]:
    cls = function if isinstance(function, type) else type(function)
    keyed = [function.declaration] if isinstance(function, PlainFunction) else declarations_of(cls)
    return [*keyed, *operator_states_of(cls)]


def key_columns(schema: pa.Schema, key: tuple[str, ...]) -> tuple[str, ...]:
    """Name and type of every column of the key, as checkpoints keep them."""
    return tuple(f"{name}: {kind}" for name, kind in zip(key, KeyColumns(schema, key).types, strict=True))


def add_reduce(
    plan: Plan,
    routes: Routes,
    key: tuple[str, ...],
    function: RowFunction | None,
    aggregates: Mapping[str, Aggregate],
    output: str,
    combine: str,
    uid: str | None,
    parallelism: int | None,
) -> Routes:
    site = checked_site("reduce" if function is None else called("reduce", function), uid, parallelism)
    schema = schema_of(routes)
    if isinstance(function, Aggregate):
        raise site.error(f"an aggregate needs a name for its column: reduce(name={function})")
    if function is None:
        form = _choice(Output, output, "output", site)
        result = _aggregated(schema, key, aggregates, form, site)
        routes, own = _combined(routes, key, aggregates, combine, site)
        factory: OperatorFactory = partial(ReduceOperator, key, own, schema_of(routes), form)
    elif output != Output.UPDATES:
        raise site.error("a function of two rows puts out updates only; a changelog needs named aggregates")
    elif aggregates:
        raise site.error("takes either a function of two rows or named aggregates, not both: write two reduces")
    elif not callable(function):
        raise site.error(f"takes a function of two rows, not {type(function).__name__} {function!r}")
    else:
        result, factory = schema, partial(FoldOperator, function, key, schema)
    node = Node(
        site,
        factory,
        result,
        routes,
        parallelism,
        stateful=True,
        key=key_columns(schema, key),
        changelog=output == Output.CHANGELOG,
    )
    return (Route(plan.add(node)),)


def _combined(
    routes: Routes, key: tuple[str, ...], aggregates: Mapping[str, Aggregate], combine: str, site: Site
) -> tuple[Routes, dict[str, Aggregate]]:
    """The ways with rows combined before they are sent, if they can be, and the aggregates of what arrives."""
    schema, when = schema_of(routes), _choice(Combine, combine, "combine", site)
    if when is Combine.NEVER or not combinable(aggregates):
        if when is Combine.ALWAYS:
            raise site.error("combine='always' is for counts, sums, minima and maxima only")
        return routes, dict(aggregates)
    make = partial(AggregatesCombiner, key, dict(aggregates), schema, when)
    combined = Combined(make, combined_schema(schema, key, aggregates))
    return tuple(replace(route, combined=combined) for route in routes), combining(aggregates)


def checked_aggregates(schema: pa.Schema, aggregates: Mapping[str, Aggregate], site: Site) -> None:
    """Refuses what is no aggregate, and unknown columns."""
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise site.error(
                f"{name}={aggregate!r} is no aggregate: use ps.count(), ps.sum(column), ps.max(column) or another of ps"
            )
        for column in aggregate.reads:
            if column not in schema.names:
                raise site.error(f"{aggregate}: {unknown_column(column, schema.names)}")


def _choice(kinds: type[Choice], given: str, name: str, site: Site) -> Choice:
    try:
        return kinds(given)
    except ValueError:
        raise site.error(f"{name}={given!r} must be {' or '.join(map(repr, map(str, kinds)))}") from None


def _aggregated(
    schema: pa.Schema, key: tuple[str, ...], aggregates: Mapping[str, Aggregate], output: Output, site: Site
) -> pa.Schema:
    checked_aggregates(schema, aggregates, site)
    try:
        return reduced_schema(schema, key, aggregates, output)
    except (ValueError, TypeError) as error:
        raise site.error(str(error)) from None


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
