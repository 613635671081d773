"""Local files: what only a real disk has."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.store.samples import JOB, expected, read_all, take

from penstock.core.handles import PartKind
from penstock.core.ids import Uid
from penstock.state.parts import CapturedPart
from penstock.store.checkpoints import CheckpointStore, Fenced
from penstock.store.local import STALE_AFTER, LocalFiles
from penstock.store.parts import write_parts


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(str(tmp_path / "job"))


def on_disk(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_a_job_lives_in_a_directory(files: LocalFiles) -> None:
    store = CheckpointStore(files, JOB)
    store.claim()
    take(store, files, 1, 1)
    again = CheckpointStore(LocalFiles(files._root), JOB).claim()
    assert again.newest is not None
    assert read_all(files, again.newest) == expected(1)


def test_cleaned_checkpoints_leave_no_empty_directories(files: LocalFiles, tmp_path: Path) -> None:
    store = CheckpointStore(files, JOB, keep=1)
    store.claim()
    for number in (1, 2):
        take(store, files, number, 1)
    store.clean()
    assert [path.name for path in (tmp_path / "job" / "checkpoints").iterdir()] == ["2"]


def test_drivers_that_race_for_a_real_directory_leave_one_consistent_history(files: LocalFiles) -> None:
    """Four drivers claim again and again and complete as long as they may; every completion that was confirmed and is
    still retained can be restored, and the log is without holes and rising."""
    start = threading.Barrier(4)
    confirmed: list[int] = []

    def drive() -> None:
        start.wait()
        for _ in range(3):
            store = CheckpointStore(files, JOB, keep=100)
            try:
                claim = store.claim()
                for number in range(claim.next_id, claim.next_id + 2):
                    take(store, files, number, claim.generation)
                    confirmed.append(number)
            except Fenced:
                continue

    with ThreadPoolExecutor(4) as pool:
        for driver in [pool.submit(drive) for _ in range(4)]:
            driver.result()
    store = CheckpointStore(files, JOB, keep=100)
    store.claim()
    assert confirmed, "the last one to claim is disturbed by nobody"
    assert len(set(confirmed)) == len(confirmed)
    assert set(confirmed) <= set(store.completed())
    store.clean()
    for checkpoint in store.completed():
        assert read_all(files, store.load(checkpoint)) == expected(checkpoint)


def killed_in_the_middle(directory: Path, call: str) -> None:
    """A process is killed in the middle of a write."""
    program = textwrap.dedent(
        f"""
        import os, signal
        from penstock.store import direct
        from penstock.store.local import LocalFiles
        def chunks():
            yield b"x" * (direct.STAGE + 1)
            os.kill(os.getpid(), signal.SIGKILL)
        LocalFiles({str(directory)!r}).{call}("checkpoints/1/data", chunks())
        """
    )
    killed = subprocess.run([sys.executable, "-c", program], check=False)
    assert killed.returncode == -signal.SIGKILL


def test_what_a_killed_writer_left_in_place_is_listed_so_that_it_can_be_deleted(tmp_path: Path) -> None:
    killed_in_the_middle(tmp_path, "write_in_place")
    files = LocalFiles(str(tmp_path))
    assert [file.path for file in files.list("")] == ["checkpoints/1/data"]
    files.delete("checkpoints/1/data")
    assert on_disk(tmp_path) == []


def test_what_a_killed_writer_left_behind_is_invisible_and_goes_after_an_hour(tmp_path: Path) -> None:
    """Nothing of it is ever seen."""
    killed_in_the_middle(tmp_path, "write")
    left = on_disk(tmp_path)
    assert len(left) == 1
    written = os.stat(tmp_path / left[0]).st_mtime
    soon = LocalFiles(str(tmp_path), now=lambda: written + STALE_AFTER / 2)
    assert list(soon.list("")) == []
    assert soon.remove_stale("") == 0
    later = LocalFiles(str(tmp_path), now=lambda: written + STALE_AFTER + 1)
    assert later.remove_stale("") == 1
    assert on_disk(tmp_path) == []


def test_temporary_files_of_others_are_ordinary_files(files: LocalFiles) -> None:
    files.write("upload.tmp", [b"a user's"])
    files.write(".hidden", [b"a user's"])
    assert [file.path for file in files.list("")] == [".hidden", "upload.tmp"]


def test_paths_never_leave_the_root(files: LocalFiles) -> None:
    for path in ("../other", "a/../../other", "/etc/passwd", ""):
        with pytest.raises(ValueError, match="no path below"):
            files.read(path)


def test_a_directory_that_cannot_be_made_says_which_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    store = CheckpointStore(LocalFiles(str(tmp_path / "taken" / "job")), JOB)
    with pytest.raises(NotADirectoryError, match=r"cannot .*taken/job.*A part of the path is a file"):
        store.claim()


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_directory_without_permission_says_who_must_have_it(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(PermissionError, match=r"cannot .*closed/job.*must be writable for the user"):
        CheckpointStore(LocalFiles(str(closed / "job")), JOB).claim()


@pytest.fixture
def small_file_limit() -> Iterator[int]:
    """The process may write files of 64 kB only: what a full disk looks like to it, in the middle of a write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, before[1]))
    yield 64 << 10
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_snapshot_that_does_not_fit_fails_with_its_name_and_leaves_nothing(
    files: LocalFiles, tmp_path: Path, small_file_limit: int
) -> None:
    part = CapturedPart("state", PartKind.LIST, lambda: [b"x" * (4 * small_file_limit)])
    with pytest.raises(OSError, match=r"cannot write .*checkpoints/1/g1\.data: File too large.*ulimit") as raised:
        write_parts(files, "checkpoints/1/g1.data", {Uid("total"): [part]})
    assert raised.value.errno is not None
    assert on_disk(tmp_path) == []


def test_a_buffered_write_that_does_not_fit_fails_too(files: LocalFiles, tmp_path: Path, small_file_limit: int) -> None:
    with pytest.raises(OSError, match="File too large"):
        files.write("f", (b"x" * 100 for _ in range(small_file_limit)))
    writer = files.open_write("g")
    with pytest.raises(OSError, match="File too large"):
        for _ in range(64):
            writer.write(b"x" * small_file_limit)
    writer.abandon()
    assert on_disk(tmp_path) in ([], ["job/g"])


def test_what_is_read_is_aligned_so_that_arrow_needs_no_copy(files: LocalFiles) -> None:
    table = pa.table({"n": pa.array(range(1000), pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    files.write("f", [b"header!", memoryview(sink.getvalue())])
    content = files.read("f", 7)
    before = pa.total_allocated_bytes()
    restored = pa.ipc.open_stream(pa.py_buffer(content)).read_all()
    assert restored.equals(table)
    assert pa.total_allocated_bytes() - before < 1000
