"""Keys and values as records of RocksDB."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.handles import KeyGroupRange
from penstock.kernels.partition import key_groups_of
from penstock.state.keys import KeyColumns
from penstock.state.rocks.records import GROUP_BYTES, Records, bounds

KEYS = st.tuples(st.none() | st.text(), st.none() | st.floats(), st.integers(-5, 5))
SCHEMA = pa.schema([("text", pa.string()), ("number", pa.float64()), ("day", pa.date32())])


@given(keys=st.lists(KEYS, min_size=1, max_size=20), groups=st.sampled_from([1, 8, 32_768]))
def test_a_key_comes_back_and_begins_with_its_group(keys: list[tuple[Any, Any, Any]], groups: int) -> None:
    columns = KeyColumns(SCHEMA, SCHEMA.names)
    batch = pa.RecordBatch.from_arrays(columns.to_arrow(keys), schema=SCHEMA)
    raw = columns.of(batch)
    records = Records(columns, groups, pa.int64())
    stored = records.keys(raw)
    assert list(map(repr, records.raw_keys(stored))) == [repr(key).replace("-0.0", "0.0") for key in raw]
    assert [int.from_bytes(key[:GROUP_BYTES], "big") for key in stored] == key_groups_of(
        batch, tuple(SCHEMA.names), groups
    ).tolist()


def test_equal_keys_have_equal_bytes() -> None:
    columns = KeyColumns(pa.schema([("number", pa.float32())]), ["number"])
    raw = columns.from_arrow([pa.array([0.0, -0.0, math.nan, -math.nan], pa.float32())])
    zero, minus_zero, nan, minus_nan = Records(columns, 8, pa.int64()).keys(raw)
    assert (zero, nan) == (minus_zero, minus_nan)


def test_the_last_key_group_has_an_end() -> None:
    assert bounds(KeyGroupRange(0, 32_768)) == (b"\0\0", b"\x80\0")
