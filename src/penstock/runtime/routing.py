"""How the records of an output edge find their channel: one small router for each kind of partitioning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Protocol

import pyarrow as pa

from penstock.graph.job import Combiner, Edge, JobGraph, Partitioning
from penstock.runtime.outqueue import OutputChannel

_SPLIT_FROM = 8192
"""A batch of so many rows is split evenly by a rebalance, so that no receiver waits while another has a whole batch."""


class Router(Protocol):
    @property
    def room(self) -> int:
        """About how many rows it can route without exceeding a grant."""
        ...

    def __call__(self, batch: pa.RecordBatch) -> Iterable[tuple[OutputChannel, pa.RecordBatch]]: ...


def router(graph: JobGraph, edge: Edge, channels: Sequence[OutputChannel], subtask: int) -> Router:
    """`channels` are the subtask's own along this edge, in the order of their targets."""
    plain = _plain_router(graph, edge, channels, subtask)
    return plain if edge.combiner is None else _Combining(plain, edge.combiner())


class _Combining:
    def __init__(self, router: Router, combine: Combiner) -> None:
        self._router, self._combine = router, combine

    @property
    def room(self) -> int:
        return self._router.room

    def __call__(self, batch: pa.RecordBatch) -> Iterable[tuple[OutputChannel, pa.RecordBatch]]:
        return self._router(self._combine(batch))


def _plain_router(graph: JobGraph, edge: Edge, channels: Sequence[OutputChannel], subtask: int) -> Router:
    if edge.partitioning is Partitioning.BROADCAST or len(channels) == 1:
        return _ToAll(channels)
    if edge.partitioning is Partitioning.HASH:
        return _ByKey(channels, edge.key, graph.key_groups)
    return _Rebalance(channels, subtask)


class _ToAll:
    def __init__(self, channels: Sequence[OutputChannel]) -> None:
        self._channels = channels

    @property
    def room(self) -> int:
        return min(channel.room for channel in self._channels)

    def __call__(self, batch: pa.RecordBatch) -> Iterable[tuple[OutputChannel, pa.RecordBatch]]:
        return [(channel, batch) for channel in self._channels]


class _ByKey:
    def __init__(self, channels: Sequence[OutputChannel], key: tuple[str, ...], key_groups: int) -> None:
        # Imported only by tasks that have a keyed exchange: the kernels take long to load.
        from penstock.kernels.partition import partition

        self._channels, self._key, self._key_groups, self._partition = channels, key, key_groups, partition

    @property
    def room(self) -> int:
        """As if the rows were spread evenly, which nobody knows before they are there."""
        return sum(channel.room for channel in self._channels)

    def __call__(self, batch: pa.RecordBatch) -> Iterable[tuple[OutputChannel, pa.RecordBatch]]:
        shares = self._partition(batch, self._key, self._key_groups, len(self._channels))
        return [(c, share) for c, share in zip(self._channels, shares, strict=True) if share is not None]


class _Rebalance:
    """Round robin, passing over receivers that have no room for the batch as long as another has. (The one with the
    most room would not do: who gets more shows a higher rate, is granted more for it, and so gets everything.) Every
    sender begins at another receiver, so that few small batches do not all meet at the first one.
    """

    def __init__(self, channels: Sequence[OutputChannel], subtask: int) -> None:
        self._channels = channels
        self._turn = subtask % len(channels)

    @property
    def room(self) -> int:
        most = max(channel.room for channel in self._channels)
        return most if most < _SPLIT_FROM else sum(channel.room for channel in self._channels)

    def __call__(self, batch: pa.RecordBatch) -> Iterable[tuple[OutputChannel, pa.RecordBatch]]:
        rows = batch.num_rows
        if rows < _SPLIT_FROM:
            yield self._next(rows), batch
            return
        parts = len(self._channels)
        bounds = [rows * part // parts for part in range(parts + 1)]
        for start, end in pairwise(bounds):  # one by one: each part takes up room before the next is placed
            yield self._next(end - start), batch.slice(start, end - start)

    def _next(self, rows: int) -> OutputChannel:
        count = len(self._channels)
        ring = [(self._turn + step) % count for step in range(count)]
        chosen = max(ring, key=lambda place: min(rows, self._channels[place].room))
        self._turn = (chosen + 1) % count
        return self._channels[chosen]
