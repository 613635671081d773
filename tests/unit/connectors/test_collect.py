from __future__ import annotations

import pickle
from collections.abc import Sequence

import pyarrow as pa
import pytest
from tests.unit.connectors.support import context

import penstock.connectors.collect as module
from penstock.connectors.base import SinkWriter
from penstock.connectors.collect import Collect
from penstock.connectors.discard import Discard
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid

UID = Uid("out")
FIRST = Generation(1), Attempt(1)


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def opened(sink: Collect | Discard, subtask: int = 0, attempt: int = 1) -> SinkWriter:
    writer = sink.writer()
    writer.open(context(subtask, 2, attempt=attempt))
    return writer


def prepared(writer: SinkWriter, checkpoint: int, *numbers: int) -> Sequence[bytes]:
    writer.write(batch(*numbers))
    return writer.prepare(CheckpointId(checkpoint))


def test_rows_are_in_the_result_only_after_their_commit() -> None:
    sink = Collect()
    sink.check(batch().schema)
    committables = prepared(opened(sink), 1, 1, 2)
    assert sink.result().num_rows == 0
    sink.committer(UID, "job").commit(CheckpointId(1), committables)
    assert sink.rows() == [{"n": 1}, {"n": 2}]
    assert sink.polars()["n"].to_list() == [1, 2]


def test_a_commit_that_is_repeated_adds_nothing() -> None:
    sink = Collect()
    committer = sink.committer(UID, "job")
    writer = opened(sink)
    first = prepared(writer, 1, 1)
    committer.commit(CheckpointId(1), first)
    committer.commit(CheckpointId(1), first)
    committer.commit(CheckpointId(2), [*first, *prepared(writer, 2, 2)])
    committer.recover(CheckpointId(1), first, Generation(1), Attempt(2))
    assert sink.result()["n"].to_pylist() == [1, 2]


def test_equal_rows_of_different_writers_attempts_and_barriers_all_count() -> None:
    sink = Collect()
    committer = sink.committer(UID, "job")
    here = opened(sink)
    for committables in (
        prepared(here, 1, 7),
        prepared(here, 2, 7),
        prepared(opened(sink, subtask=1), 1, 7),
        prepared(opened(sink, attempt=2), 3, 7),
    ):
        committer.commit(CheckpointId(1), committables)
    assert sink.result()["n"].to_pylist() == [7] * 4


def test_nothing_written_prepares_nothing() -> None:
    writer = opened(Collect())
    assert writer.prepare(CheckpointId(1)) == []
    assert len(prepared(writer, 2, 1)) == 1
    assert writer.prepare(CheckpointId(3)) == []


def test_committables_are_bounded_and_keep_the_order_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 1000)
    sink = Collect()
    writer = opened(sink)
    for start in range(0, 3000, 1000):
        writer.write(batch(*range(start, start + 1000)))
    committables = writer.prepare(CheckpointId(1))
    assert len(committables) >= 24
    assert all(len(committable) < 2000 for committable in committables)
    sink.committer(UID, "job").commit(CheckpointId(1), committables)
    assert sink.result()["n"].to_pylist() == list(range(3000))


def test_more_than_a_driver_should_take_at_once_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 10_000)
    writer = opened(Collect())
    for checkpoint in range(3):
        assert prepared(writer, checkpoint, *range(1000))
    writer.write(batch(*range(1000)))
    with pytest.raises(ValueError, match=r"Collect is for small results.*use sinks\.Files"):
        writer.write(batch(*range(1000)))


def test_a_slice_of_a_large_batch_carries_only_its_own_rows() -> None:
    writer = opened(Collect())
    writer.write(pa.record_batch({"n": pa.array(range(100_000), pa.int64())}).slice(50, 10))
    [committable] = writer.prepare(CheckpointId(1))
    assert len(committable) < 2000


def test_a_fresh_start_begins_with_an_empty_result() -> None:
    sink = Collect()
    committer = sink.committer(UID, "job")
    committer.recover(None, (), *FIRST)
    committer.commit(CheckpointId(1), prepared(opened(sink), 1, 1))
    committer.recover(None, (), *FIRST)
    committer.commit(CheckpointId(1), prepared(opened(sink), 1, 2))
    assert sink.result()["n"].to_pylist() == [2]


def test_two_sinks_that_share_one_collect_do_not_hide_each_others_rows() -> None:
    sink = Collect()
    for uid in ("a", "b"):
        sink.committer(Uid(uid), "job").commit(CheckpointId(1), prepared(opened(sink), 1, 5))
    sink.committer(Uid("a"), "job").recover(None, (), *FIRST)
    assert sink.result()["n"].to_pylist() == [5]


def test_a_second_schema_on_one_collect_is_refused() -> None:
    sink = Collect()
    sink.check(pa.schema({"n": pa.int64()}))
    with pytest.raises(ValueError, match="it has n: int64, this one is n: string"):
        sink.check(pa.schema({"n": pa.string()}))


def test_a_result_without_a_pipeline_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"use it in \.sink"):
        Collect().result()


def test_the_callback_sees_every_row_once_and_again_only_if_it_raised() -> None:
    seen: list[int] = []
    broken = [True]

    def on_commit(table: pa.Table) -> None:
        if broken.pop() if broken else False:
            raise ConnectionError("the screen is gone")
        seen.extend(table["n"].to_pylist())

    sink = Collect(on_commit)
    committer = sink.committer(UID, "job")
    committables = prepared(opened(sink), 1, 1, 2)
    with pytest.raises(ConnectionError):
        committer.commit(CheckpointId(1), committables)
    committer.commit(CheckpointId(1), committables)
    committer.commit(CheckpointId(1), committables)
    assert seen == [1, 2] == sink.result()["n"].to_pylist()


def test_what_travels_to_a_worker_has_neither_rows_nor_callback() -> None:
    sink = Collect(lambda table: None)
    sink.committer(UID, "job").commit(CheckpointId(1), prepared(opened(sink), 1, *range(1000)))
    assert len(pickle.dumps(sink)) < 200
    assert prepared(opened(pickle.loads(pickle.dumps(sink))), 1, 1)


def test_discard_counts_committed_rows_once() -> None:
    sink = Discard()
    sink.check(batch().schema)
    committer = sink.committer(UID, "job")
    committer.recover(None, (), *FIRST)
    writer = opened(sink)
    first = prepared(writer, 1, 1, 2, 3)
    assert sink.rows == 0
    committer.commit(CheckpointId(1), first)
    committer.commit(CheckpointId(2), [*first, *prepared(writer, 2, 4)])
    committer.recover(CheckpointId(2), first, Generation(1), Attempt(2))
    assert sink.rows == 4
    assert writer.prepare(CheckpointId(3)) == ()
    committer.recover(None, (), *FIRST)
    assert sink.rows == 0
    pickle.loads(pickle.dumps(sink))
