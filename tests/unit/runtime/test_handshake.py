"""The handshake: both sides prove that they know the secret; whoever does not learns and gets nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import Attempt, WorkerId
from penstock.runtime.network.handshake import ClientHandshake, HandshakeError, Role, ServerHandshake

SECRET = b"s" * 32
CLIENT_NONCE, SERVER_NONCE = b"c" * 32, b"n" * 32


def client(secret: bytes = SECRET, worker: str = "w1", nonce: bytes = CLIENT_NONCE) -> ClientHandshake:
    return ClientHandshake(secret, Role.DATA, WorkerId(worker), Attempt(3), nonce)


def talk(caller: ClientHandshake, callee: ServerHandshake) -> None:
    callee.receive(caller.receive(callee.receive(caller.begin())))


def test_two_who_share_the_secret_recognise_each_other() -> None:
    caller, callee = client(), ServerHandshake(SECRET, SERVER_NONCE)
    caller.receive(callee.receive(caller.receive(callee.receive(caller.begin()))))
    assert caller.done
    assert callee.hello is not None
    assert (callee.hello.worker, callee.hello.role, callee.hello.attempt) == ("w1", Role.DATA, 3)


def test_a_client_with_another_secret_is_refused() -> None:
    callee = ServerHandshake(SECRET, SERVER_NONCE)
    with pytest.raises(HandshakeError, match="secret"):
        talk(client(b"x" * 32), callee)
    assert callee.hello is None


def test_a_client_refuses_a_server_that_cannot_prove_itself() -> None:
    caller, callee = client(), ServerHandshake(SECRET, SERVER_NONCE)
    caller.receive(callee.receive(caller.begin()))
    with pytest.raises(HandshakeError, match="secret"):
        caller.receive(b"\0" * 32)
    assert not caller.done


def test_a_recorded_handshake_cannot_be_replayed() -> None:
    caller, callee = client(), ServerHandshake(SECRET, SERVER_NONCE)
    hello = caller.begin()
    proof = caller.receive(callee.receive(hello))
    callee.receive(proof)
    assert callee.hello is not None

    fresh = ServerHandshake(SECRET, b"m" * 32)
    fresh.receive(hello)
    with pytest.raises(HandshakeError, match="secret"):
        fresh.receive(proof)


def test_a_servers_proof_does_not_serve_as_a_clients() -> None:
    caller, callee = client(), ServerHandshake(SECRET, SERVER_NONCE)
    servers_proof = callee.receive(caller.receive(callee.receive(caller.begin())))
    reflected = ServerHandshake(SECRET, SERVER_NONCE)
    reflected.receive(caller.begin())
    with pytest.raises(HandshakeError, match="secret"):
        reflected.receive(servers_proof)


def test_a_hello_cannot_be_exchanged_under_a_proof() -> None:
    honest, callee = client(worker="w1"), ServerHandshake(SECRET, SERVER_NONCE)
    proof = honest.receive(callee.receive(honest.begin()))
    other = ServerHandshake(SECRET, SERVER_NONCE)
    other.receive(client(worker="w2").begin())
    with pytest.raises(HandshakeError, match="secret"):
        other.receive(proof)


def test_another_version_is_told_what_to_install() -> None:
    hello = bytearray(client().begin())
    hello[8] = 99
    with pytest.raises(HandshakeError, match=r"version 99 .* install the same version"):
        ServerHandshake(SECRET, SERVER_NONCE).receive(bytes(hello))


def test_an_oversized_hello_is_refused_from_its_announcement_alone() -> None:
    announcement = b"PENSTOCK" + (1).to_bytes(2, "little") + (60_000).to_bytes(2, "little")
    with pytest.raises(HandshakeError, match="exceeds the limit"):
        ServerHandshake(SECRET, SERVER_NONCE).receive(announcement)


@given(st.binary(min_size=12, max_size=300))
def test_garbage_is_refused(garbage: bytes) -> None:
    callee = ServerHandshake(SECRET, SERVER_NONCE)
    with pytest.raises(HandshakeError):
        callee.receive(garbage)
    assert callee.hello is None


@given(st.binary(min_size=0, max_size=80))
def test_a_well_framed_hello_of_garbage_is_refused(garbage: bytes) -> None:
    framed = b"PENSTOCK" + (1).to_bytes(2, "little") + len(garbage).to_bytes(2, "little") + garbage
    callee = ServerHandshake(SECRET, SERVER_NONCE)
    with pytest.raises(HandshakeError):
        callee.receive(framed)


@given(st.lists(st.integers(1, 20), min_size=1))
def test_a_handshake_that_trickles_in_is_as_good_as_one_at_once(sizes: list[int]) -> None:
    caller, callee = client(), ServerHandshake(SECRET, SERVER_NONCE)
    message, sizes = caller.begin(), sizes * 400
    for _ in range(2):
        answer = b""
        while message:
            size = min(sizes.pop(), callee.wants)
            answer += callee.receive(message[:size])
            message = message[size:]
        message = caller.receive(answer)
    assert caller.done
