from __future__ import annotations

import csv
import itertools
import json
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.connectors.support import ManualClock, context, poll_all, poll_rows, snapshot_of

import penstock.connectors.readers as readers
import penstock.connectors.text_reader as text_reader
from penstock.connectors.files_source import Files, owner_of
from penstock.connectors.readers import BadFile
from penstock.operators.base import Polled, SourceOperator

FORMATS = ("parquet", "jsonl", "csv")


def write(path: Path, table: pa.Table, row_group: int = 100) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=row_group)
    elif path.suffix == ".csv":
        pa_csv.write_csv(table, path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    return path


def numbers(start: int, stop: int) -> pa.Table:
    values = np.arange(start, stop)
    return pa.table({"n": values, "s": [f'row "{n}",\nsecond line' for n in values]})


def opened(source: Files, subtask: int = 0, parallelism: int = 1, **options: object) -> SourceOperator:
    operator = source.operator()
    operator.open(context(subtask, parallelism, **options))  # type: ignore[arg-type]
    return operator


def rows_of(source: Files, max_rows: int = 1000) -> list[dict[str, object]]:
    return [row for batch in poll_all(opened(source), max_rows) for row in batch.to_pylist()]


@contextmanager
def taking_small_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_reader, "BLOCK_BYTES", 300)
        patch.setattr(readers, "_STEP_BYTES", 1)
        yield


@pytest.fixture
def small_steps() -> Iterator[None]:
    with taking_small_steps():
        yield


@pytest.mark.parametrize("format", FORMATS)
def test_every_record_of_every_file_is_read_once_in_the_order_of_the_paths(
    tmp_path: Path, format: str, small_steps: None
) -> None:
    for i in (2, 0, 1):
        write(tmp_path / f"part-{i}.{format}", numbers(i * 100, i * 100 + 100), row_group=30)
    source = Files(tmp_path)
    assert source.bounded and source.schema == pa.schema({"n": pa.int64(), "s": pa.string()})
    batches = poll_all(opened(source), max_rows=17)
    assert all(batch.schema == source.schema for batch in batches)
    assert pa.Table.from_batches(batches).equals(numbers(0, 300))


@pytest.fixture(scope="module")
def three_formats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("input")
    for format in FORMATS:
        write(directory / format / f"a.{format}", numbers(0, 40), row_group=15)
        write(directory / format / "deeper" / f"b.{format}", numbers(40, 70), row_group=7)
        write(directory / format / f"c.{format}", numbers(70, 71))
    return directory


@settings(max_examples=150)
@given(
    format=st.sampled_from(FORMATS),
    stops=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 20)), max_size=4),
    parallelisms=st.lists(st.integers(1, 3), min_size=5, max_size=5),
)
def test_a_source_that_is_stopped_at_any_poll_and_restored_gives_exactly_the_rest(
    three_formats: Path, format: str, stops: list[tuple[int, int]], parallelisms: list[int]
) -> None:
    with taking_small_steps():
        _stop_and_restore(three_formats, format, stops, parallelisms)


def _stop_and_restore(three_formats: Path, format: str, stops: list[tuple[int, int]], parallelisms: list[int]) -> None:
    source = Files(three_formats / format)
    seen: list[int] = []
    parts: list[object] = []
    for (polls, max_rows), parallelism in zip(stops, parallelisms, strict=False):
        operators = [opened(source, i, parallelism, restored=parts) for i in range(parallelism)]
        for operator in operators:
            seen += [row["n"] for row in poll_rows(operator, polls, max_rows)[0]]  # type: ignore[misc]
        parts = [part for i, operator in enumerate(operators) for part in snapshot_of(operator, i)]
    for i in range(2):
        rest = poll_all(opened(source, i, 2, restored=parts), max_rows=13)
        seen += [n for batch in rest for n in batch.column("n").to_pylist()]
    assert sorted(seen) == list(range(71))


