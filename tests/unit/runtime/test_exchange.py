"""Two workers exchange elements and grants over real sockets; the tasks behind the mailboxes are queues."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.core.barrier import Barrier, Mode
from penstock.core.ids import Attempt, ChainId, ChannelId, CheckpointId, EdgeId, SubtaskId, Uid, WorkerId
from penstock.graph.job import Chain, Edge, JobGraph, OperatorSpec, Partitioning
from penstock.operators.base import Operator
from penstock.runtime.control.messages import Address
from penstock.runtime.elements import Element, EndOfChannel, Watermark
from penstock.runtime.network.dialling import Dialler
from penstock.runtime.network.door import Door
from penstock.runtime.network.exchange import Exchange
from penstock.runtime.network.handshake import Role
from penstock.runtime.network.streams import open_stream
from penstock.runtime.ports import Arrived, Granted, Note

SECRET = b"k" * 32
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
SOURCE, TARGET = ChainId("source"), ChainId("target")
GRAPH = JobGraph(
    "job",
    (
        Chain(SOURCE, (OperatorSpec(Uid("source"), "source", Operator, SCHEMA),), 2),
        Chain(TARGET, (OperatorSpec(Uid("target"), "target", Operator, None),), 2),
    ),
    (Edge(EdgeId(0), SOURCE, TARGET, Partitioning.REBALANCE, SCHEMA),),
)
WORKERS = (WorkerId("w0"), WorkerId("w1"))
LOCATIONS = {SubtaskId(chain, index): WORKERS[index] for chain in (SOURCE, TARGET) for index in (0, 1)}


def batch(start: int, rows: int) -> pa.RecordBatch:
    numbers = range(start, start + rows)
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array([str(n) for n in numbers])], schema=SCHEMA)


class Side:
    """One worker: its door, its exchange of one attempt and the mailboxes of its two tasks."""

    def __init__(self, index: int):
        self.worker = WORKERS[index]
        self.index = index
        self.door = Door("127.0.0.1", SECRET)
        self.boxes: dict[ChainId, queue.SimpleQueue[Note]] = {c: queue.SimpleQueue() for c in (SOURCE, TARGET)}
        self.connected = threading.Event()
        self.broken: queue.SimpleQueue[tuple[WorkerId, str]] = queue.SimpleQueue()
        self.exchange: Exchange

    def deploy(self, peers: dict[WorkerId, Address], host_key: str, attempt: int = 1) -> None:
        self.exchange = Exchange(
            graph=GRAPH,
            attempt=Attempt(attempt),
            dialler=Dialler(self.worker, SECRET),
            host_key=host_key,
            locations=LOCATIONS,
            peers=peers,
            mailboxes={SubtaskId(chain, self.index): box.put for chain, box in self.boxes.items()},
            connected=self.connected.set,
            broken=lambda worker, reason: self.broken.put((worker, reason)),
        )
        self.door.open(self.exchange)
        self.exchange.start()

    def next(self, chain: ChainId) -> Note:
        return self.boxes[chain].get(timeout=10)

    def close(self) -> None:
        self.exchange.close()
        self.door.close()


def channel(source: int, target: int) -> ChannelId:
    return ChannelId(EdgeId(0), source, target)


@pytest.fixture(params=["unix", "tcp"])
def sides(request: pytest.FixtureRequest) -> Iterator[tuple[Side, Side]]:
    pair = (Side(0), Side(1))
    peers = {side.worker: side.door.address for side in pair}
    for side in pair:
        side.deploy(peers, side.door.address.host_key if request.param == "unix" else "another host")
    for side in pair:
        assert side.connected.wait(10)
    yield pair
    for side in pair:
        side.close()
    assert not [t.name for t in threading.enumerate() if t.name.startswith(("attempt", "data acceptor"))]


def test_elements_arrive_in_the_order_of_their_channel(sides: tuple[Side, Side]) -> None:
    sender, receiver = sides
    sent: list[Element] = [
        batch(0, 1000),
        Watermark(7),
        batch(1000, 1),
        Barrier(CheckpointId(1), Mode.ALIGNED),
        EndOfChannel(),
    ]
    for element in sent:
        sender.exchange.send(channel(0, 1), element)
    sender.exchange.flush()
    assert [receiver.next(TARGET) for _ in sent] == [Arrived(channel(0, 1), element) for element in sent]


def test_a_channel_within_the_process_touches_no_socket(sides: tuple[Side, Side]) -> None:
    sender, _ = sides
    whole = batch(0, 10)
    sender.exchange.send(channel(0, 0), whole)
    arrived = sender.next(TARGET)
    assert isinstance(arrived, Arrived)
    assert arrived.element is whole
    sender.exchange.grant(channel(0, 0), 5)
    assert sender.next(SOURCE) == Granted(channel(0, 0), 5)


def test_grants_travel_back_to_the_sender(sides: tuple[Side, Side]) -> None:
    sender, receiver = sides
    receiver.exchange.grant(channel(0, 1), 16_384)
    receiver.exchange.grant(channel(0, 1), (1 << 62))
    receiver.exchange.flush()
    assert sender.next(SOURCE) == Granted(channel(0, 1), 16_384)
    assert sender.next(SOURCE) == Granted(channel(0, 1), 1 << 62)


def test_a_batch_larger_than_any_socket_buffer_arrives_whole(sides: tuple[Side, Side]) -> None:
    sender, receiver = sides
    large = pa.record_batch([pa.array(range(400_000), pa.int64()), pa.array(["some text"] * 400_000)], schema=SCHEMA)
    for _ in range(4):
        sender.exchange.send(channel(0, 1), large)
    assert all(receiver.next(TARGET) == Arrived(channel(0, 1), large) for _ in range(4))


def test_thousands_of_small_elements_arrive_in_order(sides: tuple[Side, Side]) -> None:
    sender, receiver = sides
    for time in range(5000):
        sender.exchange.send(channel(0, 1), Watermark(time))
        if time % 8 == 7:
            sender.exchange.flush()
    assert [receiver.next(TARGET) for _ in range(5000)] == [Arrived(channel(0, 1), Watermark(t)) for t in range(5000)]


def test_sending_does_not_block_while_the_receiver_reads_nothing() -> None:
    """The grants bound what a task sends; the transport itself must take anything at any time."""
    sender = Side(0)
    listener = socket.create_server(("127.0.0.1", 0))
    nobody = Address("127.0.0.1", listener.getsockname()[1], "", "")
    sender.deploy({WORKERS[0]: sender.door.address, WORKERS[1]: nobody}, "here")
    for _ in range(50):
        sender.exchange.send(channel(0, 1), batch(0, 10_000))
    assert not sender.connected.is_set()
    listener.close()
    sender.close()


def test_the_death_of_a_peer_is_noticed_on_both_links(sides: tuple[Side, Side]) -> None:
    survivor, victim = sides
    victim.exchange.close()
    assert {survivor.broken.get(timeout=10)[0] for _ in range(2)} == {victim.worker}
    assert victim.broken.empty()


def test_a_peer_that_is_gone_when_we_connect_is_reported() -> None:
    port = socket.create_server(("127.0.0.1", 0))
    gone = Address("127.0.0.1", port.getsockname()[1], "", "")
    port.close()
    side = Side(0)
    side.deploy({WORKERS[0]: side.door.address, WORKERS[1]: gone}, "here")
    worker, reason = side.broken.get(timeout=10)
    assert worker == WORKERS[1]
    assert "cannot connect to 127.0.0.1" in reason
    side.close()


def dial(door: Door, attempt: int, worker: WorkerId = WORKERS[1]) -> socket.socket:
    connected = Dialler(worker, SECRET).tcp(door.address.host, door.address.port, Role.DATA, Attempt(attempt))
    connected.settimeout(10)
    return connected


def test_a_connection_of_an_older_attempt_is_refused(sides: tuple[Side, Side]) -> None:
    stale = dial(sides[0].door, attempt=0)
    assert stale.recv(1) == b""
    stale.close()


def test_a_second_connection_of_the_same_worker_is_refused(sides: tuple[Side, Side]) -> None:
    second = dial(sides[0].door, attempt=1)
    assert second.recv(1) == b""
    second.close()


def test_a_peer_that_is_ahead_waits_until_our_deployment_comes() -> None:
    early, late = Side(0), Side(1)
    peers = {side.worker: side.door.address for side in (early, late)}
    early.deploy(peers, "", attempt=4)
    early.exchange.send(channel(0, 1), Watermark(1))
    late.deploy(peers, "", attempt=4)
    assert late.next(TARGET) == Arrived(channel(0, 1), Watermark(1))
    early.close()
    late.close()


def test_an_element_for_a_channel_that_does_not_end_here_breaks_the_link() -> None:
    side = Side(0)
    side.deploy({WORKERS[0]: side.door.address, WORKERS[1]: side.door.address}, "", attempt=1)
    liar = open_stream(dial(side.door, attempt=1))
    liar.send([(0).to_bytes(4, "little") + (1).to_bytes(4, "little") * 2 + bytes(4), b"PE\x05" + bytes(13)])
    reasons = [side.broken.get(timeout=10)[1] for _ in range(2)]
    assert any("does not end here" in reason for reason in reasons), reasons
    liar.close()
    liar.release()
    side.close()
