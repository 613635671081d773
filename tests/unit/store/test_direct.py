"""Files that go past the system's cache."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.store import direct
from penstock.store.local import LocalFiles


def content(size: int) -> bytes:
    return bytes(range(251)) * (size // 251) + bytes(range(size % 251))


@pytest.mark.parametrize(
    "size",
    [
        0,
        1,
        direct.LEAST - 1,
        direct.LEAST,
        direct.LEAST + 1,
        1 << 20,
        (1 << 20) + 17,
        direct.STAGE,
        direct.STAGE + 1,
        2 * direct.STAGE,
        3 * direct.STAGE + 4097,
    ],
)
def test_a_file_of_any_size_is_what_was_written_however_it_was_cut(tmp_path: Path, size: int) -> None:
    files, whole = LocalFiles(str(tmp_path)), content(size)
    pieces = [whole[start : start + 100_003] for start in range(0, size, 100_003)]
    assert files.write("deep/below/file", pieces) == size
    assert bytes(files.read("deep/below/file")) == whole
    assert [(file.path, file.size) for file in files.list("")] == [("deep/below/file", size)]


@pytest.mark.parametrize("offset", [0, 64, 4096, 4096 + 128, 7])
@pytest.mark.parametrize("length", [direct.STAGE + 1, 2 * direct.STAGE, 3 * direct.STAGE, None])
def test_any_part_of_a_long_file_is_read_as_it_was_written(tmp_path: Path, offset: int, length: int | None) -> None:
    files, whole = LocalFiles(str(tmp_path)), content(2 * direct.STAGE + 4_321)
    files.write("file", [whole])
    assert bytes(files.read("file", offset, length)) == whole[offset : None if length is None else offset + length]


def test_a_long_file_is_read_where_the_file_system_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, whole = LocalFiles(str(tmp_path)), content(direct.STAGE + 4_321)
    files.write("file", [whole])
    monkeypatch.setattr(os, "open", refusing(os.open, errno.EINVAL))
    assert bytes(files.read("file")) == whole


def test_a_shorter_file_after_a_longer_one_has_nothing_of_it(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    files.write("file", [b"x" * 300_000])
    files.write("file", [b"y" * 100_001])
    assert bytes(files.read("file")) == b"y" * 100_001


def refusing(function: Callable[..., int], code: int) -> Callable[..., int]:
    def refuse(path: str, flags: int, *more: int, **named: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(code, os.strerror(code))
        return function(path, flags, *more, **named)

    return refuse


def test_where_the_file_system_refuses_the_usual_way_is_taken_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LocalFiles(str(tmp_path))
    monkeypatch.setattr(os, "open", refusing(os.open, errno.EINVAL))
    for name in ("one", "two"):
        files.write(name, [content(200_000)])
        assert bytes(files.read(name)) == content(200_000)
    assert not files._direct
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_an_error_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = LocalFiles(str(tmp_path))
    monkeypatch.setattr(os, "open", refusing(os.open, errno.EACCES))
    with pytest.raises(PermissionError, match="cannot write"):
        files.write("one", [content(200_000)])
    assert files._direct


def test_a_file_that_is_refused_after_its_first_stage_goes_on_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, write, count = LocalFiles(str(tmp_path)), os.write, 0
    whole = content(3 * direct.STAGE + 5)

    def refuse_the_second(file: int, data: memoryview) -> int:
        nonlocal count
        count += 1
        if count == 2:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return write(file, data)

    monkeypatch.setattr(os, "write", refuse_the_second)
    assert files.write("one", [whole]) == len(whole)
    assert bytes(files.read("one")) == whole
    assert not files._direct


@pytest.mark.parametrize("size", [200_000, 2 * direct.STAGE + 100])
def test_a_write_that_ends_within_a_block_goes_on_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    files, write = LocalFiles(str(tmp_path)), os.write

    def end_within_a_block(file: int, data: memoryview) -> int:
        flags = fcntl.fcntl(file, fcntl.F_GETFL)
        if not flags & os.O_DIRECT:
            return write(file, data)
        fcntl.fcntl(file, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        count = write(file, data[: 4096 * 3 - 1])
        fcntl.fcntl(file, fcntl.F_SETFL, flags)
        return count

    monkeypatch.setattr(os, "write", end_within_a_block)
    assert files.write("one", [content(size)]) == size
    assert bytes(files.read("one")) == content(size)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_a_long_file_whose_making_fails_is_gone(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield content(2 * direct.STAGE)
        raise FileNotFoundError("what it is made of")

    with pytest.raises(FileNotFoundError, match="what it is made of"):
        LocalFiles(str(tmp_path)).write("one", broken())
    assert not list(tmp_path.iterdir())


def test_files_that_are_written_at_the_same_time_use_different_stages() -> None:
    with direct.stage() as one, direct.stage() as other:
        assert one is not other
    with direct.stage() as again:
        assert again is one or again is other
