"""Master and workers talk over real connections; a loss is noticed by the end of the connection or by silence."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

import pytest

from penstock.core.ids import Attempt, ChainId, SubtaskId, WorkerId
from penstock.core.settings import RuntimeSettings
from penstock.runtime.control import framing
from penstock.runtime.control.client import NO_ATTEMPT, ControlClient
from penstock.runtime.control.messages import Address, Finished, Ready, Register, Reset, Shutdown, ToMaster, ToWorker
from penstock.runtime.control.server import ControlServer
from penstock.runtime.network.dialling import Dialler
from penstock.runtime.network.errors import WireError
from penstock.runtime.network.handshake import Role
from penstock.runtime.network.streams import Stream, open_stream

SECRET = b"k" * 32
SUBTASK = SubtaskId(ChainId("sums"), 0)
ADDRESS = Address("127.0.0.1", 1, "", "")


class Master:
    """A server whose events are kept in order."""

    def __init__(self, settings: RuntimeSettings):
        self.events: queue.SimpleQueue[tuple[str, WorkerId, object]] = queue.SimpleQueue()
        self.server = ControlServer("127.0.0.1", SECRET, self, settings)
        self.server.start()

    def registered(self, worker: WorkerId, message: Register) -> None:
        self.events.put(("registered", worker, message))

    def received(self, worker: WorkerId, message: ToMaster) -> None:
        self.events.put(("received", worker, message))

    def lost(self, worker: WorkerId, reason: str) -> None:
        self.events.put(("lost", worker, reason))

    def next(self) -> tuple[str, WorkerId, object]:
        return self.events.get(timeout=10)


class Worker:
    def __init__(self, name: str, master: Master, settings: RuntimeSettings):
        self.name = WorkerId(name)
        self.inbox: queue.SimpleQueue[ToWorker | str] = queue.SimpleQueue()
        dialler = Dialler(self.name, SECRET)
        self.client = ControlClient(
            dialler, "127.0.0.1", master.server.port, settings, received=self.inbox.put, lost=self.inbox.put
        )

    def register(self) -> None:
        self.client.send(register_as(self.name))

    def next(self) -> ToWorker | str:
        return self.inbox.get(timeout=10)


def register_as(worker: str) -> Register:
    return Register(WorkerId(worker), 1234, ADDRESS, 1)


@pytest.fixture
def master() -> Iterator[Master]:
    made = Master(RuntimeSettings())
    yield made
    made.server.close()


@pytest.fixture
def worker(master: Master) -> Iterator[Worker]:
    made = Worker("w1", master, RuntimeSettings())
    yield made
    made.client.close()


@pytest.fixture
def raw(master: Master) -> Iterator[Callable[[], Stream]]:
    """An authenticated connection of worker `raw` on which a test can say what it likes."""
    made: list[Stream] = []

    def connect() -> Stream:
        dialler = Dialler(WorkerId("raw"), SECRET)
        made.append(open_stream(dialler.tcp("127.0.0.1", master.server.port, Role.CONTROL, NO_ATTEMPT), 10))
        return made[-1]

    yield connect
    for stream in made:
        stream.close()
        stream.release()


def test_messages_travel_both_ways_in_order(master: Master, worker: Worker) -> None:
    worker.register()
    worker.client.send(Finished(Attempt(3), SUBTASK))
    worker.client.send(Ready(Attempt(3)))
    assert master.next() == ("registered", "w1", register_as("w1"))
    assert master.next() == ("received", "w1", Finished(Attempt(3), SUBTASK))
    assert master.next() == ("received", "w1", Ready(Attempt(3)))
    master.server.send(WorkerId("w1"), Reset(Attempt(3)))
    master.server.send(WorkerId("w1"), Shutdown("done"))
    assert [worker.next(), worker.next()] == [Reset(Attempt(3)), Shutdown("done")]


def test_a_worker_that_ends_is_lost_at_once(master: Master, worker: Worker) -> None:
    worker.register()
    assert master.next()[0] == "registered"
    worker.client.close()
    event, name, reason = master.next()
    assert (event, name) == ("lost", "w1")
    assert "closed the connection" in str(reason)


def test_a_worker_learns_that_the_master_is_gone(master: Master, worker: Worker) -> None:
    worker.register()
    assert master.next()[0] == "registered"
    master.server.disconnect(WorkerId("w1"))
    assert "closed the connection" in str(worker.next())
    assert master.events.empty()


def test_what_was_sent_before_the_server_closes_still_arrives(master: Master, worker: Worker) -> None:
    worker.register()
    assert master.next()[0] == "registered"
    for attempt in range(100):
        master.server.send(WorkerId("w1"), Reset(Attempt(attempt)))
    master.server.close()
    assert [worker.next() for _ in range(100)] == [Reset(Attempt(attempt)) for attempt in range(100)]


def test_a_silent_worker_is_lost_after_the_heartbeat_timeout() -> None:
    master = Master(RuntimeSettings(heartbeat_timeout=0.05))
    silent = Dialler(WorkerId("w1"), SECRET).tcp("127.0.0.1", master.server.port, Role.CONTROL, NO_ATTEMPT)
    event, name, reason = master.next()
    assert (event, name) == ("lost", "w1")
    assert "timed out" in str(reason)
    silent.close()
    master.server.close()


def test_heartbeats_keep_a_quiet_worker_and_a_quiet_master() -> None:
    settings = RuntimeSettings(heartbeat_every=0.01, heartbeat_timeout=1.0)
    master = Master(settings)
    stream = open_stream(
        Dialler(WorkerId("w1"), SECRET).tcp("127.0.0.1", master.server.port, Role.CONTROL, NO_ATTEMPT), 10
    )
    reader: framing.MessageReader[ToWorker] = framing.MessageReader(ToWorker)
    stream.send(framing.framed(framing.HEARTBEAT))
    assert [reader.read(stream) for _ in range(5)] == [None] * 5
    assert master.events.empty()
    stream.close()
    stream.release()
    master.server.close()


def test_a_worker_may_not_register_as_another(master: Master, raw: Callable[[], Stream]) -> None:
    raw().send(framing.framed(framing.encode(register_as("victim"))))
    event, name, reason = master.next()
    assert (event, name) == ("lost", "raw")
    assert "tried to register as victim" in str(reason)


def test_a_message_before_the_registration_is_refused(master: Master, raw: Callable[[], Stream]) -> None:
    raw().send(framing.framed(framing.encode(Ready(Attempt(1)))))
    assert master.next()[0] == "lost"


def test_an_oversized_announcement_ends_the_connection_before_anything_is_allocated(
    master: Master, raw: Callable[[], Stream]
) -> None:
    raw().send([(0xFFFFFFFF).to_bytes(4, "little")])
    assert "exceeds the limit" in str(master.next()[2])


def test_a_message_that_is_none_ends_the_connection(master: Master, raw: Callable[[], Stream]) -> None:
    raw().send(framing.framed(b"\x93\xa4Boom\x01\x02"))
    assert "not one of Acknowledge, Decline" in str(master.next()[2])


def test_a_second_connection_of_the_same_worker_is_refused(master: Master, worker: Worker) -> None:
    worker.register()
    assert master.next()[0] == "registered"
    second = Worker("w1", master, RuntimeSettings())
    assert "closed the connection" in str(second.next())
    second.client.close()
    assert master.events.empty()


def test_a_message_too_large_to_send_is_refused_where_it_is_made() -> None:
    with pytest.raises(WireError, match="exceeds the"):
        framing.encode(Shutdown("x" * (framing.MAX_MESSAGE + 1)))
