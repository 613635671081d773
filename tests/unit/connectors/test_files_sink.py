from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.unit.connectors.support import ManualClock, context, written

from penstock.connectors.base import SinkWriter
from penstock.connectors.files_sink import Files, LostOutput
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.simulation.files import MemoryFiles

UID = Uid("out")
SCHEMA = pa.schema({"n": pa.int64(), "s": pa.string()})


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64()), "s": [f"row {n}" for n in numbers]}, schema=SCHEMA)


def opened(sink: Files, subtask: int = 0, attempt: int = 1, generation: int = 1, second: float = 0.0) -> SinkWriter:
    writer = sink.writer()
    clock = ManualClock(second)
    writer.open(context(subtask, 2, attempt=attempt, generation=generation, uid=UID, clock=clock))
    return writer


def prepared(writer: SinkWriter, checkpoint: int, *numbers: int) -> Sequence[bytes]:
    """Writes, prepares and finishes a snapshot as a task does."""
    if numbers:
        writer.write(batch(*numbers))
    committables = writer.prepare(CheckpointId(checkpoint))
    written(writer.capture(), 0)
    return committables


def commit(sink: Files, checkpoint: int, committables: Sequence[bytes]) -> None:
    sink.committer(UID, "job").commit(CheckpointId(checkpoint), committables)


def recover(sink: Files, checkpoint: int | None, committables: Sequence[bytes], attempt: int) -> None:
    restored = None if checkpoint is None else CheckpointId(checkpoint)
    sink.committer(UID, "job").recover(restored, committables, Generation(1), Attempt(attempt))


def numbers_in(directory: Path) -> list[int]:
    files = sorted(directory.glob("*.parquet"))
    return [n for file in files for n in pq.ParquetFile(file).read()["n"].to_pylist()]


def pending_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.parent.rglob("*.pending") if path.is_file())


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "orders"


def test_readers_see_nothing_before_the_commit_and_each_record_once_after_it(target: Path) -> None:
    sink = Files(target)
    writers = [opened(sink, i) for i in range(2)]
    committables = [*prepared(writers[0], 1, 1, 2), *prepared(writers[1], 1, 3)]
    assert not target.exists()
    commit(sink, 1, committables)
    for writer in writers:
        prepared(writer, 2, 100)
    readers = {
        "polars directory": pl.scan_parquet(target).select("n").collect()["n"].to_list(),
        "polars glob": pl.scan_parquet(target / "*.parquet").select("n").collect()["n"].to_list(),
        "duckdb": [n for (n,) in duckdb.sql(f"select n from read_parquet('{target}/*.parquet')").fetchall()],
        "duckdb recursive": [
            n for (n,) in duckdb.sql(f"select n from read_parquet('{target}/**/*.parquet')").fetchall()
        ],
        "arrow": ds.dataset(target).to_table()["n"].to_pylist(),
    }
    assert {name: sorted(numbers) for name, numbers in readers.items()} == {name: [1, 2, 3] for name in readers}
    assert len(pending_in(target)) == 2


