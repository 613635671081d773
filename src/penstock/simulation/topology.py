"""Random job shapes, as data: which nodes there are, how wide they are and how records get from one to the next.

A plan is a small directed graph without cycles. From it `build.py` makes the production `JobGraph`, and `oracle.py`,
on its own, what the job must put out; neither looks at the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random

from penstock.graph.job import Partitioning

MAX_SUBTASKS = 14
"""Over the whole job: enough for every shape, small enough for thousands of runs a minute."""


class Kind(StrEnum):
    SOURCE = "source"
    GENERATOR = "generator"
    MAP = "map"
    FILTER = "filter"
    PROCESS = "process"
    RECALL = "recall"
    """Keyed, with state that expires."""
    KEEP = "keep"
    """With state of its instances. What is broadcast to it stays there."""
    REDUCE = "reduce"
    COLLECT = "collect"
    FILES = "files"

    @property
    def is_source(self) -> bool:
        return self in (Kind.SOURCE, Kind.GENERATOR)

    @property
    def is_sink(self) -> bool:
        return self in (Kind.COLLECT, Kind.FILES)

    @property
    def is_keyed(self) -> bool:
        return self in (Kind.PROCESS, Kind.RECALL, Kind.REDUCE)


@dataclass(frozen=True)
class Link:
    """One edge into a node."""

    source: int
    partitioning: Partitioning


@dataclass(frozen=True)
class Node:
    number: int
    kind: Kind
    parallelism: int
    links: tuple[Link, ...] = ()
    rows: tuple[int, ...] = ()
    """Of a source: how many records each split has; split i is read by subtask i % parallelism."""
    batch: int = 0
    """Of a source: the most rows it hands out at once."""
    pause: float = 0.0
    """Of a source: how likely a poll finds nothing yet."""

    @property
    def uid(self) -> str:
        return f"{self.kind}-{self.number}"

    @property
    def rules(self) -> int | None:
        """Of a node that keeps what is broadcast to it: the source of that."""
        broadcast = (link.source for link in self.links if link.partitioning is Partitioning.BROADCAST)
        return next(broadcast, None) if self.kind is Kind.KEEP else None


@dataclass(frozen=True)
class Topology:
    nodes: tuple[Node, ...]
    """In topological order; `nodes[i].number == i`."""
    keys: int
    """How many different keys the records have."""

    @property
    def sources(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.kind.is_source)

    @property
    def sinks(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.kind.is_sink)

    def in_order(self, node: Node) -> bool:
        """Whether no rebalance lies before the node: which of its channels a record takes is nobody's promise."""
        return all(
            link.partitioning is not Partitioning.REBALANCE and self.in_order(self.nodes[link.source])
            for link in node.links
        )

    def describe(self) -> str:
        def one(node: Node) -> str:
            links = ", ".join(f"{self.nodes[link.source].uid} {link.partitioning}" for link in node.links)
            return f"{node.uid} x{node.parallelism}" + (f" <- {links}" if links else f" {list(node.rows)} rows")

        return "; ".join(one(node) for node in self.nodes)


def random_topology(random: Random) -> Topology:
    return _Sketch(random).finish()


def resized(topology: Topology, width: Callable[[Node], int]) -> Topology:
    """The same job at another parallelism: nodes that a forward link connects keep the same one."""
    widths: dict[int, int] = {}
    for node in topology.nodes:
        forward = [link.source for link in node.links if link.partitioning is Partitioning.FORWARD]
        if forward:
            chosen = widths[forward[0]]
            tied = {widths[source] for source in forward}
            widths = {number: chosen if other in tied else other for number, other in widths.items()}
            widths[node.number] = chosen
        else:
            widths[node.number] = width(node)
    nodes = tuple(replace(node, parallelism=widths[node.number]) for node in topology.nodes)
    return replace(topology, nodes=nodes)


def longer(topology: Topology, times: int) -> Topology:
    """The same job with so many times the records."""

    def rows(node: Node) -> tuple[int, ...]:
        if node.kind is Kind.GENERATOR:
            return dealt(sum(node.rows) * times, len(node.rows))
        return tuple(count * times for count in node.rows)

    nodes = (replace(node, rows=rows(node)) for node in topology.nodes)
    return replace(topology, nodes=tuple(nodes))


def without_copies(topology: Topology) -> Topology:
    """How many copies a broadcast makes depends on the parallelism, and so would the right answer, unless they are
    kept."""

    def rebalanced(link: Link) -> Link:
        copies = link.partitioning is Partitioning.BROADCAST
        return replace(link, partitioning=Partitioning.REBALANCE) if copies else link

    nodes = (
        replace(node, links=node.links if node.kind is Kind.KEEP else tuple(map(rebalanced, node.links)))
        for node in topology.nodes
    )
    return replace(topology, nodes=tuple(nodes))