def test_files_of_a_subtask_that_had_finished_are_not_read_again_at_another_parallelism(tmp_path: Path) -> None:
    for i in range(8):
        names = (tmp_path / f"{i}-{salt}.csv" for salt in itertools.count())
        write(next(path for path in names if owner_of(str(path), 2) == i % 2), numbers(i, i + 1))
    source = Files(tmp_path)
    first, second = (opened(source, i, 2) for i in range(2))
    done = [n for batch in poll_all(first) for n in batch.column("n").to_pylist()]
    begun, _ = poll_rows(second, 1, 10)
    seen = done + [row["n"] for row in begun]
    rest = poll_all(opened(source, 0, 1, restored=snapshot_of(second, 1)))
    seen += [n for batch in rest for n in batch.column("n").to_pylist()]
    assert done == [0, 2, 4, 6] and sorted(seen) == list(range(8))


def test_a_position_does_not_depend_on_the_size_of_the_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for format in FORMATS:
        source = Files(write(tmp_path / f"x.{format}", numbers(0, 100)))
        operator = opened(source)
        before, _ = poll_rows(operator, 3, 21)
        with monkeypatch.context() as patch:
            patch.setattr(text_reader, "BLOCK_BYTES", 64)
            patch.setattr(readers, "_STEP_BYTES", 1)
            restored = opened(source, restored=snapshot_of(operator, 0))
            # A snapshot while rows are still being passed over keeps the position.
            restored.poll(5)
            again = opened(source, restored=snapshot_of(restored, 0))
            skipped = opened(source, restored=snapshot_of(operator, 0))
            after = [row for batch in poll_all(skipped, 9) for row in batch.to_pylist()]
            assert poll_all(again)
        assert before + after == numbers(0, 100).to_pylist()


def test_a_snapshot_captured_earlier_does_not_move_with_later_polls(tmp_path: Path) -> None:
    operator = opened(Files(write(tmp_path / "x.csv", numbers(0, 100))))
    operator.poll(10)
    [part] = operator.snapshot(None).parts  # type: ignore[arg-type]
    operator.poll(10)
    late = b"".join(part.encode())
    operator.poll(10)
    assert late == b"".join(part.encode())


_TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)