def test_a_target_that_is_a_mount_keeps_its_pending_files_hidden_below_it(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.mkdir(parents=True)
    monkeypatch.setattr("os.path.ismount", lambda path: path == str(target))
    sink = Files(target)
    writer = opened(sink)
    commit(sink, 1, prepared(writer, 1, 1, 2))
    prepared(writer, 2, 100)
    assert list(target.glob("_pending/**/*.pending"))
    assert pl.scan_parquet(target / "*.parquet").collect()["n"].to_list() == [1, 2]
    assert duckdb.sql(f"select n from read_parquet('{target}/**/*.parquet')").fetchall() == [(1,), (2,)]
    assert ds.dataset(target).to_table()["n"].to_pylist() == [1, 2]


def test_final_names_sort_by_checkpoint_and_subtask(target: Path) -> None:
    sink = Files(target)
    writers = [opened(sink, i) for i in range(2)]
    for checkpoint in (9, 10):
        commit(sink, checkpoint, [c for i in (1, 0) for c in prepared(writers[i], checkpoint, checkpoint * 10 + i)])
    assert numbers_in(target) == [90, 91, 100, 101]


def test_a_repeated_commit_changes_nothing(target: Path) -> None:
    sink = Files(target)
    committables = prepared(opened(sink), 1, 1, 2)
    for _ in range(3):
        commit(sink, 1, committables)
    recover(sink, 1, committables, attempt=2)
    assert numbers_in(target) == [1, 2]


def test_a_commit_of_files_that_an_earlier_checkpoint_named_moves_only_the_new_ones(target: Path) -> None:
    sink = Files(target)
    writer = opened(sink)
    first = prepared(writer, 1, 1)
    commit(sink, 1, first)
    commit(sink, 2, [*first, *prepared(writer, 2, 2)])
    assert numbers_in(target) == [1, 2]


def test_output_that_is_neither_pending_nor_in_the_target_is_an_error_that_names_it(target: Path) -> None:
    sink = Files(target)
    committables = prepared(opened(sink), 7, 1, 2)
    [lost] = target.parent.rglob("*.pending/**/*.pending")
    lost.unlink()
    with pytest.raises(LostOutput, match=rf"checkpoint 7 .*{lost.name} \(2 rows"):
        commit(sink, 7, committables)


def test_committed_files_that_a_consumer_took_away_do_not_stop_a_recovery(target: Path) -> None:
    sink = Files(target)
    committables = prepared(opened(sink), 1, 1)
    commit(sink, 1, committables)
    for file in target.glob("*.parquet"):
        file.unlink()
    recover(sink, 1, committables, attempt=2)
    assert numbers_in(target) == []


def test_a_file_of_the_same_name_that_the_job_did_not_write_is_never_replaced(target: Path) -> None:
    sink = Files(target)
    committables = prepared(opened(sink), 1, 1)
    probe = Files(target.parent / "probe")
    commit(probe, 1, prepared(opened(probe), 1, 1))
    [name] = [path.name for path in (target.parent / "probe").iterdir()]
    target.mkdir()
    (target / name).write_bytes(b"precious")
    with pytest.raises(FileExistsError, match="it is not replaced"):
        commit(sink, 1, committables)
    assert (target / name).read_bytes() == b"precious"


def test_two_runs_that_count_the_same_never_choose_the_same_names(target: Path) -> None:
    sink = Files(target)
    for second in (1.0, 2.0):
        recover(sink, None, (), attempt=1)
        commit(sink, 1, prepared(opened(sink, second=second), 1, int(second)))
    assert sorted(numbers_in(target)) == [1, 2]


def test_recovery_removes_what_older_attempts_left_and_nothing_of_newer_ones(target: Path) -> None:
    sink = Files(target)
    named = prepared(opened(sink, attempt=1), 1, 1)
    prepared(opened(sink, subtask=1, attempt=1), 2, 50)
    prepared(opened(sink, attempt=1, generation=2), 3, 60)
    recover(sink, 1, named, attempt=2)
    assert numbers_in(target) == [1]
    assert [name[:5] for name in pending_in(target)] == ["g2-a1"]


def test_what_a_zombie_of_an_older_attempt_writes_later_goes_with_the_next_commit_or_the_end(target: Path) -> None:
    sink = Files(target)
    committer = sink.committer(UID, "job")
    committer.recover(None, (), Generation(1), Attempt(1))
    zombie = opened(sink, attempt=1)
    committer.recover(None, (), Generation(1), Attempt(2))
    writer = opened(sink, attempt=2)
    committables = prepared(writer, 1, 1)
    prepared(zombie, 1, 50)
    committer.commit(CheckpointId(1), committables)
    assert pending_in(target) == []
    prepared(zombie, 2, 51)
    kept = prepared(writer, 2, 2)
    committer.close()
    assert len(pending_in(target)) == 1
    commit(sink, 2, kept)
    assert numbers_in(target) == [1, 2]


def test_another_sink_and_another_job_at_the_same_target_are_left_alone(target: Path) -> None:
    sink = Files(target)
    writer = sink.writer()
    writer.open(context(uid="other"))
    writer.write(batch(1))
    committables = writer.prepare(CheckpointId(1))
    written(writer.capture(), 0)
    recover(sink, None, (), attempt=5)
    sink.committer(Uid("other"), "job").commit(CheckpointId(1), committables)
    assert numbers_in(target) == [1]


def test_large_output_rolls_over_to_further_files_between_two_checkpoints(target: Path) -> None:
    sink = Files(target, format="csv", roll_bytes=50_000)
    writer = opened(sink)
    for start in range(0, 200_000, 20_000):
        writer.write(batch(*range(start, start + 20_000)))
    committables = prepared(writer, 1)
    assert len(committables) > 2
    commit(sink, 1, committables)
    frame = pl.scan_csv(target / "*.csv").collect()
    assert sorted(frame["n"].to_list()) == list(range(200_000))


def test_a_large_parquet_file_has_row_groups_of_bounded_size(target: Path) -> None:
    sink = Files(target)
    writer = opened(sink)
    writer.write(pa.record_batch({"n": pa.array(range(1_000_000), pa.int64())}))
    commit(sink, 1, prepared(writer, 1))
    [path] = target.glob("*.parquet")
    metadata = pq.ParquetFile(path).metadata
    assert metadata.num_rows == 1_000_000
    assert metadata.num_row_groups >= 2
    assert numbers_in(target) == list(range(1_000_000))


@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_every_format_reads_back_as_it_was_written(target: Path, format: str) -> None:
    sink = Files(target, format)
    rows = pa.record_batch({"n": pa.array([1, None, 3]), "s": ['a "quoted",\nword', "", "ü"]})
    writer = opened(sink)
    writer.write(rows)
    commit(sink, 1, prepared(writer, 1))
    [path] = target.iterdir()
    assert path.suffix == f".{format}"
    read = {"parquet": pl.read_parquet, "jsonl": pl.read_ndjson, "csv": pl.read_csv}[format]
    assert read(path).to_dicts() == rows.to_pylist()


def test_nothing_written_prepares_nothing_and_makes_no_file(target: Path) -> None:
    sink = Files(target)
    writer = opened(sink)
    assert list(writer.prepare(CheckpointId(1))) == []
    assert list(writer.capture()) == []
    assert pending_in(target) == []


def test_without_checkpoints_the_end_of_the_input_makes_everything_durable(target: Path) -> None:
    sink = Files(target)
    writer = opened(sink)
    writer.write(batch(1, 2))
    writer.finish()
    committables = writer.prepare(CheckpointId(0))
    commit(sink, 0, committables)
    assert numbers_in(target) == [1, 2]


def test_a_cancelled_writer_takes_its_unnamed_files_with_it_and_leaves_the_named_ones(target: Path) -> None:
    sink = Files(target)
    writer = opened(sink)
    committables = prepared(writer, 1, 1)
    writer.write(batch(2))
    writer.close()
    assert len(pending_in(target)) == 1
    commit(sink, 1, committables)
    assert numbers_in(target) == [1]


def test_files_of_a_checkpoint_whose_parts_were_never_encoded_are_sealed_with_the_next(target: Path) -> None:
    sink = Files(target)
    writer = opened(sink)
    writer.write(batch(1))
    first = writer.prepare(CheckpointId(1))
    writer.capture()
    second = prepared(writer, 2, 2)
    commit(sink, 2, [*first, *second])
    assert numbers_in(target) == [1, 2]


def test_a_file_that_cannot_be_made_durable_fails_its_checkpoint_and_then_the_task() -> None:
    files = MemoryFiles()
    sink = Files("out", files=files)
    writer = opened(sink)
    writer.write(batch(1))
    writer.prepare(CheckpointId(1))
    [part] = writer.capture()

    def no_space(operation: str, path: str) -> None:
        if path.endswith(".pending"):
            raise OSError(28, "No space left on device", path)

    files.before = no_space
    with pytest.raises(OSError, match="No space left"):
        part.encode()
    files.before = lambda operation, path: None
    with pytest.raises(OSError, match=r"could not be written: .*No space left"):
        part.encode()
    with pytest.raises(OSError, match="could not be written"):
        writer.write(batch(2))
    with pytest.raises(OSError, match="could not be written"):
        writer.prepare(CheckpointId(2))


def test_a_sink_travels_to_the_workers(target: Path) -> None:
    sink = Files(target)
    travelled = pickle.loads(pickle.dumps(sink))
    commit(sink, 1, prepared(opened(travelled), 1, 1))
    assert numbers_in(target) == [1]


def test_a_file_address_is_the_same_as_the_path(target: Path) -> None:
    sink = Files(f"file://{target}/")
    commit(sink, 1, prepared(opened(sink), 1, 1))
    assert numbers_in(target) == [1]


def test_what_cannot_work_is_refused_at_build_time(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="format must be one of parquet, jsonl, csv"):
        Files(tmp_path, format="orc")
    with pytest.raises(ValueError, match="roll_bytes must be above 0"):
        Files(tmp_path, roll_bytes=0)
    for path in ("/", "", "s3://bucket", "s3://bucket/"):
        with pytest.raises(ValueError, match="has a parent"):
            Files(path)
    with pytest.raises(ValueError, match=r"compression must be one of zstd, .*not 'zip'"):
        Files(tmp_path, compression="zip")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file"):
        Files(tmp_path / "file").check(SCHEMA)
    nested = pa.schema({"tags": pa.list_(pa.string()), "n": pa.int64(), "raw": pa.binary()})
    with pytest.raises(ValueError, match=r"csv cannot hold tags \(list<.*raw \(binary\)"):
        Files(tmp_path / "out", "csv").check(nested)
    with pytest.raises(ValueError, match=r"jsonl cannot hold raw \(binary\)"):
        Files(tmp_path / "out", "jsonl").check(nested)
    Files(tmp_path / "out").check(nested)


def test_a_lone_csv_column_with_a_null_is_refused_because_readers_skip_empty_lines(target: Path) -> None:
    writer = opened(Files(target, "csv"))
    writer.write(pa.record_batch({"n": pa.array([1, None])}))
    with pytest.raises(ValueError, match="only column 'n' is null"):
        prepared(writer, 1)
