"""The socket of a running job, and the directory in which it is found."""

from __future__ import annotations

import logging
import os
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.unit.remote.fake import FakeJob

from penstock.remote import messages as wire
from penstock.remote import registry, server
from penstock.remote.client import CommandError, ask, find
from penstock.remote.handling import Handler
from penstock.remote.server import Door, open_door

OpenJob = Callable[..., tuple[FakeJob, Door]]


def test_a_running_job_is_found_by_its_name_and_by_its_directory(open_job: OpenJob, tmp_path: Path) -> None:
    _, door = open_job("orders", str(tmp_path))
    assert find("orders") == find(str(tmp_path)) == find(f"{tmp_path}/") == door.running
    assert (door.running.pid, door.running.directory) == (os.getpid(), str(tmp_path))


def test_a_relative_path_names_the_directory_too(
    open_job: OpenJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, door = open_job("orders", str(tmp_path / "checkpoints"))
    monkeypatch.chdir(tmp_path)
    assert find("checkpoints") == door.running


def test_a_job_that_does_not_run_is_refused_with_those_that_do(open_job: OpenJob) -> None:
    with pytest.raises(CommandError, match="no job of this user runs here") as none:
        find("orders")
    open_job("payments", "/data/payments")
    with pytest.raises(
        CommandError, match=r"no job 'orders' .* running are: 'payments' \(process \d+, /data/payments\)"
    ):
        find("orders")
    assert none.value.kind == "no_such_job"


def test_a_name_that_several_jobs_have_is_refused_with_their_directories(open_job: OpenJob) -> None:
    open_job("orders", "/data/one")
    _, second = open_job("orders", "/data/two")
    with pytest.raises(CommandError, match=r"/data/one.*/data/two") as several:
        find("orders")
    assert several.value.kind == "ambiguous"
    assert find("/data/two") == second.running


def test_a_job_answers_and_one_that_refuses_says_why(open_job: OpenJob) -> None:
    job, door = open_job()
    assert ask(door.running, wire.TakeSavepoint("/saved")) == wire.CheckpointTaken(4)
    job.refuses = RuntimeError("expired: it took too long")
    with pytest.raises(CommandError, match="it took too long") as refused:
        ask(door.running, wire.TakeCheckpoint())
    assert refused.value.kind == "RuntimeError"


def test_a_long_request_does_not_keep_others_waiting(open_job: OpenJob) -> None:
    job, door = open_job()
    job.may_answer.clear()
    with ThreadPoolExecutor() as pool:
        long = pool.submit(ask, door.running, wire.Rescale(3))
        assert job.was_asked.wait(30)
        assert isinstance(ask(door.running, wire.Describe()), wire.JobView)
        assert not long.done()
        job.may_answer.set()
        assert long.result(30) == wire.Rescaled(3, 4, 0.25)


def test_a_request_under_way_is_answered_before_the_door_is_closed(open_job: OpenJob) -> None:
    """Whoever stops a job hears how that went, though the driver's process ends at once."""
    job, door = open_job()
    job.may_answer.clear()
    with ThreadPoolExecutor() as pool:
        stopping = pool.submit(ask, door.running, wire.Stop())
        assert job.was_asked.wait(30)
        closing = pool.submit(door.close)
        job.may_answer.set()
        closing.result(30)
        assert stopping.result(30) == wire.Ended("finished", 3.5, 1, 4, 5)


def test_a_job_that_has_ended_is_not_found_and_leaves_nothing(open_job: OpenJob, place: Path) -> None:
    _, door = open_job()
    door.close()
    assert registry.running_jobs() == [] and list(place.iterdir()) == []
    with pytest.raises(CommandError, match="has ended meanwhile") as ended:
        ask(door.running, wire.Describe())
    assert ended.value.kind == "job_ended"


def test_a_job_that_dies_before_it_answers_is_told_as_such(place: Path) -> None:
    place.mkdir()
    path = str(place / "1-1.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def die() -> None:
            listener.accept()[0].close()

        killed = threading.Thread(target=die)
        killed.start()
        with pytest.raises(CommandError, match="before it answered"):
            ask(registry.Running("orders", None, 1, 0, path), wire.Describe())
        killed.join()


def test_what_a_killed_process_left_behind_is_removed(place: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from penstock.remote import registry; registry.places = lambda: [Path(sys.argv[1])]\n"
        "from penstock.remote.server import Door\n"
        "door = Door('orders', None, None); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(place)], check=False)
    assert len(list(place.iterdir())) == 2
    assert registry.running_jobs() == []
    assert list(place.iterdir()) == []


def test_nobody_else_may_enter_the_place(open_job: OpenJob, place: Path) -> None:
    open_job()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_a_place_that_others_may_enter_is_used_neither_to_listen_nor_to_ask(
    open_job: OpenJob, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, door = open_job()
    place.chmod(0o755)
    assert registry.running_jobs() == []
    with caplog.at_level(logging.WARNING):
        assert open_door("payments", None, Handler(FakeJob())) is None
    assert "cannot be reached by commands" in caplog.text and "mode 700" in caplog.text
    place.chmod(0o700)
    assert registry.running_jobs() == [door.running]


def test_a_request_of_another_user_is_not_read(
    open_job: OpenJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job, door = open_job()
    monkeypatch.setattr(server, "peer_user", lambda connection: os.getuid() + 1)
    with caplog.at_level(logging.WARNING), pytest.raises(CommandError, match="before it answered"):
        ask(door.running, wire.TakeCheckpoint())
    assert job.asked == [] and "refused a request of user" in caplog.text


def test_the_kernel_says_who_asks() -> None:
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        assert server.peer_user(here) == os.getuid()


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack("<I", 1 << 30),
        struct.pack("<I", 3) + b"abc",
        struct.pack("<I", 17) + b"\x81\xa4type\xaaExecuteAny",
        b"",
    ],
    ids=["too long", "garbage", "an unknown request", "nothing"],
)
def test_what_is_no_request_is_refused_and_the_door_stays_open(open_job: OpenJob, sent: bytes) -> None:
    job, door = open_job()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(30)
        stranger.connect(door.running.socket)
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: stranger.recv(1 << 16), b""))
    assert not sent or b"does not understand the request" in answer
    assert job.asked == []
    assert isinstance(ask(door.running, wire.Describe()), wire.JobView)


def test_a_path_that_is_too_long_for_a_socket_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "places", lambda: [tmp_path / ("x" * 100)])
    with pytest.raises(OSError, match="too long for a socket's path: set XDG_RUNTIME_DIR"):
        Door("orders", None, Handler(FakeJob()))


def test_jobs_are_looked_for_in_the_runtime_directory_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    first, *rest = registry.places()
    assert first == tmp_path / "penstock" and Path(f"/tmp/penstock-{os.getuid()}") in rest
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert registry.places() == rest


def test_asking_loads_nothing_heavy() -> None:
    code = "import sys, penstock.cli, penstock.remote.client, penstock.remote.history\n"
    code += "assert not {'numba', 'numpy', 'polars', 'pyarrow', 'pyspark'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
