"""Pictures of what lies beside keys: whatever the index does meanwhile, and whenever they are read, they show what was
there when they were taken."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels import table
from penstock.kernels.additions import ADD, COUNT
from penstock.kernels.hashing import read_only
from penstock.state import hashindex, undo
from penstock.state.hashindex import Additions, HashIndex
from penstock.state.keys import KeyColumns

KEYS = KeyColumns(pa.schema([("key", pa.int64())]), ["key"])
KINDS = read_only(np.array([COUNT, ADD], np.uint8))
Read = Callable[[npt.NDArray[np.int32] | slice], list[npt.NDArray[np.uint64]]]


@pytest.fixture(autouse=True)
def nothing_is_copied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashindex, "_COPIED", 0)


def new_index() -> HashIndex:
    return HashIndex(KEYS, table, nulls=False, payload=np.zeros(2, np.uint64))


def add(index: HashIndex, keys: npt.NDArray[np.int64]) -> None:
    values = np.ones((2, len(keys)), np.uint64)
    index.find([pa.array(keys)], Additions(KINDS, read_only(values), np.empty((2, 0), np.uint64)))


def payload(index: HashIndex) -> npt.NDArray[np.uint64]:
    return index.payload[: len(index)].copy()


def shown(read: Read, rows: int) -> npt.NDArray[np.uint64]:
    """All of it."""
    pieces = [np.empty((0, 2), np.uint64)]
    return np.concatenate(pieces + [some(read, begin, min(rows, begin + 4)) for begin in range(0, rows, 4)])


def some(read: Read, begin: int, end: int) -> npt.NDArray[np.uint64]:
    """These rows, asked for in another order."""
    return np.stack(read(np.arange(begin, end, dtype=np.int32)[::-1]), axis=1)[::-1]


class Reader:
    """Reads a picture a few rows at a time, and knows what it should show: also later, as long as it has it."""

    def __init__(self, read: Read, expected: npt.NDArray[np.uint64]) -> None:
        self._read, self._expected, self._at = read, expected, 0
        self._kept: list[tuple[int, list[npt.NDArray[np.uint64]]]] = []

    def check(self, rows: int) -> None:
        begin, self._at = self._at, min(len(self._expected), self._at + rows)
        if begin == self._at:
            return
        if rows % 2:
            assert (some(self._read, begin, self._at) == self._expected[begin : self._at]).all()
        else:
            self._kept.append((begin, self._read(slice(begin, self._at))))
            del self._kept[:-3]
        for begin, words in self._kept:
            assert (np.stack(words, axis=1) == self._expected[begin : begin + len(words[0])]).all()

    def check_rest(self) -> None:
        while self._at < len(self._expected):
            self.check(4)


@settings(max_examples=400)
@given(st.data())
def test_pictures_show_what_was_there_when_they_were_taken(data: st.DataObject) -> None:
    """Several at a time, of all slots and of some, read in any order, a few rows at a time between changes, to the end
    or not; entries are few, so that they move."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(undo, "_BLOCK", 4)
        patch.setattr(undo, "PORTION", 3)
        index, readers = new_index(), list[Reader]()
        for _ in range(data.draw(st.integers(1, 40))):
            match data.draw(st.sampled_from(["add", "add", "touch", "picture", "read", "read", "forget"])):
                case "add":
                    add(index, np.array(data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=9))))
                case "touch" if len(index):
                    slots = np.array(data.draw(st.lists(st.integers(0, len(index) - 1), max_size=3)), np.int64)
                    index.keep(slots)
                    index.payload[slots] += np.uint64(7)
                case "picture" if data.draw(st.booleans()):
                    readers.append(Reader(index.captured_payload(None), payload(index)))
                case "picture" if len(index):
                    slots = data.draw(st.lists(st.integers(0, len(index) - 1), min_size=1, unique=True))
                    chosen = np.array(sorted(slots), np.int32)
                    readers.append(Reader(index.captured_payload(chosen), payload(index)[chosen]))
                case "read" if readers:
                    data.draw(st.sampled_from(readers)).check(data.draw(st.integers(1, 5)))
                case "forget" if readers:
                    readers.pop(data.draw(st.integers(0, len(readers) - 1)))
        for reader in readers:
            reader.check_rest()


