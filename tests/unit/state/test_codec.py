"""Values come back as they were, or are refused when they are written."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import sys
import uuid
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from penstock.state.codec import codec_for
from penstock.state.errors import UnstorableValue, UnsupportedType
from penstock.state.schema import fits, show


@dataclasses.dataclass
class Visit:
    page: str
    seconds: float
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: int


class Pair(NamedTuple):
    number: int
    last: str | None


class Tree(msgspec.Struct):
    label: str
    children: list[Tree] = []


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


int64 = st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]))
TYPES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: int64,
    float: st.floats(allow_nan=False),
    str: text,
    bytes: st.binary(),
    int | None: st.none() | int64,
    str | None: st.none() | text,
    type(None): st.none(),
    tuple[int, str]: st.tuples(int64, text),
    tuple[int, float | None, bytes]: st.tuples(int64, st.none() | st.floats(allow_nan=False), st.binary()),
    tuple[int, ...]: st.lists(int64).map(tuple),
    tuple[list[int], str]: st.tuples(st.lists(int64), text),
    list[int]: st.lists(int64),
    list: st.lists(int64 | text | st.none()),
    set[str]: st.sets(text),
    dict[str, float]: st.dictionaries(text, st.floats(allow_nan=False)),
    dict[int, list[str]]: st.dictionaries(int64, st.lists(text)),
    dict[tuple[int, int], str]: st.dictionaries(st.tuples(int64, int64), text),
    int | str | None: int64 | text | st.none(),
    Visit: st.builds(Visit, text, st.floats(allow_nan=False), st.lists(text)),
    Point: st.builds(Point, int64, int64),
    Pair: st.builds(Pair, int64, st.none() | text),
    Tree: st.recursive(
        st.builds(Tree, text), lambda inner: st.builds(Tree, text, st.lists(inner, max_size=3)), max_leaves=5
    ),
    Colour: st.sampled_from(Colour),
    dt.datetime: st.datetimes() | st.datetimes(timezones=st.just(dt.UTC)),
    dt.date: st.dates(),
    dt.timedelta: st.timedeltas(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    uuid.UUID: st.uuids(),
}


@given(st.data())
@settings(max_examples=25)
@pytest.mark.parametrize("declared", TYPES, ids=str)
def test_values_of_every_type_come_back_as_they_were(declared: Any, data: st.DataObject) -> None:
    codec = codec_for(declared)
    values = data.draw(st.lists(TYPES[declared], max_size=10))
    column = codec.encode(values)
    assert column.type == codec.arrow_type
    decoded = codec.decode(column)
    assert decoded == values
    assert [type(value) for value in decoded] == [type(value) for value in values]


@pytest.mark.parametrize("declared", TYPES, ids=str)
def test_the_description_of_a_type_is_json_and_fits_itself_only(declared: Any) -> None:
    description = codec_for(declared).description
    assert fits(msgspec.json.decode(msgspec.json.encode(description)), description)
    fitting = [other for other in TYPES if fits(codec_for(other).description, description)]
    assert fitting == [declared]


MISFITS: list[tuple[Any, Any, str]] = [
    (int, "x", "'x' is of type str, but int is declared"),
    (int, 1.5, "1.5 is of type float, but int is declared"),
    (int, True, "True is of type bool, but int is declared"),
    (int, None, "None is of type NoneType, but int is declared"),
    (int, 2**63, "does not fit into 64 bits; keep it as str, bytes or Decimal"),
    (float, 2**60 + 1, "cannot be stored as float"),
    (str, b"x", "is of type bytes, but str is declared"),
    (str, "\ud800", "cannot be stored as str"),
    (bool, 1, "1 is of type int, but bool is declared"),
    (tuple[int, int], (1, 2, 3), r"\(1, 2, 3\) is no tuple of 2 values"),
    (tuple[int, int], [1, 2], r"\[1, 2\] is no tuple of 2 values"),
    (tuple[int, int], (1, "x"), "'x' is of type str, but int is declared"),
    (list[int], [1, "x"], "Expected `int`, got `str`"),
    (list, [(1, 2)], r"\[\(1, 2\)\] would come back as \[\[1, 2\]\]: declare the types inside"),
    (dict[str, int], {"a": 2**64}, "a number beyond 64 bits; keep it as str, bytes or Decimal"),
    (Visit, Visit("p", "slow"), "Expected `float`, got `str`"),  # type: ignore[arg-type]
    (list[int], [1j], "complex"),
]


@pytest.mark.parametrize(("declared", "value", "message"), MISFITS, ids=lambda part: str(part)[:40])
def test_a_value_that_could_not_be_read_back_is_refused_when_written(declared: Any, value: Any, message: str) -> None:
    with pytest.raises(UnstorableValue, match=message):
        codec_for(declared).encode([value])


def test_scalars_of_numpy_and_subclasses_are_stored_as_what_they_are_of() -> None:
    class Level(enum.IntEnum):
        HIGH = 3

    assert codec_for(int).decode(codec_for(int).encode([np.int32(5), Level.HIGH, 7])) == [5, 3, 7]
    assert codec_for(list[float]).decode(codec_for(list[float]).encode([[np.float32(0.5)]])) == [[0.5]]


def test_plain_types_are_stored_as_columns_that_any_reader_of_arrow_understands() -> None:
    assert codec_for(int).arrow_type == pa.int64()
    assert codec_for(str | None).arrow_type == pa.large_string()
    assert codec_for(Pair).arrow_type == pa.struct([("number", pa.int64()), ("last", pa.large_string())])


@pytest.mark.parametrize("declared", [complex, object, list[complex], dict[str, object]], ids=str)
def test_a_type_that_cannot_be_stored_is_refused_when_declared(declared: Any) -> None:
    with pytest.raises(UnsupportedType, match=r"(complex|object) cannot be stored; use None, bool"):
        codec_for(declared)


def test_renaming_a_class_changes_nothing_but_renaming_a_field_does() -> None:
    one = dataclasses.make_dataclass("One", [("a", int)])
    renamed = dataclasses.make_dataclass("Other", [("a", int)])
    changed = dataclasses.make_dataclass("One", [("b", int)])
    assert fits(codec_for(one).description, codec_for(renamed).description)
    assert not fits(codec_for(one).description, codec_for(changed).description)


def test_descriptions_are_shown_as_types_are_written() -> None:
    assert show(codec_for(dict[str, list[tuple[int, ...]]]).description) == "dict[str, list[tuple[int, ...]]]"
    assert show(codec_for(Visit).description) == "Visit(page: str, seconds: float, tags: list[str])"
    assert show(codec_for(int | None).description) == "int | None"
    assert show(codec_for(Tree).description) == "Tree(label: str, children: list[Tree])"


@pytest.mark.parametrize(
    "declared", [int, str | None, tuple[int, str], Point, Pair, frozenset[int], Colour, dt.datetime]
)
def test_values_that_cannot_change_need_no_copy(declared: Any) -> None:
    assert codec_for(declared).copy is None


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (list[int], [1]),
        (dict[str, list[int]], {"a": [1]}),
        (Visit, Visit("p", 1.0, ["t"])),
        (tuple[list[int], int], ([1], 2)),
    ],
    ids=str,
)
def test_a_copy_shares_nothing_that_can_change(declared: Any, value: Any) -> None:
    copy = codec_for(declared).copy
    assert copy is not None
    copied = copy(value)
    assert copied == value
    match copied:
        case [list() as inner, _]:
            inner.append(2)
        case list():
            copied.append(2)
        case dict():
            copied["a"].append(2)
        case Visit():
            copied.tags.append("u")
    assert copied != value


@dataclasses.dataclass
class _Inner:
    n: int = 0


@dataclasses.dataclass
class _Outer:
    inner: list[_Inner]


class _Place(NamedTuple):
    of: dict[str, _Inner]


@pytest.mark.parametrize("cls", [_Inner, _Outer, _Place])
def test_a_class_of_the_main_program_still_ships_by_value_after_its_codec_was_made(cls: type) -> None:
    codec = codec_for(list[cls])  # type: ignore[valid-type]
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        cloudpickle.dumps((cls, _Inner))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    values = [[cls([_Inner(3)]) if cls is _Outer else cls({"a": _Inner(4)}) if cls is _Place else cls(5)]]
    assert codec.decode(codec.encode(values)) == values
