"""Keyed state as a file: the owner of some key groups finds their rows, and no others, in whatever order they lie."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.handles import KeyGroupRange, PartKind
from penstock.state.keys import KeyColumns
from penstock.state.parts import RestoredPart
from penstock.state.tables import encode_in_turn, encode_rows, read_table, table_schema

KEYS = KeyColumns(pa.schema([("key", pa.int64())]), ["key"])
SCHEMA = table_schema("kind", "state", {}, KEYS, {"value": pa.int64()})
GROUPS = 16


def ordered(keys: list[int]) -> bytes:
    column = pa.array(keys, pa.int64())
    types = {"value": pa.int64()}
    return b"".join(
        encode_rows("kind", "state", {}, KEYS, GROUPS, [column], types, lambda rows: [column.take(pa.array(rows))])
    )


def in_turn(keys: list[int]) -> bytes:
    column = pa.array(keys, pa.int64())

    def portion(rows: slice) -> list[pa.Array]:
        return [column.slice(rows.start, rows.stop - rows.start)]

    return b"".join(encode_in_turn(SCHEMA, KEYS, GROUPS, len(keys), portion, portion))


@pytest.mark.parametrize("encode", [ordered, in_turn])
@given(st.lists(st.integers(0, 1 << 40), max_size=60, unique=True), st.lists(st.integers(0, GROUPS), max_size=4))
def test_owners_of_all_key_groups_together_find_every_row_once(
    encode: Callable[[list[int]], bytes], keys: list[int], bounds: list[int]
) -> None:
    content = encode(keys)
    edges = sorted({0, GROUPS, *bounds})
    found: list[int] = []
    for start, end in pairwise(edges):
        part = RestoredPart("state", PartKind.KEYED, 0, lambda: memoryview(content))
        for batch in read_table(part, KEYS, KeyGroupRange(start, end))[1]:
            assert all(start <= group < end for group in batch.column("key_group").to_pylist())
            assert batch.column("key.key") == batch.column("value")
            found += batch.column("value").to_pylist()
    assert sorted(found) == sorted(keys)


@given(st.lists(st.integers(0, 1 << 40), max_size=60))
def test_rows_in_turn_keep_their_order(keys: list[int]) -> None:
    part = RestoredPart("state", PartKind.KEYED, 0, lambda: memoryview(in_turn(keys)))
    batches = read_table(part, KEYS, KeyGroupRange(0, GROUPS))[1]
    assert [key for batch in batches for key in batch.column("value").to_pylist()] == keys