@pytest.mark.parametrize("portion", [1_000, 20_000])
def test_a_picture_that_is_read_while_its_index_is_at_work_is_true(
    monkeypatch: pytest.MonkeyPatch, portion: int
) -> None:
    """Real threads: some thousand finds change all payloads again and again while pictures are copied."""
    monkeypatch.setattr(undo, "PORTION", portion)
    index, keys = new_index(), np.arange(20_000)
    add(index, keys)
    failures: list[str] = []

    def check(read: Read, expected: npt.NDArray[np.uint64]) -> None:
        for begin in range(0, len(expected), 500):
            if not (some(read, begin, begin + 500) == expected[begin : begin + 500]).all():
                failures.append("a picture shows later changes")

    for turn in range(60):
        reader = threading.Thread(target=check, args=(index.captured_payload(None), payload(index)))
        reader.start()
        random = np.random.default_rng(turn)
        for _ in range(20):
            add(index, random.integers(0, 20_000, 2_000))
        reader.join()
    assert not failures


def test_slots_that_a_picture_has_passed_are_not_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "PORTION", 4)
    index = new_index()
    add(index, np.arange(8))
    reader = Reader(index.captured_payload(None), payload(index))
    reader.check(4)
    add(index, np.arange(8))
    log = index._living_log()
    assert log is not None and log.entries.slots[: log.entries.count[0]].tolist() == [4, 5, 6, 7]
    reader.check_rest()


def test_slots_that_only_an_older_picture_has_passed_are_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "PORTION", 4)
    index = new_index()
    add(index, np.arange(8))
    older = Reader(index.captured_payload(None), payload(index))
    older.check(4)
    add(index, np.arange(8))
    newer = Reader(index.captured_payload(None), payload(index))
    add(index, np.arange(8))
    older.check_rest()
    newer.check_rest()


def test_the_memory_of_entries_serves_the_next_log_but_not_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "PORTION", 4)
    index = new_index()
    add(index, np.arange(1_000))
    first = Reader(index.captured_payload(None), payload(index))
    add(index, np.arange(1_000))
    (before,) = index._blocks
    add(index, np.arange(5_000))  # the records are replaced: the picture keeps the old ones
    second = Reader(index.captured_payload(None), payload(index))
    add(index, np.arange(5_000))
    (after,) = index._blocks
    assert after.slots is not before.slots
    first.check_rest()
    second.check_rest()
    third = Reader(index.captured_payload(None), payload(index))
    assert index._blocks[0].slots is after.slots
    add(index, np.arange(5_000))
    third.check_rest()


def test_nothing_is_put_aside_once_all_pictures_are_copied_or_dropped() -> None:
    index = new_index()
    add(index, np.arange(10))
    copied, dropped = index.captured_payload(None), index.captured_payload(None)
    assert index._living_log() is not None
    shown(copied, 10)
    del dropped
    gc.collect()
    assert index._living_log() is None


def test_a_log_forgets_what_only_pictures_that_are_gone_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "_BLOCK", 64)
    index, keys = new_index(), np.arange(50)
    add(index, keys)
    kept = [index.captured_payload(None)]
    for _ in range(100):
        add(index, keys)
        kept = [*kept[-1:], index.captured_payload(None)]
    log = index._living_log()
    assert log is not None and len(log.blocks) < 10 and log.entries.first > 1_000


def test_pictures_of_records_that_were_replaced_stay_true() -> None:
    index = new_index()
    add(index, np.arange(1_000))
    read, expected = index.captured_payload(None), payload(index)
    add(index, np.arange(5_000))  # more than there was room for
    assert index._living_log() is None
    assert (shown(read, 1_000) == expected).all()


def test_the_memory_of_rows_that_nobody_has_any_more_serves_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "PORTION", 4)
    index = new_index()
    add(index, np.arange(40))
    read, expected, places = index.captured_payload(None), payload(index), set[int]()
    for begin in range(0, 40, 4):
        words = read(slice(begin, begin + 4))
        places.add(words[0].__array_interface__["data"][0])
        assert (np.stack(words, axis=1) == expected[begin : begin + 4]).all()
    assert len(places) == 2  # one is read while another is let go


def test_no_rows_of_a_picture_are_nothing_and_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "PORTION", 4)
    index = new_index()
    add(index, np.arange(8))
    read, expected = index.captured_payload(None), payload(index)
    assert [len(word) for word in read(np.empty(0, np.int32))] == [0, 0]
    assert (shown(read, 8) == expected).all()


def test_a_picture_is_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "PORTION", 4)
    index = new_index()
    add(index, np.arange(8))
    read = index.captured_payload(None)
    shown(read, 8)
    with pytest.raises(RuntimeError, match="read once"):
        shown(read, 8)


def test_counting_calls_from_anew_keeps_pictures_true() -> None:
    index = new_index()
    add(index, np.arange(3))
    read, expected = index.captured_payload(None), payload(index)
    add(index, np.array([1]))
    index._call = (1 << 32) - 1
    add(index, np.arange(3))
    assert (shown(read, 3) == expected).all()
