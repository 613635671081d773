"""Strangers at the door: attacks on a real listener on the loopback interface."""

from __future__ import annotations

import logging
import queue
import socket
from collections.abc import Callable, Iterator

import pytest

from penstock.core.ids import Attempt, WorkerId
from penstock.runtime.network.acceptor import Acceptor, listen_tcp
from penstock.runtime.network.dialling import Dialler
from penstock.runtime.network.handshake import HandshakeError, Hello, Role

SECRET = b"k" * 32
Admitted = queue.SimpleQueue[tuple[Hello, socket.socket]]


class Guarded:
    """A listener with its acceptor and what it admitted."""

    def __init__(self, **options: float):
        listener = listen_tcp("127.0.0.1")
        self.port = listener.getsockname()[1]
        self.admitted: Admitted = queue.SimpleQueue()
        self.acceptor = Acceptor([listener], SECRET, lambda *peer: self.admitted.put(peer), **options)  # type: ignore[arg-type]
        self.acceptor.start()

    def stranger(self, says: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), 10)
        connection.sendall(says)
        return connection

    def admits(self, worker: str = "w1") -> bool:
        connection = Dialler(WorkerId(worker), SECRET).tcp("127.0.0.1", self.port, Role.DATA, Attempt(1))
        hello, accepted = self.admitted.get(timeout=10)
        connection.close()
        accepted.close()
        return hello.worker == worker


@pytest.fixture
def guarded() -> Iterator[Callable[..., Guarded]]:
    made: list[Guarded] = []

    def make(**options: float) -> Guarded:
        made.append(Guarded(**options))
        return made[-1]

    yield make
    for one in made:
        one.acceptor.close()


def is_closed(connection: socket.socket) -> bool:
    """Waits until the other side has closed; anything it says before is an answer to a stranger."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    finally:
        connection.close()


def test_a_worker_with_the_secret_is_admitted(guarded: Callable[..., Guarded]) -> None:
    assert guarded().admits("w7")


def test_a_wrong_secret_is_refused_and_logged(
    guarded: Callable[..., Guarded], caplog: pytest.LogCaptureFixture
) -> None:
    door = guarded()
    with caplog.at_level(logging.WARNING), pytest.raises(HandshakeError, match="is the secret right"):
        Dialler(WorkerId("w1"), b"x" * 32).tcp("127.0.0.1", door.port, Role.DATA, Attempt(1))
    assert door.admits()
    assert "does not know the job's secret" in caplog.text


def test_garbage_is_refused_and_the_next_worker_is_admitted(guarded: Callable[..., Guarded]) -> None:
    door = guarded()
    assert is_closed(door.stranger(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n"))
    assert door.admits()


def test_a_port_scan_disturbs_nobody(guarded: Callable[..., Guarded]) -> None:
    door = guarded()
    for _ in range(200):
        door.stranger().close()
    assert door.admits()


def test_a_stranger_that_says_nothing_is_closed_after_its_time(guarded: Callable[..., Guarded]) -> None:
    assert is_closed(guarded(patience=0.05).stranger())


def test_a_stranger_that_stops_in_the_middle_is_closed_after_its_time(guarded: Callable[..., Guarded]) -> None:
    assert is_closed(guarded(patience=0.05).stranger(b"PENSTOCK\x01\x00"))


def test_silent_strangers_do_not_keep_a_worker_waiting(guarded: Callable[..., Guarded]) -> None:
    door = guarded(patience=3600.0)
    strangers = [door.stranger(b"PEN") for _ in range(30)]
    assert door.admits()
    for stranger in strangers:
        stranger.close()


def test_a_flood_of_silent_strangers_is_bounded_and_the_oldest_goes_first(guarded: Callable[..., Guarded]) -> None:
    door = guarded(patience=3600.0, maximum_strangers=8)
    oldest = door.stranger()
    others = [door.stranger() for _ in range(8)]
    assert is_closed(oldest)
    assert door.admits()
    for other in others:
        other.close()


def test_closing_the_door_closes_the_strangers_at_it(guarded: Callable[..., Guarded]) -> None:
    door = guarded(patience=3600.0)
    waiting = door.stranger(b"PENSTOCK")
    assert door.admits()
    door.acceptor.close()
    assert is_closed(waiting)
    with pytest.raises(ConnectionError):
        door.stranger()


def test_an_admission_that_raises_does_not_stop_the_door(caplog: pytest.LogCaptureFixture) -> None:
    listener = listen_tcp("127.0.0.1")
    port = listener.getsockname()[1]
    admitted: Admitted = queue.SimpleQueue()

    def admit(hello: Hello, connection: socket.socket) -> None:
        if hello.worker == "bad":
            raise RuntimeError("no room")
        admitted.put((hello, connection))

    acceptor = Acceptor([listener], SECRET, admit)
    acceptor.start()
    try:
        refused = Dialler(WorkerId("bad"), SECRET).tcp("127.0.0.1", port, Role.DATA, Attempt(1))
        assert is_closed(refused)
        Dialler(WorkerId("good"), SECRET).tcp("127.0.0.1", port, Role.DATA, Attempt(1)).close()
        hello, accepted = admitted.get(timeout=10)
        accepted.close()
        assert hello.worker == "good"
    finally:
        acceptor.close()