@dataclass
class _Sketch:
    """A topology in the making."""

    random: Random
    nodes: list[Node] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)
    """Streams that nobody consumes yet."""
    broadcasts: int = 0

    def finish(self) -> Topology:
        for _ in range(self.random.choices((1, 2, 3), (50, 35, 15))[0]):
            self._source()
        for _ in range(self.random.choices((0, 1, 2, 3), (15, 40, 30, 15))[0]):
            self._middle()
        if self.random.random() < 0.2:
            self._reduce()
        self._sinks()
        return Topology(tuple(self.nodes), self.random.choice((1, 2, 3, 7, 40)))

    @property
    def _subtasks(self) -> int:
        return sum(node.parallelism for node in self.nodes)

    def _width(self) -> int:
        widest = max(1, min(3, MAX_SUBTASKS - self._subtasks - len(self.unread)))
        return self.random.choice((1, 2, 2, 3)) if widest == 3 else self.random.randint(1, widest)

    def _add(self, node: Node) -> None:
        self.nodes.append(node)
        for link in node.links:
            if link.source in self.unread:
                self.unread.remove(link.source)
        if not node.kind.is_sink:
            self.unread.append(node.number)

    def _source(self) -> None:
        width = self._width()
        kind = self.random.choice((Kind.SOURCE, Kind.SOURCE, Kind.GENERATOR))
        lengths = (0, self.random.randint(1, 4), self.random.randint(8, 25), self.random.randint(8, 25))
        rows = tuple(self.random.choice(lengths) for _ in range(width))
        if kind is Kind.GENERATOR:
            rows = dealt(sum(rows), width)
        self._add(
            Node(
                len(self.nodes),
                kind,
                width,
                rows=rows,
                batch=self.random.choice((1, 2, 5)),
                pause=self.random.choice((0.0, 0.3, 0.7)),
            )
        )

    def _middle(self) -> None:
        kinds = (Kind.MAP, Kind.FILTER, Kind.PROCESS, Kind.RECALL, Kind.KEEP)
        kind = self.random.choices(kinds, (25, 15, 40, 8, 12))[0]
        node = self._linked(kind, self._width(), self._pick_inputs())
        self._add(self._with_rules(node) if kind is Kind.KEEP else node)

    def _with_rules(self, node: Node) -> Node:
        """Rules come straight from a source that does not send anything else straight to the node."""
        sent = {link.source for link in node.links}
        free = [other.number for other in self.nodes if other.kind.is_source and other.number not in sent]
        if not free or self.random.random() < 0.2:
            return node
        return replace(node, links=(*node.links, Link(self.random.choice(free), Partitioning.BROADCAST)))

    def _reduce(self) -> None:
        """A running aggregate puts out another schema: only a sink of its own can read it."""
        node = self._linked(Kind.REDUCE, self._width(), self._pick_inputs())
        self._add(node)
        self._add(self._linked(self._sink_kind(), self._width(), [node.number]))

    def _sinks(self) -> None:
        """Every stream that nobody reads gets a sink, some share one; now and then a stream has a second reader."""
        rest = list(self.unread)
        self.random.shuffle(rest)
        while rest:
            count = min(len(rest), self.random.choice((1, 1, 2, 3)))
            self._add(self._linked(self._sink_kind(), self._width(), sorted(rest[:count])))
            rest = rest[count:]
        if self.random.random() < 0.15 and self._subtasks < MAX_SUBTASKS:
            self._add(self._linked(self._sink_kind(), 1, [self.random.choice(self._readable())]))

    def _sink_kind(self) -> Kind:
        return self.random.choice((Kind.COLLECT, Kind.COLLECT, Kind.FILES))

    def _readable(self) -> list[int]:
        """Streams with the common schema."""
        return [node.number for node in self.nodes if not node.kind.is_sink and node.kind is not Kind.REDUCE]

    def _pick_inputs(self) -> list[int]:
        readable, unread = self._readable(), self.unread
        picked = {self.random.choice(unread if unread and self.random.random() < 0.7 else readable)}
        while self.random.random() < 0.4 and len(picked) < 3:
            picked.add(self.random.choice(readable))
        return sorted(picked)

    def _linked(self, kind: Kind, width: int, inputs: list[int]) -> Node:
        if len(inputs) == 1 and not kind.is_keyed and self.random.random() < 0.3:
            width = self.nodes[inputs[0]].parallelism
        links = tuple(Link(number, self._partitioning(kind, number, width)) for number in inputs)
        return Node(len(self.nodes), kind, width, links)

    def _partitioning(self, kind: Kind, source: int, width: int) -> Partitioning:
        if kind.is_keyed:
            return Partitioning.HASH
        choices = [Partitioning.REBALANCE, Partitioning.HASH]
        if self.nodes[source].parallelism == width:
            choices += [Partitioning.FORWARD] * 3
        if not self.broadcasts and kind is not Kind.KEEP and self.nodes[source].kind is not Kind.REDUCE:
            choices.append(Partitioning.BROADCAST)
        chosen = self.random.choice(choices)
        self.broadcasts += chosen is Partitioning.BROADCAST
        return chosen


def dealt(count: int, splits: int) -> tuple[int, ...]:
    """A generator deals its records round robin."""
    return tuple(len(range(split, count, splits)) for split in range(splits))
