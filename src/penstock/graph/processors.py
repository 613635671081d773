"""The node of a `StatefulProcessor` that was written for Spark."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.graph.keyed import key_columns
from penstock.graph.nodes import Routes, called, checked_site, schema_of
from penstock.graph.plan import Node, Plan, Route
from penstock.graph.schemas import Returns, declared_schema

if TYPE_CHECKING:
    import pyarrow as pa


def add_processor(
    plan: Plan,
    routes: Routes,
    key: tuple[str, ...],
    processor: Any,
    returns: Returns | None,
    time_mode: str,
    initial_state: pa.Table | None,
    uid: str | None,
    parallelism: int | None,
) -> Routes:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor  # only pipelines that use it need PySpark

    from penstock.spark.stateful_processor import StatefulProcessorOperator, TimeMode, states_of

    site = checked_site(called("transform_with_state", processor), uid, parallelism)
    if not isinstance(processor, StatefulProcessor):
        raise site.error(f"takes a pyspark.sql.streaming.StatefulProcessor, not {processor!r}: pass an object of it")
    modes = [str(mode) for mode in TimeMode]
    if time_mode.lower() not in modes:
        raise site.error(f"time_mode={time_mode!r} must be one of {modes}")
    input_schema = schema_of(routes)
    if initial_state is not None:
        for name in key:
            if (
                name not in initial_state.schema.names
                or initial_state.schema.field(name).type != input_schema.field(name).type
            ):
                raise site.error(
                    f"the initial state needs the key column {name!r} of type {input_schema.field(name).type}; it has "
                    f"{', '.join(f'{field.name}: {field.type}' for field in initial_state.schema)}"
                )
    try:
        states = tuple(states_of(processor).values())
    except (TypeError, ValueError) as error:
        raise site.error(f"its states cannot be kept: {error}") from error
    schema = declared_schema(returns, site)
    factory = partial(
        StatefulProcessorOperator, processor, TimeMode(time_mode.lower()), key, schema, input_schema, initial_state
    )
    key_types = key_columns(input_schema, key)
    node = Node(site, factory, schema, routes, parallelism, stateful=True, states=states, key=key_types)
    return (Route(plan.add(node)),)
