"""Values of NumPy's and Arrow's types, pickled ones on request, and lists and dicts of them with stamps."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state.codec import Codec, codec_for
from penstock.state.composite import ListColumns, MapColumns, StampedValues
from penstock.state.errors import UnstorableValue, UnsupportedType
from penstock.state.schema import show


@dataclass
class Reading:
    at: np.float32
    level: np.uint64
    ok: np.bool_


class Point(NamedTuple):
    x: int
    y: float


class Order(msgspec.Struct):
    price: Decimal
    when: dt.datetime


class Opaque:
    """Nothing that a codec knows."""

    def __init__(self, inner: list[int]) -> None:
        self.inner = inner

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other.inner == self.inner

    def __hash__(self) -> int:
        return hash(tuple(self.inner))


def there_and_back(codec: Codec, values: list[Any]) -> list[Any]:
    column = codec.encode(values)
    assert column.type == codec.arrow_type
    table = pa.table({"value": column})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    read = pa.ipc.open_file(sink.getvalue()).get_batch(0).column(0)
    # As a restore does, which reads slices.
    assert codec.decode(read.slice(1)) == codec.decode(read)[1:]
    return codec.decode(read)


@pytest.mark.parametrize("scalar", [np.int8, np.uint64, np.float32, np.float64, np.bool_, np.int32])
def test_a_numpy_scalar_comes_back_as_its_own_type(scalar: type[np.generic]) -> None:
    values = [scalar(0), scalar(1)]  # type: ignore[call-arg]
    read = there_and_back(codec_for(scalar), values)
    assert read == values
    assert {type(value) for value in read} == {scalar}


def test_numpy_fields_of_a_record_come_back_as_their_own_types() -> None:
    values = [
        Reading(np.float32(0.1), np.uint64(2**64 - 1), np.bool_(True)),
        Reading(*map(np.float32, (1, 2)), np.False_),
    ]  # type: ignore[arg-type]
    (first, second) = there_and_back(codec_for(Reading), values)
    assert first == values[0]
    assert (type(first.at), type(first.level), type(second.ok)) == (np.float32, np.uint64, np.bool_)


@pytest.mark.parametrize(
    ("scalar", "value"), [(np.int8, 128), (np.uint8, -1), (np.int32, 1.5), (np.float32, 1e300), (np.int64, "7")]
)
def test_a_value_that_is_not_of_the_numpy_type_is_refused(scalar: type[np.generic], value: object) -> None:
    with pytest.raises(UnstorableValue, match=f"is no {scalar.__name__}"):
        codec_for(scalar).encode([value])


def test_numpy_times_are_not_offered() -> None:
    with pytest.raises(UnsupportedType, match="use None, bool, int"):
        codec_for(np.datetime64)


ARROW: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [1, None, -3]),
    (pa.float32(), [0.5, None]),
    (pa.decimal128(10, 2), [Decimal("1.50"), None]),
    (pa.timestamp("us", "UTC"), [dt.datetime(2024, 2, 29, tzinfo=dt.UTC), None]),
    (pa.list_(pa.int64()), [[1, 2], [], None]),
    (pa.struct([("a", pa.int32()), ("b", pa.string())]), [{"a": 1, "b": "x"}, None]),
]


@pytest.mark.parametrize(("kind", "values"), ARROW, ids=lambda part: str(part) if isinstance(part, pa.DataType) else "")
def test_values_of_an_arrow_type_come_back(kind: pa.DataType, values: list[Any]) -> None:
    codec = codec_for(kind)
    assert there_and_back(codec, values) == values
    assert show(codec.description) == f"Arrow's {kind}"
    assert (codec.copy is None) == (not pa.types.is_nested(kind))


@pytest.mark.parametrize(
    ("kind", "value"), [(pa.int8(), 300), (pa.int64(), "x"), (pa.date32(), dt.datetime(2024, 1, 1, 5))]
)
def test_a_value_that_is_not_of_the_arrow_type_is_refused(kind: pa.DataType, value: object) -> None:
    with pytest.raises(UnstorableValue):
        codec_for(kind).encode([value])


def test_pickle_is_never_used_unasked() -> None:
    with pytest.raises(UnsupportedType, match="or any class with pickle=True"):
        codec_for(Opaque)
    codec = codec_for(Opaque, pickled=True)
    value = Opaque([1])
    assert there_and_back(codec, [value, value]) == [value, value]
    assert codec.copy is not None
    assert codec.copy(value).inner is not value.inner
    with pytest.raises(UnstorableValue, match="a value of type function cannot be pickled"):
        codec.encode([lambda: None])


STAMPED = st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**50))


@given(st.lists(STAMPED, min_size=1))
def test_stamped_values_come_back(values: list[tuple[int, int]]) -> None:
    assert there_and_back(StampedValues(codec_for(int)), values) == values


@given(st.lists(st.lists(STAMPED), min_size=1))
def test_lists_of_stamped_items_come_back(values: list[list[tuple[int, int]]]) -> None:
    assert there_and_back(ListColumns(StampedValues(codec_for(int))), values) == values


@given(st.lists(st.dictionaries(st.text(), STAMPED), min_size=1))
def test_dicts_of_stamped_items_come_back(values: list[dict[str, tuple[int, int]]]) -> None:
    assert there_and_back(MapColumns(codec_for(str), StampedValues(codec_for(int))), values) == values


RECORDS = [Point(1, 2.0), Order(Decimal("1.5"), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)), Opaque([3])]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_items_of_any_type_can_be_stamped(record: Any) -> None:
    codec = StampedValues(codec_for(type(record), pickled=isinstance(record, Opaque)))
    assert there_and_back(ListColumns(codec), [[(record, 5)], [], [(record, 6), (record, 7)]]) == [
        [(record, 5)],
        [],
        [(record, 6), (record, 7)],
    ]


def test_a_copy_of_stamped_items_shares_nothing_that_can_change() -> None:
    codec = ListColumns(StampedValues(codec_for(list[int])))
    value = [([1], 5)]
    copied = codec.copy(value)
    copied[0][0].append(2)
    assert value == [([1], 5)]
    assert MapColumns(codec_for(str), codec_for(int)).copy({"a": 1}) == {"a": 1}
