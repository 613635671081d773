"""Values of columns as bytes, one by one, and back."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.state.cells import NULL, cells_of

int64 = st.integers(-(2**63), 2**63 - 1)
COLUMNS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): int64,
    pa.uint8(): st.integers(0, 255),
    pa.float64(): st.floats(allow_nan=False),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(),
    pa.large_string(): st.text(),
    pa.large_binary(): st.binary(),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.decimal128(20, 2): st.decimals(-(10**9), 10**9, places=2),
    pa.struct([("a", pa.int64()), ("b", pa.string())]): st.fixed_dictionaries(
        {"a": st.none() | int64, "b": st.none() | st.text()}
    ),
    pa.struct([]): st.just({}),
    pa.list_(pa.int32()): st.lists(st.none() | st.integers(0, 9)),
    pa.large_list(pa.struct([("key", pa.string()), ("value", pa.list_(pa.bool_()))])): st.lists(
        st.fixed_dictionaries({"key": st.text(), "value": st.lists(st.booleans())})
    ),
    pa.dictionary(pa.int32(), pa.string()): st.text(),
    pa.map_(pa.string(), pa.int64()): st.lists(st.tuples(st.text(), int64)),
    pa.list_(pa.int64(), 2): st.lists(int64, min_size=2, max_size=2),
    pa.null(): st.none(),
}


@pytest.mark.parametrize("kind", COLUMNS, ids=str)
@given(data=st.data())
@settings(max_examples=25)
def test_a_column_comes_back_from_its_cells_wherever_it_was_cut(kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | COLUMNS[kind], max_size=8))
    start = data.draw(st.integers(0, len(values)))
    column = pa.array(values, kind)[start:]
    cells = cells_of(kind)
    back = cells.load(cells.dump(column))
    back.validate(full=True)
    assert (back.type, back.to_pylist()) == (kind, column.to_pylist())


def test_cells_have_the_form_that_is_written_down() -> None:
    cases: dict[pa.DataType, tuple[Any, bytes]] = {
        pa.int64(): (1, b"\1\0\0\0\0\0\0\0"),
        pa.bool_(): (True, b"\1"),
        pa.float64(): (1.0, b"\0\0\0\0\0\0\xf0?"),
        pa.large_string(): ("ä", b"\0\xc3\xa4"),
        pa.large_binary(): (b"", b"\0"),
        pa.date32(): (dt.date(1970, 1, 2), b"\1\0\0\0"),
        pa.decimal128(5, 1): (Decimal("0.1"), b"\1" + bytes(15)),
        pa.struct([("a", pa.uint8()), ("b", pa.string())]): ({"a": 7, "b": None}, b"\x92\xc4\1\7\xc4\0"),
        pa.large_list(pa.uint8()): ([1, 2], b"\x92\xc4\1\1\xc4\1\2"),
    }
    for kind, (value, cell) in cases.items():
        assert cells_of(kind).dump(pa.array([value, None], kind)) == [cell, NULL]
