"""The promises of `Files`, kept by every implementation."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from penstock.simulation.files import MemoryFiles
from penstock.store.files import Files
from penstock.store.local import LocalFiles
from penstock.store.objects import ObjectFiles


@pytest.fixture(params=["local", "memory", "objects"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    made: dict[str, Files] = {
        "local": LocalFiles(str(tmp_path / "not" / "there" / "yet")),
        "memory": MemoryFiles(),
        "objects": ObjectFiles(MemoryStore(), "memory://test"),
    }
    return made[request.param]


def test_what_was_written_is_read_back(files: Files) -> None:
    assert files.write("a/b/c", [b"one ", bytearray(b"two "), memoryview(b"three")]) == 13
    assert bytes(files.read("a/b/c")) == b"one two three"


def test_a_range_is_read_and_cut_at_the_end_of_the_file(files: Files) -> None:
    files.write("f", [b"0123456789"])
    assert bytes(files.read("f", 3, 4)) == b"3456"
    assert bytes(files.read("f", 7)) == b"789"
    assert bytes(files.read("f", 7, 100)) == b"789"
    assert bytes(files.read("f", 50, 5)) == b""
    assert bytes(files.read("f", 2, 0)) == b""


def test_an_empty_file_is_a_file(files: Files) -> None:
    assert files.write("f", []) == 0
    assert files.exists("f")
    assert bytes(files.read("f")) == b""


def test_writing_replaces_the_older_file(files: Files) -> None:
    files.write("f", [b"old and long"])
    files.write("f", [b"new"])
    assert bytes(files.read("f")) == b"new"


def test_a_large_file_comes_back_as_it_was(files: Files) -> None:
    chunk = bytes(range(256)) * 4096
    assert files.write("f", (chunk for _ in range(12))) == 12 * len(chunk)
    assert bytes(files.read("f", 5 * len(chunk), len(chunk))) == chunk
    assert files.list("")[0].size == 12 * len(chunk)


def test_a_write_that_fails_half_way_leaves_the_older_file_and_nothing_else(files: Files) -> None:
    files.write("f", [b"old"])

    def failing() -> Iterator[bytes]:
        yield b"new"
        yield b"x" * (20 << 20)
        raise RuntimeError("the encoder failed")

    with pytest.raises(RuntimeError, match="the encoder failed"):
        files.write("f", failing())
    assert bytes(files.read("f")) == b"old"
    assert [file.path for file in files.list("")] == ["f"]


def test_what_was_written_in_place_is_read_back_and_may_be_written_anew(files: Files) -> None:
    assert files.write_in_place("a/b/c", [b"old and long"]) == 12
    assert files.write_in_place("a/b/c", [b"one ", memoryview(b"two")]) == 7
    assert bytes(files.read("a/b/c")) == b"one two"


def test_a_write_in_place_that_fails_leaves_nothing(files: Files) -> None:
    def failing() -> Iterator[bytes]:
        yield b"x" * (20 << 20)
        raise RuntimeError("the encoder failed")

    with pytest.raises(RuntimeError, match="the encoder failed"):
        files.write_in_place("f", failing())
    assert list(files.list("")) == []


def test_create_refuses_an_existing_file_and_leaves_it_alone(files: Files) -> None:
    files.create("log/1", b"first")
    with pytest.raises(FileExistsError):
        files.create("log/1", b"second")
    assert bytes(files.read("log/1")) == b"first"
    assert [file.path for file in files.list("")] == ["log/1"]


def test_of_many_that_create_at_once_exactly_one_succeeds(files: Files) -> None:
    start = threading.Barrier(8)
    won: list[int] = []

    def contend(number: int) -> None:
        start.wait()
        try:
            files.create("log/1", f"{number}".encode() * 1000)
        except FileExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert bytes(files.read("log/1")) == f"{won[0]}".encode() * 1000


def test_listing_goes_to_any_depth_and_only_below_the_directory(files: Files) -> None:
    for path in ("a/1", "a/b/2", "ab/3", "c"):
        files.write(path, [path.encode()])
    assert [(file.path, file.size) for file in files.list("a")] == [("a/1", 3), ("a/b/2", 5)]
    assert [file.path for file in files.list("")] == ["a/1", "a/b/2", "ab/3", "c"]
    assert list(files.list("nowhere")) == []


def test_deleting_is_done_when_the_file_is_gone(files: Files) -> None:
    files.write("a/b/f", [b"x"])
    files.delete("a/b/f")
    files.delete("a/b/f")
    files.delete("never/was")
    assert not files.exists("a/b/f")
    assert list(files.list("")) == []
    files.write("a/b/f", [b"again"])
    assert files.exists("a/b/f")


def test_moving_replaces_the_target_and_removes_the_source(files: Files) -> None:
    files.write("pending/f", [b"new"])
    files.write("done/f", [b"old"])
    files.move("pending/f", "done/f")
    assert bytes(files.read("done/f")) == b"new"
    assert not files.exists("pending/f")


def test_moving_makes_the_targets_directory(files: Files) -> None:
    files.write("f", [b"x"])
    files.move("f", "deep/down/f")
    assert [file.path for file in files.list("")] == ["deep/down/f"]


def test_what_is_not_there_raises_file_not_found(files: Files) -> None:
    with pytest.raises(FileNotFoundError):
        files.read("nothing")
    with pytest.raises(FileNotFoundError):
        files.read("nothing", 1, 2)
    with pytest.raises(FileNotFoundError):
        files.move("nothing", "something")
    assert not files.exists("nothing")


def test_a_file_that_is_written_piece_by_piece_is_whole_once_it_is_closed(files: Files) -> None:
    writer = files.open_write("deep/f")
    for _ in range(3):
        writer.write(b"abc")
    assert writer.close() == 9
    assert bytes(files.read("deep/f")) == b"abcabcabc"


def test_a_file_that_was_given_up_can_be_written_again(files: Files) -> None:
    writer = files.open_write("f")
    writer.write(b"half of it")
    writer.abandon()
    again = files.open_write("f")
    again.write(b"whole")
    again.close()
    assert bytes(files.read("f")) == b"whole"


def test_errors_name_the_whole_address_of_an_object() -> None:
    files = ObjectFiles(MemoryStore(), "s3://bucket/orders/")
    with pytest.raises(FileNotFoundError, match="cannot read s3://bucket/orders/log/1: no such object"):
        files.read("log/1")


def test_names_are_those_of_the_directory_itself(files: Files) -> None:
    for path in ("log/1.json", "log/2.json", "logs/3.json", "log/deeper/4.json", "5.json"):
        files.write(path, [b"x"])
    assert {name for name in files.names("log") if name.endswith(".json")} == {"log/1.json", "log/2.json"}
    assert list(files.names("nowhere")) == []
