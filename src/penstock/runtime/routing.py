"""How the records of an output edge find their channel: one small router for each kind of partitioning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import pyarrow as pa

from penstock.graph.job import Edge, JobGraph, Partitioning
from penstock.runtime.outqueue import OutputChannel

Router = Callable[[pa.RecordBatch], Iterator[tuple[OutputChannel, pa.RecordBatch]]]

_SPLIT_FROM = 8192
"""A batch of so many rows is split evenly by a rebalance, so that no receiver waits while another has a whole batch."""


def router(graph: JobGraph, edge: Edge, channels: Sequence[OutputChannel], subtask: int) -> Router:
    """`channels` are the subtask's own along this edge, in the order of their targets."""
    if edge.partitioning is Partitioning.BROADCAST:
        return lambda batch: ((channel, batch) for channel in channels)
    if len(channels) == 1:
        only = channels[0]
        return lambda batch: iter(((only, batch),))
    if edge.partitioning is Partitioning.HASH:
        return _by_key(channels, edge.key, graph.key_groups)
    return _Rebalance(channels, subtask)


def _by_key(channels: Sequence[OutputChannel], key: tuple[str, ...], key_groups: int) -> Router:
    # Imported only by tasks that have a keyed exchange: the kernels take long to load.
    from penstock.kernels.partition import partition

    def route(batch: pa.RecordBatch) -> Iterator[tuple[OutputChannel, pa.RecordBatch]]:
        for channel, share in zip(channels, partition(batch, key, key_groups, len(channels)), strict=True):
            if share is not None:
                yield channel, share

    return route


class _Rebalance:
    """Round robin; every sender begins at another receiver, so that few small batches do not all meet at the first
    one."""

    def __init__(self, channels: Sequence[OutputChannel], subtask: int) -> None:
        self._channels = channels
        self._turn = subtask % len(channels)

    def __call__(self, batch: pa.RecordBatch) -> Iterator[tuple[OutputChannel, pa.RecordBatch]]:
        rows = batch.num_rows
        if rows < _SPLIT_FROM:
            yield self._next(), batch
            return
        parts = len(self._channels)
        bounds = [rows * part // parts for part in range(parts + 1)]
        for start, end in pairwise(bounds):
            yield self._next(), batch.slice(start, end - start)

    def _next(self) -> OutputChannel:
        channel = self._channels[self._turn]
        self._turn = (self._turn + 1) % len(self._channels)
        return channel
