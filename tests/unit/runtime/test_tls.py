"""Connections between machines under TLS: certificates of one authority, both ways, and two threads on one stream."""

from __future__ import annotations

import queue
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.ids import Attempt, WorkerId
from penstock.runtime.network.acceptor import Acceptor, listen_tcp
from penstock.runtime.network.dialling import Dialler
from penstock.runtime.network.handshake import Role
from penstock.runtime.network.streams import Stream, TlsStream, open_stream
from penstock.runtime.network.tls import TlsFiles, client_context, server_context

SECRET = b"k" * 32


def make_files(directory: Path) -> TlsFiles:
    """An authority and one certificate that it has signed."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make certificates with")
    directory.mkdir()

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new_key, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *new_key, "-subj", "/CN=worker", "-keyout", "worker.key", "-out", "worker.csr")
    openssl("x509", "-req", "-in", "worker.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-out", "worker.pem")
    return TlsFiles(*(str(directory / name) for name in ("ca.pem", "worker.pem", "worker.key")))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_files(tmp_path_factory.mktemp("tls") / "ours")


class Listening:
    def __init__(self, files: TlsFiles):
        listener = listen_tcp("127.0.0.1")
        self.port: int = listener.getsockname()[1]
        self.admitted: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self.acceptor = Acceptor(
            [listener], SECRET, lambda _, connection: self.admitted.put(connection), tls=server_context(files)
        )
        self.acceptor.start()

    def dial(self, files: TlsFiles | None) -> socket.socket:
        dialler = Dialler(WorkerId("w1"), SECRET, client_context(files))
        return dialler.tcp("127.0.0.1", self.port, Role.DATA, Attempt(1))


@pytest.fixture
def listening(files: TlsFiles) -> Iterator[Listening]:
    made = Listening(files)
    yield made
    made.acceptor.close()


def test_two_streams_carry_much_in_both_directions_at_once(listening: Listening, files: TlsFiles) -> None:
    near, far = open_stream(listening.dial(files), 30), open_stream(listening.admitted.get(timeout=10), 30)
    assert isinstance(near, TlsStream)
    block = bytes(range(256)) * 4096
    blocks = 16
    received: dict[str, list[bool]] = {"near": [], "far": []}

    def read(name: str, stream: Stream) -> None:
        for _ in range(blocks):
            target = bytearray(len(block))
            stream.read_into(memoryview(target))
            received[name].append(target == block)

    def write(stream: Stream) -> None:
        for _ in range(blocks):
            stream.send([block[:1000], memoryview(block)[1000:]])

    threads = [
        threading.Thread(target=read, args=("near", near)),
        threading.Thread(target=read, args=("far", far)),
        threading.Thread(target=write, args=(near,)),
        threading.Thread(target=write, args=(far,)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert received == {"near": [True] * blocks, "far": [True] * blocks}
    for stream in (near, far):
        stream.close()
        stream.release()


def test_closing_wakes_a_reader_and_the_peer(listening: Listening, files: TlsFiles) -> None:
    near, far = open_stream(listening.dial(files)), open_stream(listening.admitted.get(timeout=10))
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read(name: str, stream: Stream) -> None:
        with pytest.raises((EOFError, OSError)):
            stream.read_into(memoryview(bytearray(1)))
        ends.put(name)

    threads = [threading.Thread(target=read, args=("near", near)), threading.Thread(target=read, args=("far", far))]
    for thread in threads:
        thread.start()
    near.close()
    assert {ends.get(timeout=10), ends.get(timeout=10)} == {"near", "far"}
    for stream, thread in zip((near, far), threads, strict=True):
        thread.join(10)
        stream.release()


def test_a_silent_peer_is_given_up(listening: Listening, files: TlsFiles) -> None:
    near = open_stream(listening.dial(files), 0.05)
    with pytest.raises(TimeoutError):
        near.read_into(memoryview(bytearray(1)))
    near.release()
    listening.admitted.get(timeout=10).close()


def test_a_certificate_of_another_authority_is_refused(listening: Listening, files: TlsFiles, tmp_path: Path) -> None:
    others = make_files(tmp_path / "theirs")
    ours_but_for_the_certificate = TlsFiles(files.authority, others.certificate, others.key)
    with pytest.raises(OSError):
        listening.dial(ours_but_for_the_certificate)
    with pytest.raises(OSError):
        listening.dial(others)
    listening.dial(files).close()
    listening.admitted.get(timeout=10).close()
    assert listening.admitted.empty()


def test_a_worker_without_tls_is_refused(listening: Listening) -> None:
    with pytest.raises(OSError):
        listening.dial(None)
    assert listening.admitted.empty()


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    missing = TlsFiles(*(str(tmp_path / name) for name in ("ca.pem", "worker.pem", "worker.key")))
    with pytest.raises(ValueError, match=r"ca\.pem"):
        server_context(missing)