@settings(max_examples=150)
@given(
    rows=st.lists(st.tuples(_TEXT, _TEXT), min_size=1, max_size=30),
    block=st.integers(1, 200),
    max_rows=st.integers(1, 7),
    line_break=st.sampled_from(["\n", "\r\n"]),
)
def test_any_text_in_any_block_size_comes_as_other_programs_wrote_it(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], block: int, max_rows: int, line_break: str
) -> None:
    directory = tmp_path_factory.mktemp("text")
    with open(directory / "x.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator=line_break)
        writer.writerow(["a", "b\n,"])
        writer.writerows(rows)
    lines = (json.dumps({"a": a, "b\n,": b}, ensure_ascii=False) for a, b in rows)
    (directory / "x.jsonl").write_bytes("".join(f"{line}{line_break}" for line in lines).encode())
    expected = [{"a": a, "b\n,": b} for a, b in rows]
    schema = pa.schema({"a": pa.string(), "b\n,": pa.string()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_reader, "BLOCK_BYTES", block)
        for name in ("x.csv", "x.jsonl"):
            assert rows_of(Files(directory / name, schema=schema), max_rows) == expected


# ---- which files ----
def test_hidden_names_are_ignored_and_globs_match_within_their_directory(tmp_path: Path) -> None:
    for name in ("a.csv", "sub/b.csv", "sub/deep/c.csv", "_tmp/d.csv", ".hidden.csv", "_e.csv", "x.txt"):
        write(tmp_path / name, numbers(0, 1)) if name.endswith("csv") else (tmp_path / name).write_text("n,s\n1,x\n")

    def read(*patterns: str) -> list[str]:
        source = Files([tmp_path / pattern for pattern in patterns], format="csv")
        return [os.path.relpath(path, tmp_path) for path in source.files]

    assert read("*.csv") == ["a.csv"]
    assert read("**/*.csv") == ["a.csv", "sub/b.csv", "sub/deep/c.csv"]
    assert read("sub/*/?.csv", "a.csv", "[a-b].csv") == ["a.csv", "sub/deep/c.csv"]
    assert read("[!a].csv", "x.txt") == ["x.txt"]
    assert read("sub") == ["sub/b.csv", "sub/deep/c.csv"]
    assert read("_e.csv") == ["_e.csv"]


def test_a_source_travels_to_the_workers_and_needs_no_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "in" / "x.parquet", numbers(0, 5))
    monkeypatch.chdir(tmp_path)
    travelled = pickle.dumps(Files("in/*.parquet"))
    monkeypatch.chdir("/")
    assert len(rows_of(pickle.loads(travelled))) == 5


def test_a_file_address_reads_the_same_as_its_path(tmp_path: Path) -> None:
    write(tmp_path / "x.csv", numbers(0, 5))
    assert rows_of(Files(f"file://{tmp_path}/*.csv")) == rows_of(Files(tmp_path))


# ---- schemas ----
def test_columns_are_picked_and_converted_by_the_given_schema(tmp_path: Path) -> None:
    for format in FORMATS:
        write(tmp_path / f"x.{format}", pa.table({"b": [1, 2], "other": ["x", "y"], "a": [3, 4]}))
        source = Files(tmp_path / f"x.{format}", schema=pa.schema({"a": pa.float64(), "b": pa.int32()}))
        [batch] = poll_all(opened(source))
        assert batch.schema == source.schema
        assert batch.to_pydict() == {"a": [3.0, 4.0], "b": [1, 2]}


def test_nulls_empty_strings_dates_and_times_come_as_they_were_written(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {
            "s": ["", None, "null", "NA"],
            "d": pl.Series(["2024-02-29", None, "1969-12-31", "2000-01-01"]).str.to_date(),
            "at": pl.Series(["2024-02-29 01:02:03.456", None, "1969-12-31 00:00:00", None]).str.to_datetime(),
            "b": [True, None, False, True],
        }
    )
    schema = table.to_arrow().schema
    schema = pa.schema([pa.field(f.name, pa.string()) if pa.types.is_large_string(f.type) else f for f in schema])
    table.write_csv(tmp_path / "x.csv", quote_style="non_numeric")
    (tmp_path / "x.csv").write_text((tmp_path / "x.csv").read_text().replace('\n"",,', "\n,,"))
    table.write_ndjson(tmp_path / "x.jsonl")
    assert rows_of(Files(tmp_path / "x.jsonl", schema=schema)) == table.to_dicts()
    read = rows_of(Files(tmp_path / "x.csv", schema=schema))
    assert [row["s"] for row in read][2:] == ["null", "NA"] and read[0]["s"] == ""
    assert [{k: v for k, v in row.items() if k != "s"} for row in read] == table.drop("s").to_dicts()


def test_csv_files_may_have_their_columns_in_another_order_or_no_header_or_another_delimiter(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("a;b\n1;x\n")
    (tmp_path / "2.csv").write_text("\ufeffb;a\r\ny;2\r\n\r\n")
    assert rows_of(Files(tmp_path, delimiter=";")) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    (tmp_path / "3.csv").write_text("3;z")
    schema = pa.schema({"a": pa.int64(), "b": pa.string()})
    assert rows_of(Files(tmp_path / "3.csv", schema=schema, header=False, delimiter=";")) == [{"a": 3, "b": "z"}]


def test_empty_files_and_files_without_a_last_line_break_are_read(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text("")
    (tmp_path / "2.jsonl").write_text('\n{"a": 1}\n\n{"a": 2, "new": 5}')
    schema = pa.schema({"a": pa.int64(), "b": pa.string()})
    assert rows_of(Files(tmp_path, schema=schema)) == [{"a": 1, "b": None}, {"a": 2, "b": None}]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: Files(p / "nothing*"), r"there is no file at .*nothing\*$"),
        (lambda p: Files(p / "nothing", watch="1s"), "give schema=... to begin with an empty directory"),
        (lambda p: Files([]), "list of paths is empty"),
        (lambda p: Files(""), "path is empty"),
        (lambda p: Files(p / "x.txt"), r"x\.txt tells no format"),
        (lambda p: Files(p / "x.csv", format="orc"), "format must be one of"),
        (lambda p: Files(p / "x.gz", format="csv"), "unpack it"),
        (lambda p: Files(p / "null.jsonl"), "type of column b cannot be told"),
        (lambda p: Files(p / "x.csv", watch="soon"), "watch='soon' is no duration"),
        (lambda p: Files(p / "x.csv", delimiter=";;"), "delimiter must be one character"),
        (lambda p: Files(p / "x.csv", header=False), "without a header need schema="),
        (lambda p: Files(p / "twice.csv"), "names a column twice: a, a"),
        (lambda p: Files(p / "x.txt", "jsonl"), "no schema can be told from .*x.txt"),
        (
            lambda p: Files(p / "x.csv", schema=pa.schema({"a": pa.list_(pa.int64())})),
            "cannot be read with this schema",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_build_time(tmp_path: Path, make: Callable[[Path], Files], message: str) -> None:
    (tmp_path / "x.txt").write_text("hello")
    (tmp_path / "x.csv").write_text("a\n1\n")
    (tmp_path / "twice.csv").write_text("a,a\n1,2\n")
    (tmp_path / "x.gz").write_bytes(b"\x1f\x8b")
    (tmp_path / "null.jsonl").write_text('{"a": 1, "b": null}\n')
    with pytest.raises(ValueError, match=message):
        make(tmp_path)


# ---- bad files ----
def test_a_bad_row_is_named_with_its_file_and_line(tmp_path: Path, small_steps: None) -> None:
    lines = [f'{{"n": {i}}}' for i in range(200)]
    lines[150] = '{"n": "many"}'
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    schema = pa.schema({"n": pa.int64()})
    with pytest.raises(BadFile, match=r'x\.jsonl, line 151: .*: \{"n": "many"\}$'):
        rows_of(Files(tmp_path / "x.jsonl", schema=schema))
    quoted = ['s,n\n"two\nlines",1', *(f"a,{i}" for i in range(100)), "a,many", "a,5"]
    (tmp_path / "x.csv").write_text("\n".join(quoted))
    with pytest.raises(BadFile, match=r"x\.csv, line 104: .*int64.*'many'.*: a,many$"):
        rows_of(Files(tmp_path / "x.csv", schema=schema))
    (tmp_path / "y.csv").write_text("s,n\na,1\na,2,3\n")
    with pytest.raises(BadFile, match=r"y\.csv, line 3: .*Expected 2 columns, got 3.*: a,2,3$"):
        rows_of(Files(tmp_path / "y.csv", schema=schema))


def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"a": "fine"}\n{"a": "\xff"}\n')
    with pytest.raises(BadFile, match=r"x\.jsonl, line 2: .*utf-8"):
        rows_of(Files(tmp_path / "x.jsonl", schema=pa.schema({"a": pa.string()})))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('a,b\n5" pipe,1\n', "line 2: a quote in the middle of a value"),
        ('a,b\n1,2\n"open,1\n', "line 3: a quote that is never closed"),
    ],
)
def test_quotes_that_leave_it_open_where_a_record_ends_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(BadFile, match=message):
        rows_of(Files(tmp_path / "x.csv", schema=pa.schema({"a": pa.string(), "b": pa.string()})))


