"""Parts as files: what an operator hands over comes back byte for byte, or with an error that names it."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.store.samples import part, paths

from penstock.core.handles import KeyGroupRange, PartKind
from penstock.core.ids import Attempt, ChainId, ChannelId, CheckpointId, EdgeId, Generation, SubtaskId, Uid
from penstock.simulation.files import MemoryFiles
from penstock.state.parts import CapturedPart
from penstock.store import layout
from penstock.store.parts import CorruptCheckpoint, reader, write_parts

DIRECTORY = layout.checkpoint_directory(CheckpointId(3))
PATH = f"{DIRECTORY}/g1-a1-total-0-0.data"


def test_nothing_to_write_makes_no_file() -> None:
    files = MemoryFiles()
    assert write_parts(files, PATH, {}) == []
    assert write_parts(files, PATH, {Uid("total"): []}) == []
    assert paths(files) == []


def test_a_part_keeps_what_is_said_about_it() -> None:
    files = MemoryFiles()
    groups, channel = KeyGroupRange(3, 9), ChannelId(EdgeId(1), 2, 0)
    keyed = CapturedPart("sums", PartKind.KEYED, lambda: [b"abc", b"", b"de"], key_groups=groups)
    flight = CapturedPart("in", PartKind.INPUT_CHANNEL, lambda: [b"xyz"], channel=channel)
    first, second = write_parts(files, PATH, {Uid("total"): [keyed], Uid("out"): [flight]})
    assert (first.uid, first.name, first.kind, first.key_groups, first.channel) == (
        "total", "sums", PartKind.KEYED, groups, None,
    )  # fmt: skip
    assert (first.path, first.offset, first.length) == ("g1-a1-total-0-0.data", 0, 5)
    assert (second.uid, second.channel, second.offset, second.length) == ("out", channel, 5, 3)
    assert bytes(files.read(PATH)) == b"abcdexyz"


def test_buffers_of_numpy_and_arrow_are_written_as_their_bytes() -> None:
    files = MemoryFiles()
    numbers = np.arange(4, dtype=np.int64)
    encoded = CapturedPart("n", PartKind.LIST, lambda: [numbers.data, memoryview(pa.py_buffer(b"arrow"))])
    (handle,) = write_parts(files, PATH, {Uid("total"): [encoded]})
    assert bytes(reader(files, DIRECTORY, handle)()) == numbers.tobytes() + b"arrow"


@given(st.lists(st.lists(st.binary(max_size=40), max_size=4), max_size=5))
def test_every_part_comes_back_as_it_was(contents: list[list[bytes]]) -> None:
    files = MemoryFiles()
    parts = [CapturedPart(f"{n}", PartKind.LIST, partial(list, chunks)) for n, chunks in enumerate(contents)]
    handles = write_parts(files, PATH, {Uid("total"): parts[:2], Uid("out"): parts[2:]})
    assert [bytes(reader(files, DIRECTORY, handle)()) for handle in handles] == [b"".join(c) for c in contents]


def test_an_encoder_that_fails_leaves_no_file() -> None:
    def fail() -> list[bytes]:
        raise RuntimeError("cannot encode")

    files = MemoryFiles()
    with pytest.raises(RuntimeError, match="cannot encode"):
        write_parts(files, PATH, {Uid("total"): [part("a", b"a"), CapturedPart("b", PartKind.LIST, fail)]})
    assert paths(files) == []


def test_a_missing_a_cut_and_a_changed_file_are_named_with_the_part() -> None:
    files = MemoryFiles()
    _, handle = write_parts(files, PATH, {Uid("total"): [part("first", b"1234"), part("second", b"5678")]})
    read = reader(files, DIRECTORY, handle)
    assert bytes(read()) == b"5678"
    files.write(PATH, [b"12345778"])
    with pytest.raises(CorruptCheckpoint, match=r"part 'second' of operator 'total' \(bytes 4 to 8\) has checksum"):
        read()
    files.write(PATH, [b"12345"])
    with pytest.raises(CorruptCheckpoint, match=r"part 'second' .* has only 1 bytes left"):
        read()
    files.delete(PATH)
    with pytest.raises(CorruptCheckpoint, match="the file is missing; it holds part 'second'") as raised:
        read()
    assert raised.value.path == PATH
    assert "restore=<number>" in str(raised.value)


# ---- names ----
def name_of(chain: str, index: int = 0, ticket: int = 0) -> str:
    return layout.data_path(CheckpointId(3), Generation(2), Attempt(4), SubtaskId(ChainId(chain), index), ticket)


def test_a_data_file_carries_generation_attempt_subtask_and_ticket() -> None:
    assert name_of("total", 1, 5) == "checkpoints/3/g2-a4-total-1-5.data"
    assert layout.checkpoint_file(name_of("total", 1, 5)) == (3, 2, 4)


def test_any_uid_makes_a_file_name_of_its_own() -> None:
    uids = ["a/b", "a_b", "a b", "a:b", "..", "Größe", "x" * 300, "x" * 301, "%2F", "a\nb"]
    names = [name_of(uid) for uid in uids]
    assert len(set(names)) == len(uids)
    for name in names:
        assert layout.checkpoint_file(name) == (3, 2, 4)
        assert name.count("/") == 2
        assert len(name.rpartition("/")[2].encode()) < 200
        assert name.isascii()


@pytest.mark.parametrize("path", ["checkpoints/x/g1.json", "checkpoints/3/notes", "log/0000000001.json"])
def test_other_names_are_not_taken_for_checkpoint_files(path: str) -> None:
    assert layout.checkpoint_file(path) is None
