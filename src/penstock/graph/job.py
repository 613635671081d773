"""The job graph: chains of operators, the edges between them, and the channels that follow from both.

A *chain* is a run of operators that are connected one to one; it executes as one task per parallel instance (a
subtask), in one
thread, and hands batches from operator to operator by plain calls. Chains are connected by *edges*; an edge says how
records
find their way to the subtasks of its goal. A *channel* is one (edge, source subtask, target subtask).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from penstock.core.ids import ChainId, ChannelId, EdgeId, SubtaskId, Uid

if TYPE_CHECKING:
    from penstock.connectors.base import Sink
    from penstock.operators.base import Operator, SourceOperator

    OperatorFactory = Callable[[], Operator | SourceOperator]


MAIN: Final = ""
"""The output that every operator has; side outputs have names."""


class Partitioning(StrEnum):
    FORWARD = "forward"
    """Subtask i to subtask i; both chains have the same parallelism."""
    HASH = "hash"
    """By key group of the key columns."""
    REBALANCE = "rebalance"
    """Whole batches (or slices) round robin."""
    BROADCAST = "broadcast"
    """Every record to every subtask."""


class DeclaredState(Protocol):
    """A state as an operator declares it, on the driver."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def description(self) -> dict[str, Any]: ...

    def check(self, uid: Uid, kind: str, stored: dict[str, Any]) -> None:
        """Raises `StateMismatch` unless state that was stored with that kind and description can be read."""
        ...


@dataclass(frozen=True)
class OperatorSpec:
    uid: Uid
    name: str
    """What it is, for people: `filter`, `process(Totals)`."""
    factory: OperatorFactory
    """Makes a fresh instance for one subtask of one attempt. Shipped to the workers by Spark's own closure
    serialisation."""
    schema: pa.Schema | None
    """Of its output; None for a sink."""
    stateful: bool = False
    sink: Sink | None = None
    """Set on sinks: the driver asks it for a committer."""
    states: tuple[DeclaredState, ...] = ()
    """Those whose type the user declares."""
    key: tuple[str, ...] = ()
    """Of an operator with state per key: name and type of every column of the key."""


@dataclass(frozen=True)
class Chain:
    id: ChainId
    operators: tuple[OperatorSpec, ...]
    parallelism: int

    @property
    def subtasks(self) -> tuple[SubtaskId, ...]:
        return tuple(SubtaskId(self.id, index) for index in range(self.parallelism))


@dataclass(frozen=True)
class Edge:
    id: EdgeId
    source: ChainId
    target: ChainId
    partitioning: Partitioning
    schema: pa.Schema
    key: tuple[str, ...] = ()
    """The key columns of a `HASH` edge."""
    target_input: int = 0
    """Which input of the target's first operator it feeds (a union feeds one input by several edges; a join has
    two inputs)."""
    output: str = MAIN
    """Which output of the source's operators it takes."""
    timeless: bool = False
    """The target takes no event time from it."""
    combiner: Callable[[], Combiner] | None = field(default=None, compare=False, repr=False)
    """What happens to batches before they are sent; `schema` is that of its results."""


class Combiner(Protocol):
    """Of one subtask's output along an edge: makes less of a batch before it is sent."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch: ...


@dataclass(frozen=True)
class Combined:
    make: Callable[[], Combiner]
    schema: pa.Schema
    """Of the batches that are sent."""


@dataclass(frozen=True)
class JobGraph:
    name: str
    chains: tuple[Chain, ...]
    """In topological order."""
    edges: tuple[Edge, ...]
    """`edges[i].id == i`."""
    key_groups: int = 128
    scaled: Callable[[int], JobGraph] | None = field(default=None, compare=False, repr=False)
    """The same job at another parallelism, for operators that have none of their own; None: it has only this one."""

    @cached_property
    def _by_id(self) -> dict[ChainId, Chain]:
        return {chain.id: chain for chain in self.chains}

    def chain(self, chain: ChainId) -> Chain:
        return self._by_id[chain]

    def inputs(self, chain: ChainId) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.target == chain)

    def outputs(self, chain: ChainId) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.source == chain)

    def subtasks(self) -> Iterator[SubtaskId]:
        for chain in self.chains:
            yield from chain.subtasks

    @property
    def slots(self) -> int:
        """Worker slots that the job needs: a worker takes one subtask of every chain."""
        return max(chain.parallelism for chain in self.chains)

    def channels(self, edge: Edge) -> Iterator[ChannelId]:
        sources, targets = self.chain(edge.source).parallelism, self.chain(edge.target).parallelism
        if edge.partitioning is Partitioning.FORWARD:
            yield from (ChannelId(edge.id, index, index) for index in range(sources))
        else:
            yield from (ChannelId(edge.id, s, t) for s in range(sources) for t in range(targets))

    def input_channels(self, subtask: SubtaskId) -> tuple[ChannelId, ...]:
        return tuple(c for edge in self.inputs(subtask.chain) for c in self.channels(edge) if c.target == subtask.index)

    def output_channels(self, subtask: SubtaskId) -> tuple[ChannelId, ...]:
        return tuple(
            c for edge in self.outputs(subtask.chain) for c in self.channels(edge) if c.source == subtask.index
        )

    def sender(self, channel: ChannelId) -> SubtaskId:
        return SubtaskId(self.edges[channel.edge].source, channel.source)

    def receiver(self, channel: ChannelId) -> SubtaskId:
        return SubtaskId(self.edges[channel.edge].target, channel.target)
