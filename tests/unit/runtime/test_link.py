"""A link sends small messages past its writing thread, and never past what was posted before them."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Iterator, Sequence

import pytest

from penstock.runtime.network.link import Link
from penstock.runtime.network.streams import PlainStream, Stream, open_stream
from penstock.state.parts import Buffer

LENGTH = struct.Struct("<I")


def framed(message: bytes) -> Sequence[Buffer]:
    return (LENGTH.pack(len(message)), message)


class Ends:
    """A link and what comes out at the other end."""

    def __init__(self, silence: float | None, heartbeat: tuple[float, bytes] | None = None) -> None:
        ours, theirs = socket.socketpair()
        self.heard: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.broken: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.stand = threading.Event()
        self.link = self._link("sender", heartbeat)
        self.peer = self._link("receiver", None)
        self._ours, self._theirs, self._silence = ours, theirs, silence

    def _link(self, name: str, heartbeat: tuple[float, bytes] | None) -> Link[bytes]:
        return Link(
            name,
            encode=framed,
            read_one=self._read,
            connected=self.stand.set,
            broken=self.broken.put,
            heartbeat=heartbeat,
        )

    def connect(self) -> None:
        self.link.start(lambda: open_stream(self._ours, self._silence))
        assert self.stand.wait(10)

    def listen(self) -> None:
        self.peer.start(lambda: open_stream(self._theirs))

    def _read(self, stream: Stream) -> None:
        length = memoryview(bytearray(LENGTH.size))
        stream.read_into(length)
        body = bytearray(*LENGTH.unpack(length))
        stream.read_into(memoryview(body))
        self.heard.put(bytes(body))

    def close(self) -> None:
        self.link.close()
        self.peer.close()
        self._ours.close()
        self._theirs.close()


@pytest.fixture(params=[None, 10.0])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    made = Ends(request.param)
    yield made
    made.close()


def test_messages_of_all_sizes_arrive_in_order_though_the_network_takes_only_some_at_once(ends: Ends) -> None:
    """Nobody reads at first, so the socket is full soon and the writer has to go on with what was begun."""
    messages = [bytes([number % 256]) * (number * 997 % 40_000) for number in range(600)]
    for message in messages[:100]:
        ends.link.send(message)
    ends.connect()
    for number, message in enumerate(messages[100:400]):
        (ends.link.send, ends.link.post, ends.link.leave)[number % 3](message)
    ends.listen()
    for message in messages[400:]:
        ends.link.send(message)
    assert [ends.heard.get(timeout=10) for _ in messages] == messages


def test_messages_that_nothing_waits_before_need_no_writer(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Sequence[Buffer]] = []
    send = PlainStream.send

    def counted(stream: PlainStream, buffers: Sequence[Buffer]) -> None:
        written.append(buffers)
        send(stream, buffers)

    monkeypatch.setattr(PlainStream, "send", counted)
    ends.connect()
    ends.listen()
    for _ in range(50):
        ends.link.send(b"at once")
        assert ends.heard.get(timeout=10) == b"at once"
    assert len(written) < 5, "the writer may have been about to fall asleep when the first came"


def test_what_is_left_goes_with_the_next_flush(ends: Ends) -> None:
    ends.connect()
    ends.listen()
    for message in (b"one", b"two"):
        ends.link.leave(message)
    ends.link.flush()
    assert [ends.heard.get(timeout=10) for _ in range(2)] == [b"one", b"two"]


def test_several_threads_do_not_tear_each_others_messages_apart(ends: Ends) -> None:
    ends.connect()
    ends.listen()

    def post(name: int) -> None:
        for number in range(200):
            ends.link.send(bytes([name]) * (1 + number * 37))

    threads = [threading.Thread(target=post, args=[name]) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    heard = [ends.heard.get(timeout=10) for _ in range(600)]
    for name in range(3):
        assert [len(one) for one in heard if one[0] == name] == [1 + number * 37 for number in range(200)]
    assert all(len(set(one)) == 1 for one in heard)


def test_a_peer_that_is_gone_breaks_the_link_once(ends: Ends) -> None:
    ends.connect()
    ends.listen()
    ends.link.send(b"hello")
    assert ends.heard.get(timeout=10) == b"hello"
    ends.peer.close()
    assert ends.broken.get(timeout=10)
    ends.link.send(b"to nobody")
    assert ends.broken.empty()


def test_a_quiet_link_sends_heartbeats() -> None:
    ends = Ends(None, heartbeat=(0.01, b""))
    ends.connect()
    ends.listen()
    assert [ends.heard.get(timeout=10) for _ in range(3)] == [b"", b"", b""]
    ends.close()
