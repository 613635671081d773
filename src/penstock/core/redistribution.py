"""Records in flight when a job is restored: which channel, or which new receiver, replays them.

Theory of operation
-------------------
An edge whose two chains have the parallelism that they had, with the same keys for each subtask, at the same place of
the graph, has the same channels: stored input goes back into the input queues, stored output into the output queues.

Any other edge is *reshaped*: its channels are others. Its records, whether its senders or its receivers stored them,
are replayed by its receivers before any new input, through one *recovered* channel for each edge. Who replays a former
channel's records follows from how the edge distributes them:

- by hash: every new receiver whose key groups overlap those of the former receiver, each the rows of its own keys;
- forward or rebalance: one new receiver, the former receivers being dealt out in turn;
- broadcast: a new receiver continues one former receiver, whose copy of the broadcast state it also gets, and
  replays what that one had not seen. The same goes for a forward edge on which all that travels was broadcast before:
  its channels carry copies.

Of one former channel, recovered records come first (they had been in flight before), then the receiver's, then the
sender's: so the order of the channel is kept. What a new receiver has not replayed at its next checkpoint is stored
again as input of its recovered channel (`ids.RECOVERED`).

Watermarks and idle marks in flight are dropped: the senders say theirs anew, from the lowest of what their former
selves knew. So are ends of data, which senders that had drained repeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from penstock.core.handles import PartHandle, PartKind
from penstock.core.ids import RECOVERED, ChainId, ChannelId, EdgeId, SubtaskId
from penstock.core.keygroups import range_of
from penstock.core.record import CheckpointRecord, EdgeRecord, GraphRecord

Written = tuple[int, PartHandle]
"""With the index of the subtask that wrote it."""

_BY_CHANNEL = ("forward", "rebalance")
"""Whole batches one after another; which of the two it is follows from the parallelism of both ends."""


def described(edge: EdgeRecord) -> str:
    by = f" by {', '.join(edge.key)}" if edge.key else ""
    return f"{edge.source!r} -> {edge.target!r} ({edge.partitioning}{by}) with columns ({', '.join(edge.columns)})"


def matching_edges(old: GraphRecord, new: GraphRecord) -> dict[int, EdgeId]:
    """The present place of every former edge that is still there."""
    free: dict[EdgeRecord, list[int]] = {}
    for place, edge in enumerate(new.edges):
        free.setdefault(_essence(edge), []).append(place)
    found: dict[int, EdgeId] = {}
    for place, edge in enumerate(old.edges):
        candidates = free.get(_essence(edge))
        if candidates:
            found[place] = EdgeId(candidates.pop(0))
    return found


def _essence(edge: EdgeRecord) -> EdgeRecord:
    """What must be the same for records of the one to be records of the other."""
    way = "by channel" if edge.partitioning in _BY_CHANNEL else edge.partitioning
    return replace(edge, partitioning=way, key=tuple(edge.key), columns=tuple(edge.columns))


class Redistribution:
    """The records in flight of one checkpoint, dealt out to the subtasks of a graph that it fits."""

    def __init__(self, record: CheckpointRecord, graph: GraphRecord, in_flight: Iterable[Written]) -> None:
        self._old, self._graph = record.graph, graph
        self._new_width = {chain.id: chain.parallelism for chain in graph.chains}
        self._old_width = {chain.id: chain.parallelism for chain in record.graph.chains}
        self._finished = {entry.subtask for entry in record.subtasks if entry.finished}
        matching = matching_edges(record.graph, graph)
        same = {new for old, new in matching.items() if old == new and self._same(record.graph, old)}
        self.reshaped = tuple(EdgeId(place) for place in range(len(graph.edges)) if place not in same)
        here, before = _copying(graph), _copying(record.graph)
        self._copying = {new for old, new in matching.items() if new in here and old in before}
        self._kept: dict[SubtaskId, list[Written]] = {}
        self._replayed: dict[ChainId, list[Written]] = {}
        """By the receiving chain, in the order of replay."""
        for writer, handle in in_flight:
            assert handle.channel is not None, f"{handle.name} names no channel"
            self._sort(writer, handle, handle.channel, matching[handle.channel.edge])
        for parts in self._replayed.values():
            parts.sort(key=_order_of_replay)

    def kept(self, subtask: SubtaskId) -> Sequence[Written]:
        """What goes back into the queues of the subtask's channels."""
        return self._kept.get(subtask, ())

    def replays(self, chain: ChainId, index: int) -> Iterator[Written]:
        """What the subtask replays through its recovered channels."""
        for writer, handle in self._replayed.get(chain, ()):
            assert handle.channel is not None
            if handle.channel.target in self._former_receivers(handle.channel.edge, index):
                yield writer, handle

    def _same(self, old: GraphRecord, place: int) -> bool:
        edge = old.edges[place]
        return edge.partitioning == self._graph.edges[place].partitioning and all(
            self._old_width[chain] == self._new_width[chain] and not old.moves_keys(self._old_width[chain])
            for chain in (edge.source, edge.target)
        )

    def _sort(self, writer: int, handle: PartHandle, channel: ChannelId, place: EdgeId) -> None:
        edge = self._graph.edges[place]
        if place in self.reshaped:
            moved = replace(handle, channel=replace(channel, edge=place))
            self._replayed.setdefault(edge.target, []).append((writer, moved))
        elif handle.kind is PartKind.INPUT_CHANNEL:
            self._kept.setdefault(SubtaskId(edge.target, channel.target), []).append((writer, handle))
        else:
            self._kept.setdefault(SubtaskId(edge.source, channel.source), []).append((writer, handle))

    def _former_receivers(self, place: EdgeId, index: int) -> Sequence[int]:
        edge = self._graph.edges[place]
        old, new = self._old_width[edge.target], self._new_width[edge.target]
        if edge.partitioning == "hash":
            own = range_of(self._graph.key_groups, new, index)
            return [t for t in range(old) if self._old.written_range(old, t).overlaps(own)]
        if place in self._copying:
            running = [t for t in range(old) if SubtaskId(edge.target, t) not in self._finished]
            return [index] if index in running else running[:1]
        return range(index, old, new)


def _copying(graph: GraphRecord) -> set[int]:
    """The edges that bring the same records to all of their receivers."""
    found: set[int] = set()
    for chain in graph.chains:  # in topological order
        inputs = [place for place, edge in enumerate(graph.edges) if edge.target == chain.id]
        copies = bool(inputs) and found.issuperset(inputs)
        for place, edge in enumerate(graph.edges):
            if edge.source == chain.id and (
                edge.partitioning == "broadcast" or (copies and edge.partitioning == "forward")
            ):
                found.add(place)
    return found


def _order_of_replay(written: Written) -> tuple[EdgeId, int, int, bool]:
    channel = written[1].channel
    assert channel is not None and RECOVERED < 0
    return channel.edge, channel.target, channel.source, written[1].kind is PartKind.OUTPUT_CHANNEL
