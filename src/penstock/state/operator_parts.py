"""State of an operator's instance as a part: an Arrow IPC file that says in its schema's metadata what it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.state.codec import Codec, encode_in_runs
from penstock.state.parts import Buffer, RestoredPart
from penstock.state.schema import Description
from penstock.state.tables import FORMAT_VERSION, StateMismatch

_METADATA = b"penstock.state"


class OperatorStateHeader(msgspec.Struct, frozen=True):
    """What a part says about itself."""

    version: int
    kind: str
    name: str
    description: Description
    parallelism: int
    """Of the writer."""
    key: Description | None = None


def encode_part(header: OperatorStateHeader, columns: Mapping[str, tuple[Codec, list[Any]]]) -> Sequence[Buffer]:
    arrays = {name: encode_in_runs(codec, values) for name, (codec, values) in columns.items()}
    schema = pa.schema(
        [pa.field(name, values.type) for name, values in arrays.items()], {_METADATA: msgspec.json.encode(header)}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(pa.Table.from_arrays(list(arrays.values()), schema=schema))
    return (memoryview(sink.getvalue()),)


def read_part(part: RestoredPart) -> tuple[OperatorStateHeader, pa.Table]:
    table = pa.ipc.open_file(pa.py_buffer(part.read())).read_all()
    metadata = (table.schema.metadata or {}).get(_METADATA)
    if metadata is None:
        raise StateMismatch(f"the part {part.name!r} of subtask {part.subtask} holds no operator state")
    version = msgspec.json.decode(metadata)["version"]
    if version != FORMAT_VERSION:
        raise StateMismatch(
            f"the state {part.name!r} is stored in format {version}, but this Penstock reads format {FORMAT_VERSION}: "
            "restore it with the version of Penstock that wrote it, or with a newer one"
        )
    return msgspec.json.decode(metadata, type=OperatorStateHeader), table