def test_a_record_larger_than_a_block_is_read_and_one_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_steps: None
) -> None:
    rows = [{"s": "x" * 5000}, {"s": "y"}]
    (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source = Files(tmp_path)
    assert rows_of(source) == rows
    monkeypatch.setattr(text_reader, "MOST_RECORD_BYTES", 1000)
    with pytest.raises(BadFile, match="record at byte 0 does not end"):
        rows_of(source)


def test_a_parquet_file_that_is_none_or_lacks_a_column_or_has_another_type_is_named(tmp_path: Path) -> None:
    schema = pa.schema({"n": pa.int64()})
    (tmp_path / "x.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(BadFile, match=r"x\.parquet cannot be read as Parquet"):
        rows_of(Files(tmp_path / "x.parquet", schema=schema))
    write(tmp_path / "y.parquet", pa.table({"m": [1]}))
    with pytest.raises(BadFile, match=r"y\.parquet has no column 'n'; it has 'm'"):
        rows_of(Files(tmp_path / "y.parquet", schema=schema))
    write(tmp_path / "z.parquet", pa.table({"n": ["word"]}))
    with pytest.raises(BadFile, match=r"z\.parquet: column 'n' is string, which does not fit int64"):
        rows_of(Files(tmp_path / "z.parquet", schema=schema))


def touched(path: Path) -> None:
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: path.unlink(), "has vanished before it was read to its end"),
        (lambda path: path.write_text("n,s\n1,x\n"), "was changed after the source had seen it"),
        (touched, "was changed after the source had seen it"),
        (lambda path: write(path, numbers(0, 500)), "was changed after the source had seen it"),
    ],
)
def test_a_file_that_changes_or_vanishes_while_it_is_read_or_before_a_restore_is_an_error(
    tmp_path: Path, harm: Callable[[Path], None], message: str
) -> None:
    path = write(tmp_path / "x.csv", numbers(0, 100))
    source = Files(path)
    operator = opened(source)
    operator.poll(10)
    parts = snapshot_of(operator, 0)
    harm(path)
    with pytest.raises(BadFile, match=message):
        poll_all(operator)
    with pytest.raises(BadFile, match=message):
        poll_all(opened(source, restored=parts))


