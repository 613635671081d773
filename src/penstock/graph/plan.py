"""The logical plan: what the user wrote, operator by operator, before it is cut into chains.

A plan only grows, and a node's inputs exist before the node does: the order of creation is a topological order, and
cycles cannot be written. Exchanges and unions are no nodes: a `Route` says how the records of a node find their way to
a consumer, and a stream of several routes is a union.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.graph.errors import PipelineError, Site
from penstock.graph.job import MAIN, Partitioning

if TYPE_CHECKING:
    from penstock.connectors.base import Sink
    from penstock.graph.job import Combined, DeclaredState, OperatorFactory
    from penstock.operators.expressions import Step
    from penstock.operators.windows.times import EventTime


@dataclass(frozen=True, eq=False)
class Node:
    """One operator of the plan. Compared by identity: two equal filters are two operators."""

    site: Site
    factory: OperatorFactory
    schema: pa.Schema | None
    """Of its output; None for a sink."""
    inputs: tuple[Route, ...] = ()
    """Empty for a source; several for an operator on a union, or with two inputs."""
    parallelism: int | None = None
    """None: the pipeline's."""
    stateful: bool = False
    sink: Sink | None = None
    steps: tuple[Step, ...] = ()
    """Of an expression operator: neighbours in a chain are evaluated in one go."""
    states: tuple[DeclaredState, ...] = ()
    key: tuple[str, ...] = ()
    """Both as in `OperatorSpec`."""
    sides: Mapping[str, pa.Schema] = field(default_factory=dict)
    """The schemas of its side outputs, which need not be consumed."""
    pauses_source: bool = False
    """It must be in the chain of its source, which it may pause."""
    event_time: EventTime | None = None
    """Set on an operator that says where its output has its event time; others keep what their input has."""
    changelog: bool | None = None
    """Whether a column `op` of its output says what each row is; None: if its (first) input's does, and it keeps it."""

    @property
    def name(self) -> str:
        return self.site.name

    @property
    def uid(self) -> str | None:
        """As named by the user."""
        return self.site.uid

    def __str__(self) -> str:
        return str(self.site)

    def error(self, message: str) -> PipelineError:
        return self.site.error(message)


@dataclass(frozen=True, eq=False)
class Route:
    """The way of a node's records to a consumer."""

    node: Node
    partitioning: Partitioning = Partitioning.FORWARD
    key: tuple[str, ...] = ()
    output: str = MAIN
    input: int = 0
    """Which input of the consumer."""
    timeless: bool = False
    """As in `Edge`."""
    combined: Combined | None = None
    """What happens to batches before they are sent."""

    @property
    def schema(self) -> pa.Schema:
        """As they arrive."""
        return self.combined.schema if self.combined is not None else self.sent

    @property
    def sent(self) -> pa.Schema:
        schema = self.node.sides[self.output] if self.output else self.node.schema
        assert schema is not None, "a sink has no output"
        return schema


@dataclass(eq=False)
class Plan:
    """All operators of one pipeline, in the order in which they were written."""

    name: str
    parallelism: int
    key_groups: int
    nodes: list[Node] = field(default_factory=list)

    def add(self, node: Node) -> Node:
        self.nodes.append(node)
        return node

    def parallelism_of(self, node: Node) -> int:
        return self.parallelism if node.parallelism is None else node.parallelism
