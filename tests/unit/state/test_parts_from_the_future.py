"""Parts in a format that a later Penstock wrote: each is refused with the file that it is in and what to do."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from penstock.core.handles import KeyGroupRange, PartKind
from penstock.state.keys import KeyColumns
from penstock.state.operator_parts import OperatorStateHeader, encode_part, read_part
from penstock.state.parts import RestoredPart
from penstock.state.tables import FORMAT_VERSION, StateHeader, StateMismatch, read_table

FILE = "checkpoints/7/g1-a1-totals-0-3.data"
REFUSED = rf"the state 'total' of subtask 2 in {FILE} is stored in format 9, but this Penstock reads format 1: restore"


def part_with(content: bytes, kind: PartKind) -> RestoredPart:
    return RestoredPart("total", kind, 2, lambda: memoryview(content), path=FILE)


def test_keyed_state() -> None:
    header = StateHeader(FORMAT_VERSION + 8, "value", "total", {"type": "int"})
    fields = [("key_group", pa.int32()), ("key.user", pa.int64()), ("value", pa.int64())]
    schema = pa.schema(fields, {b"penstock.state": msgspec.json.encode(header)})
    sink = pa.BufferOutputStream()
    pa.ipc.new_file(sink, schema).close()
    keys = KeyColumns(pa.schema([("user", pa.int64())]), ["user"])
    with pytest.raises(StateMismatch, match=REFUSED):
        read_table(part_with(sink.getvalue().to_pybytes(), PartKind.KEYED), keys, KeyGroupRange(0, 128))


def test_operator_state() -> None:
    header = OperatorStateHeader(FORMAT_VERSION + 8, "operator_list", "total", {"type": "int"}, 3)
    content = b"".join(map(bytes, encode_part(header, {})))
    with pytest.raises(StateMismatch, match=REFUSED):
        read_part(part_with(content, PartKind.UNION))


def test_files_of_rocksdb() -> None:
    native = pytest.importorskip("penstock.state.rocks.native", reason="needs rocksdict", exc_type=ImportError)
    content = msgspec.msgpack.encode({"version": native.VERSION + 8, "tables": "kept in another way"})
    with pytest.raises(StateMismatch, match=REFUSED):
        native._decoded(part_with(content, PartKind.KEYED))
