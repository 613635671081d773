"""Elements survive the way through bytes; bytes that are no elements are refused."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.barrier import Barrier, Mode, Purpose
from penstock.core.ids import CheckpointId
from penstock.runtime import wire
from penstock.runtime.elements import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    Element,
    EndOfChannel,
    EndOfData,
    Idle,
    Watermark,
)
from penstock.runtime.network.errors import WireError

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.int32())), ("score", pa.float64())])


def batch_of(rows: list[tuple[int, str | None, list[int], float]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(SCHEMA)
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def joined(element: Element) -> bytes:
    return b"".join(bytes(part) for part in wire.encode(element))


rows = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(max_size=20),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
    st.floats(allow_nan=False),
)
batches = st.lists(rows, max_size=30).map(batch_of)
barriers = st.builds(
    Barrier,
    st.integers(0, 2**62).map(CheckpointId),
    st.sampled_from(Mode),
    st.sampled_from(Purpose),
    st.floats(0, 1e9),
)
watermarks = st.builds(Watermark, st.integers(MIN_WATERMARK, MAX_WATERMARK))
controls = st.one_of(
    watermarks, barriers, st.builds(Idle, st.booleans()), st.just(EndOfData()), st.just(EndOfChannel())
)
elements = st.one_of(batches, controls)


@given(elements)
def test_every_element_comes_back_as_it_was(element: Element) -> None:
    assert wire.decode(memoryview(joined(element)), SCHEMA) == element


@given(st.lists(elements, max_size=6))
def test_frames_one_after_another_are_told_apart(sequence: list[Element]) -> None:
    buffer = b"".join(joined(element) for element in sequence)
    assert [wire.decode(frame, SCHEMA) for frame in wire.frames(buffer)] == sequence


@given(batches)
def test_every_frame_takes_a_multiple_of_eight_bytes_so_that_arrow_buffers_stay_aligned(batch: pa.RecordBatch) -> None:
    assert len(joined(batch)) % 8 == 0


@given(elements, st.data())
def test_a_frame_that_is_cut_off_is_refused(element: Element, data: st.DataObject) -> None:
    whole = joined(element)
    cut = whole[: data.draw(st.integers(1, len(whole) - 1))]
    with pytest.raises(WireError):
        list(wire.frames(cut))
    with pytest.raises(WireError):
        wire.decode(memoryview(cut), SCHEMA)


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else(garbage: bytes) -> None:
    with pytest.raises(WireError):
        wire.decode(memoryview(garbage), SCHEMA)


@given(elements, st.data())
def test_flipped_bytes_give_an_element_or_a_wire_error_but_no_other_failure(
    element: Element, data: st.DataObject
) -> None:
    damaged = bytearray(joined(element))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        wire.decode(memoryview(damaged), SCHEMA)


def test_a_batch_refers_to_the_received_memory_without_a_copy() -> None:
    received = bytearray(joined(pa.record_batch({"n": pa.array(range(1000), pa.int64())})))
    batch = wire.decode(memoryview(received), pa.schema([("n", pa.int64())]))
    assert isinstance(batch, pa.RecordBatch)
    before = batch.column(0)[7].as_py()
    start = received.index((7).to_bytes(8, "little"), 200)
    received[start] = 99
    assert (before, batch.column(0)[7].as_py()) == (7, 99)


def test_a_slice_carries_only_its_own_rows() -> None:
    big = pa.record_batch({"n": pa.array(range(100_000), pa.int64())})
    small = big.slice(50_000, 10)
    assert len(joined(small)) < 1_000
    assert wire.decode(memoryview(joined(small)), big.schema) == small


def test_an_announced_length_beyond_the_limit_is_refused_before_anything_is_allocated() -> None:
    header = wire.HEADER.pack(b"PE", wire.Kind.BATCH, wire.MAX_BODY + 1)
    with pytest.raises(WireError, match="exceeds the limit"):
        wire.read_header(header)


def test_a_control_element_may_not_announce_a_large_body() -> None:
    with pytest.raises(WireError, match="BARRIER of 100000 bytes"):
        wire.read_header(wire.HEADER.pack(b"PE", wire.Kind.BARRIER, 100_000))


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(WireError, match="unknown kind of element 77"):
        wire.read_header(wire.HEADER.pack(b"PE", 77, 0))


def test_a_batch_of_another_schema_is_refused_with_both_named() -> None:
    frame = joined(pa.record_batch({"n": pa.array([1, 2, 3], pa.int64())}))
    with pytest.raises(WireError, match="id: int64, name: string"):
        wire.decode(memoryview(frame), SCHEMA)


def test_a_dictionary_column_is_refused_by_the_sender_with_what_to_do() -> None:
    batch = pa.record_batch({"city": pa.array(["Bern", "Oslo"]).dictionary_encode()})
    with pytest.raises(WireError, match=r"'city' is dictionary-encoded.*cast it to string"):
        wire.encode(batch)
