"""Raising the key groups of a savepoint: the same rows in more groups, everything else as it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from penstock.cli import app
from penstock.core.barrier import Mode, Purpose
from penstock.core.handles import KeyGroupRange, PartKind
from penstock.core.ids import Attempt, ChainId, ChannelId, CheckpointId, EdgeId, Generation, SubtaskId, Uid
from penstock.core.keygroups import range_of
from penstock.core.record import ChainRecord, CheckpointRecord, GraphRecord, OperatorRecord, SubtaskRecord
from penstock.core.restore import plan_restore
from penstock.kernels.partition import key_groups_of, partition
from penstock.simulation.files import MemoryFiles
from penstock.state.keys import KeyColumns
from penstock.state.parts import CapturedPart, RestoredPart
from penstock.state.tables import encode_table, read_table
from penstock.store.checkpoints import CheckpointStore
from penstock.store.errors import CorruptCheckpoint
from penstock.store.files import Files
from penstock.store.local import LocalFiles
from penstock.store.parts import restored, write_parts
from penstock.store.rehash import CannotRehash, rehash
from penstock.store.savepoints import METADATA, Snapshot, find_snapshot, read_savepoint, write_savepoint

GROUPS = 16
CHAIN, UID = ChainId("total"), Uid("total")
ROWS = pa.record_batch(
    {"user": [*range(3_000), None], "name": [*(f"n{i % 7}" for i in range(3_000)), None], "value": range(3_001)}
)


def keyed(rows: pa.RecordBatch, key: Sequence[str], parallelism: int) -> list[CapturedPart | None]:
    """What each subtask would write of these rows."""
    keys = KeyColumns(rows.schema, key)

    def captured(index: int, own: pa.RecordBatch) -> CapturedPart:
        columns = [own.column(name) for name in key]
        values = {"value": own.column("value")}
        encode = lambda: encode_table("value", "sum", {"type": "int"}, keys, GROUPS, columns, values)  # noqa: E731
        return CapturedPart("sum", PartKind.KEYED, encode, key_groups=range_of(GROUPS, parallelism, index))

    shares = partition(rows, tuple(key), GROUPS, parallelism)
    return [None if share is None else captured(index, share) for index, share in enumerate(shares)]


def saved(
    files: Files, rows: pa.RecordBatch, key: Sequence[str], parallelism: int, inline: int = 0, **more: Any
) -> Snapshot:
    """A savepoint of keyed state."""
    subtasks = []
    for index, part in enumerate(keyed(rows, key, parallelism)):
        others = [CapturedPart("raw", PartKind.LIST, lambda: (b"raw bytes",))]
        parts = {UID: [*([part] if part else []), *others]}
        handles = write_parts(files, f"written/{index}.data", parts, inline)
        subtasks.append(SubtaskRecord(SubtaskId(CHAIN, index), tuple(handles)))
    types = tuple(f"{name}: {rows.schema.field(name).type}" for name in key)
    operator = OperatorRecord(UID, "reduce", True, key=types)
    graph = GraphRecord("orders", GROUPS, (ChainRecord(CHAIN, parallelism, (operator,)),), ())
    record = CheckpointRecord(
        CheckpointId(7),
        Generation(1),
        Attempt(1),
        Mode.ALIGNED,
        Purpose.SAVEPOINT,
        1,
        2,
        graph,
        tuple(subtasks),
        **more,
    )
    return Snapshot(files, "written", record, "savepoint", True)


def rows_of(snapshot: Snapshot, key: Sequence[str], schema: pa.Schema, parallelism: int) -> list[pl.DataFrame]:
    """What each of so many subtasks would restore."""
    graph = snapshot.record.graph
    chains = tuple(replace(chain, parallelism=parallelism) for chain in graph.chains)
    plan = plan_restore(snapshot.record, replace(graph, chains=chains))
    keys, found = KeyColumns(schema, key), []
    for index in range(parallelism):
        own = range_of(graph.key_groups, parallelism, index)
        parts = [
            restored(snapshot.files, snapshot.directory, *handle)[1] for handle in plan[SubtaskId(CHAIN, index)].handles
        ]
        batches = [batch for part in parts if part.kind is PartKind.KEYED for batch in read_table(part, keys, own)[1]]
        if batches:
            found.append(pl.DataFrame(pa.Table.from_batches(batches)))
    return found


def assert_same_rows(found: list[pl.DataFrame], rows: pa.RecordBatch, key: Sequence[str], total: int) -> None:
    """Every row once, in the group that its key belongs to."""
    expected = pl.DataFrame(pa.Table.from_batches([rows])).with_columns(
        key_group=pl.Series(key_groups_of(rows, tuple(key), total), dtype=pl.Int32)
    )
    both = pl.concat(found).rename({f"key.{name}": name for name in key}).select(*key, "value", "key_group")
    assert both.sort("value").equals(expected.select(both.columns).sort("value"))


@pytest.mark.parametrize("key", [("user",), ("name", "user")])
@pytest.mark.parametrize(("old", "new"), [(1, 1), (3, 3), (4, 100), (16, 2)])
def test_every_key_is_in_its_new_group_and_with_its_new_owner(key: tuple[str, ...], old: int, new: int) -> None:
    files = MemoryFiles()
    done = rehash(saved(MemoryFiles(), ROWS, key, old), files, 128)
    divided = read_savepoint(files, "new")
    assert (done.former_key_groups, done.key_groups, divided.record.graph.key_groups) == (16, 128, 128)
    assert_same_rows(rows_of(divided, key, ROWS.schema, new), ROWS, key, 128)


@settings(max_examples=25)
@given(
    users=st.lists(st.one_of(st.none(), st.text(max_size=12)), min_size=1, max_size=200, unique=True),
    old=st.integers(1, 16),
    new=st.integers(1, 64),
)
def test_any_keys_at_any_size(users: list[str | None], old: int, new: int) -> None:
    rows = pa.record_batch({"user": pa.array(users, pa.string()), "value": range(len(users))})
    files = MemoryFiles()
    rehash(saved(MemoryFiles(), rows, ("user",), old), files, 64)
    assert_same_rows(rows_of(read_savepoint(files, "new"), ("user",), rows.schema, new), rows, ("user",), 64)


def test_it_can_be_raised_again(tmp_path: Path) -> None:
    first, second = MemoryFiles(), MemoryFiles()
    rehash(saved(MemoryFiles(), ROWS, ("user",), 3), first, 32)
    rehash(read_savepoint(first, "first"), second, 1024)
    divided = read_savepoint(second, "second")
    assert divided.record.graph.dealt_groups == GROUPS
    assert_same_rows(rows_of(divided, ("user",), ROWS.schema, 3), ROWS, ("user",), 1024)


def test_ranges_are_told_in_the_new_numbers_and_other_parts_are_copied() -> None:
    files = MemoryFiles()
    rehash(saved(MemoryFiles(), ROWS, ("user",), 3), files, 128)
    divided = read_savepoint(files, "new")
    keyed_parts = [part for entry in divided.record.subtasks for part in entry.handles if part.kind is PartKind.KEYED]
    assert [part.key_groups for part in keyed_parts] == [
        KeyGroupRange(0, 48),
        KeyGroupRange(48, 88),
        KeyGroupRange(88, 128),
    ]
    others = [part for entry in divided.record.subtasks for part in entry.handles if part.kind is PartKind.LIST]
    assert [bytes(restored(files, "", 0, part)[1].read()) for part in others] == [b"raw bytes"] * 3


def test_layers_stay_layers_and_what_was_inline_stays_inline() -> None:
    snapshot = saved(MemoryFiles(), ROWS.slice(0, 20), ("user",), 1, inline=1 << 20)
    entry = snapshot.record.subtasks[0]
    layered = replace(entry, handles=(*entry.handles, replace(entry.handles[0], layer=1, origin=CheckpointId(3))))
    files = MemoryFiles()
    rehash(replace(snapshot, record=replace(snapshot.record, subtasks=(layered,))), files, 128)
    divided = read_savepoint(files, "new").record.subtasks[0].handles
    assert [(part.name, part.layer, part.origin) for part in divided] == [
        ("sum", 0, None),
        ("raw", 0, None),
        ("sum", 1, None),
    ]
    assert all(part.inline is not None for part in divided) and [file.path for file in files.list("")] == [METADATA]


def test_records_in_flight_and_output_to_be_committed_are_kept() -> None:
    committables = {Uid("out"): (b"one", b"two")}
    source = MemoryFiles()
    snapshot = saved(source, ROWS, ("user",), 1, committables=committables)
    channel = ChannelId(EdgeId(0), 0, 0)
    (flying,) = write_parts(
        source,
        "written/flying.data",
        {UID: [CapturedPart("in", PartKind.INPUT_CHANNEL, lambda: (b"rows",), channel=channel)]},
    )
    entry = snapshot.record.subtasks[0]
    record = replace(snapshot.record, subtasks=(replace(entry, handles=(*entry.handles, flying)),))
    files = MemoryFiles()
    rehash(replace(snapshot, record=record), files, 128)
    divided = read_savepoint(files, "new")
    assert divided.record.committables == committables
    part: RestoredPart = restored(files, "", 0, divided.record.subtasks[0].handles[-1])[1]
    assert (part.channel, bytes(part.read())) == (channel, b"rows")


@pytest.mark.parametrize(
    ("key_groups", "reason"),
    [
        (16, "can only be raised"),
        (8, "can only be raised"),
        (100, "power of two"),
        (1 << 16, "power of two from 1 to 32768"),
    ],
)
def test_what_is_no_raise_is_refused(key_groups: int, reason: str) -> None:
    files = MemoryFiles()
    with pytest.raises(CannotRehash, match=reason):
        rehash(saved(MemoryFiles(), ROWS, ("user",), 1), files, key_groups)
    assert not files.list("")


def test_a_part_that_is_damaged_is_refused_and_nothing_is_complete() -> None:
    source, files = MemoryFiles(), MemoryFiles()
    snapshot = saved(source, ROWS, ("user",), 1)
    content = bytearray(source.read("written/0.data"))
    content[len(content) // 2] ^= 1
    source.write("written/0.data", [bytes(content)])
    with pytest.raises(CorruptCheckpoint, match="part 'sum' of operator 'total' is not what was written"):
        rehash(snapshot, files, 128)
    assert not files.exists(METADATA)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"an SST file", "no Arrow IPC file"), (None, "not those of state under a key of 1")],
    ids=["other bytes", "another table"],
)
def test_keyed_state_of_another_form_is_refused_by_name(content: bytes | None, reason: str) -> None:
    if content is None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, ROWS.schema) as writer:
            writer.write_batch(ROWS)
        content = sink.getvalue().to_pybytes()
    source, whole = MemoryFiles(), content
    part = CapturedPart("sum", PartKind.KEYED, lambda: (whole,), key_groups=KeyGroupRange(0, 16))
    snapshot = saved(source, ROWS, ("user",), 1)
    handles = tuple(write_parts(source, "written/other.data", {UID: [part]}))
    record = replace(snapshot.record, subtasks=(replace(snapshot.record.subtasks[0], handles=handles),))
    with pytest.raises(CannotRehash, match=rf"the state 'sum' of operator 'total' .* {reason}"):
        rehash(replace(snapshot, record=record), MemoryFiles(), 128)


def test_state_that_is_stored_as_files_of_rocksdb_is_refused_with_what_to_do() -> None:
    source, own = MemoryFiles(), KeyGroupRange(0, 16)
    part = CapturedPart("sum", PartKind.KEYED, lambda: (b"a table",), key_groups=own, piece="ab12-000012.sst")
    snapshot = saved(source, ROWS, ("user",), 1)
    handles = tuple(write_parts(source, "written/other.data", {UID: [part]}))
    record = replace(snapshot.record, subtasks=(replace(snapshot.record.subtasks[0], handles=handles),))
    with pytest.raises(
        CannotRehash, match=r"the state 'sum' of operator 'total' .* files of RocksDB: take a savepoint"
    ):
        rehash(replace(snapshot, record=record), MemoryFiles(), 128)


def test_rows_in_wrong_groups_are_noticed() -> None:
    """As if the number of former groups were not what the metadata says."""
    snapshot = saved(MemoryFiles(), ROWS, ("user",), 1)
    graph = replace(snapshot.record.graph, key_groups=32)
    with pytest.raises(CannotRehash, match="not in the key groups that their keys belong to"):
        rehash(replace(snapshot, record=replace(snapshot.record, graph=graph)), MemoryFiles(), 128)


def test_a_savepoint_is_not_written_over(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    rehash(saved(MemoryFiles(), ROWS, ("user",), 1), files, 32)
    with pytest.raises(FileExistsError, match="a directory of its own"):
        rehash(saved(MemoryFiles(), ROWS, ("user",), 1), files, 32)


def test_the_command_takes_a_savepoint_and_the_new_one_can_be_started_from(tmp_path: Path) -> None:
    snapshot = saved(MemoryFiles(), ROWS, ("user",), 3)
    write_savepoint(snapshot.files, "written", snapshot.record, LocalFiles(str(tmp_path / "old")))
    typed = ["rehash", str(tmp_path / "old"), str(tmp_path / "new"), "--key-groups", "128"]
    result = CliRunner().invoke(app, [*typed, "--json"], catch_exceptions=False)
    told = json.loads(result.stdout)
    assert (told["former_key_groups"], told["key_groups"], told["keyed_parts"], told["copied_parts"]) == (16, 128, 3, 3)
    claim = CheckpointStore(LocalFiles(str(tmp_path / "job")), "orders").claim(find_snapshot(str(tmp_path / "new")))
    assert claim.newest is not None and claim.newest.graph.key_groups == 128
