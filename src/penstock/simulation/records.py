"""The records of a simulated job: every one tells where it came from and which way it went.

`id` names source, split and place in the split. `path` tells which nodes the record went through: the oracle knows it
beforehand. `route` tells which subtasks it went through: two records with the same origin and route came through the
same channels all the way, so they must arrive in the order in which they left. `seq` and `total` are what the last
stateful operator knew when it let the record pass.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.simulation.topology import Node, Topology

SCHEMA: Final = pa.schema(
    [(name, pa.int64()) for name in ("id", "key", "value", "time", "path", "route", "seq", "total")]
)
COLUMNS: Final = tuple(SCHEMA.names)
AGGREGATE_SCHEMA: Final = pa.schema([("key", pa.int64()), ("n", pa.int64()), ("total", pa.int64())])

BUCKET_MS: Final = 60
"""Event-time timers are set on multiples of this."""
STEP_MS: Final = 7
"""Between two records of one split."""
AFTER_ALL: Final = 1 << 60
"""The event time of rows that are put out when all input has ended: they cannot be late."""
_PATHS: Final = (1 << 31) - 1
SEQ_BASE: Final = 1_000_000
"""`seq` is the stateful node's number times this, plus the count of the key there."""


class Row(NamedTuple):
    id: int
    key: int
    value: int
    time: int
    path: int


def identity(node: int, split: int, index: int) -> int:
    return (node << 40) | (split << 32) | index


def origin_of(id: int) -> int:
    """Source and split: records with the same origin left in the order of their ids."""
    return id >> 32


def timer_identity(node: int, key: int, bucket: int) -> int:
    """Rows that timers put out have no origin: their ids are negative."""
    return -((node << 40) | (key << 20) | bucket) - 1


def place_of(id: int) -> tuple[int, int, int]:
    """Source, split and place in the split."""
    return id >> 40, id >> 32 & 0xFF, id & 0xFFFFFFFF


def held_identity(node: int, id: int) -> int:
    """Of the copy of a record that a node kept in its state and puts out at the end."""
    return -(1 << 60 | node << 48 | id) - 1


def row_of(node: int, split: int, index: int, keys: int) -> Row:
    id = identity(node, split, index)
    mixed = (index * 2654435761 + split * 40503 + node * 97) & 0xFFFFFFFF
    return Row(id, (mixed >> 9) % keys, (mixed >> 3) % 1000, index * STEP_MS, 0)


def split_rows(topology: Topology, node: Node, split: int) -> list[Row]:
    return [row_of(node.number, split, index, topology.keys) for index in range(node.rows[split])]


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    columns = [np.array([row[place] for row in rows], dtype=np.int64) for place in range(len(Row._fields))]
    columns += [np.zeros(len(rows), dtype=np.int64)] * 3
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=SCHEMA)


def next_path(path: int, node: int) -> int:
    return (path * 131 + node + 1) % _PATHS


def next_paths(
    paths: np.ndarray[tuple[int], np.dtype[np.int64]], step: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """`next_path` of a whole column; also steps routes, by node and subtask in one number."""
    return (paths * 131 + step + 1) % _PATHS


def kept(id: int, node: int) -> bool:
    """What a filter node lets pass."""
    return (id ^ (id >> 7)) % 3 != node % 3