def test_a_file_that_is_done_may_be_removed_but_not_changed(tmp_path: Path) -> None:
    first, second = (write(tmp_path / f"{i}.csv", numbers(i, i + 1)) for i in range(2))
    source = Files(tmp_path)
    operator = opened(source)
    operator.poll(10)
    parts = snapshot_of(operator, 0)
    touched(first)
    with pytest.raises(BadFile, match="was changed"):
        opened(source, restored=parts)
    first.unlink()
    assert [batch.column("n").to_pylist() for batch in poll_all(opened(source, restored=parts))] == [[1]]
    assert second.exists()


# ---- watching ----
class Watch:
    """A source that watches a directory, polled until it has nothing more to say."""

    def __init__(self, directory: Path, **options: object):
        schema = pa.schema({"n": pa.int64(), "s": pa.string()})
        self.source = Files(directory, "csv", schema=schema, watch="5s")
        self.clock = ManualClock()
        self.operator = opened(self.source, clock=self.clock, **options)

    def drain(self) -> list[int]:
        """Everything that is there by now."""
        found: list[int] = []
        for _ in range(10_000):
            polled: Polled = self.operator.poll(10)
            assert not polled.done
            if polled.batch is not None:
                found += polled.batch.column("n").to_pylist()
            elif polled.idle and polled.idle_for > 1:
                return found
            elif polled.idle:
                self.operator._watcher._listing.result()  # type: ignore[attr-defined]
        raise AssertionError("the source never rests")


def test_a_watching_source_finds_new_files_and_is_never_done(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    assert not watch.source.bounded
    assert watch.drain() == []
    write(tmp_path / "z.csv", numbers(0, 25))
    write(tmp_path / "_unfinished.csv", numbers(1000, 1001))
    assert watch.drain() == []
    watch.clock.seconds = 5.0
    assert watch.drain() == list(range(25))
    write(tmp_path / "a.csv", numbers(25, 30))
    watch.clock.seconds = 10.0
    assert watch.drain() == list(range(25, 30))
    watch.operator.close()


def test_a_watching_source_goes_on_after_a_restore_and_forgets_what_was_done_and_removed(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    first = write(tmp_path / "1.csv", numbers(0, 5))
    assert watch.drain() == list(range(5))
    write(tmp_path / "2.csv", numbers(5, 30))
    watch.clock.seconds = 5.0
    while (polled := watch.operator.poll(10)).batch is None:
        assert polled.idle_for < 1
    assert polled.batch.column("n").to_pylist() == list(range(5, 15))
    parts = snapshot_of(watch.operator, 0)
    first.unlink()
    restored = Watch(tmp_path, restored=parts)
    assert restored.drain() == list(range(15, 30))
    [part] = snapshot_of(restored.operator, 0)
    assert b"2.csv" in bytes(part.read()) and b"1.csv" not in bytes(part.read())
    watch.operator.close()
    restored.operator.close()


def test_a_file_that_is_changed_after_it_was_read_stops_a_watching_source(tmp_path: Path) -> None:
    path = write(tmp_path / "1.csv", numbers(0, 5))
    watch = Watch(tmp_path)
    watch.drain()
    write(path, numbers(0, 6))
    watch.clock.seconds = 5.0
    with pytest.raises(BadFile, match="Write new data to new files"):
        watch.drain()
    watch.operator.close()
