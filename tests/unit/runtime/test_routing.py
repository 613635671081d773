"""Routers: where batches go, and how much they can take."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.core.ids import ChainId, ChannelId, EdgeId
from penstock.graph.job import Chain, Edge, JobGraph, Partitioning
from penstock.runtime.outqueue import OutputChannel
from penstock.runtime.routing import Router, router

SCHEMA = pa.schema({"key": pa.int64()})


def _channels(*limits: int) -> list[OutputChannel]:
    channels = [OutputChannel(ChannelId(EdgeId(0), 0, target)) for target in range(len(limits))]
    for channel, limit in zip(channels, limits, strict=True):
        channel.limit = limit
    return channels


def _router(partitioning: Partitioning, channels: list[OutputChannel], subtask: int = 0) -> Router:
    edge = Edge(EdgeId(0), ChainId("a"), ChainId("b"), partitioning, SCHEMA, key=("key",))
    graph = JobGraph("job", (Chain(ChainId("a"), (), 1), Chain(ChainId("b"), (), len(channels))), (edge,))
    return router(graph, edge, channels, subtask)


def _batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(range(rows), pa.int64())})


def _targets(route: Router, rows: int) -> list[int]:
    """Routes a batch as a task does: what a channel gets takes up its room."""
    targets = []
    for channel, share in route(_batch(rows)):
        channel.sent += share.num_rows
        targets.append(channel.id.target)
    return targets


def test_a_rebalance_takes_turns_between_equals() -> None:
    route = _router(Partitioning.REBALANCE, _channels(0, 0, 0), subtask=1)
    assert [_targets(route, 5) for _ in range(4)] == [[1], [2], [0], [1]]


def test_a_rebalance_passes_over_who_has_no_room_while_another_has() -> None:
    route = _router(Partitioning.REBALANCE, _channels(10, 100))
    assert [_targets(route, 30) for _ in range(4)] == [[1], [1], [1], [0]]


def test_a_rebalance_favours_nobody_for_having_more_room_than_needed() -> None:
    route = _router(Partitioning.REBALANCE, _channels(100, 10_000))
    assert [_targets(route, 30) for _ in range(4)] == [[0], [1], [0], [1]]


def test_a_large_batch_is_split_between_all_receivers() -> None:
    route = _router(Partitioning.REBALANCE, _channels(20_000, 20_000))
    assert sorted(_targets(route, 10_000)) == [0, 1]


def test_every_record_of_a_split_batch_goes_out_once() -> None:
    route = _router(Partitioning.REBALANCE, _channels(9_000, 20_000, 5_000))
    routed = sorted(key for _, share in route(_batch(10_001)) for key in share.column("key").to_pylist())
    assert routed == list(range(10_001))


@pytest.mark.parametrize(
    ("partitioning", "room"),
    [(Partitioning.HASH, 130), (Partitioning.BROADCAST, 30), (Partitioning.REBALANCE, 100)],
)
def test_the_room_of_a_router_is_what_it_can_place_without_waiting(partitioning: Partitioning, room: int) -> None:
    assert _router(partitioning, _channels(30, 100)).room == room


def test_a_channel_with_something_waiting_has_no_room() -> None:
    (channel,) = _channels(50)
    channel.queue.append(_batch(1))
    assert channel.room == 0


def test_lingering_rows_take_up_room() -> None:
    (channel,) = _channels(50)
    channel.linger(_batch(20))
    assert channel.room == 30
