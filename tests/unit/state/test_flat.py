"""Values of flat types in arrays: what goes in comes out, as the codec would have it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state.codec import codec_for
from penstock.state.errors import UnstorableValue
from penstock.state.flat import FlatValues, flat_values


class Reading(NamedTuple):
    count: int
    unit: str | None


INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
TYPES: dict[Any, st.SearchStrategy[Any]] = {
    int: INTS,
    float: FLOATS,
    bool: st.booleans(),
    str: st.text(),
    bytes: st.binary() | st.just(b"\0\0"),
    int | None: INTS | st.none(),
    float | None: FLOATS | st.none(),
    bool | None: st.booleans() | st.none(),
    str | None: st.text() | st.none(),
    tuple[int]: st.tuples(INTS),
    tuple[int, float | None, bytes]: st.tuples(INTS, FLOATS | st.none(), st.binary()),
    Reading: st.builds(Reading, INTS, st.text() | st.none()),
}
NOT_FLAT = [list[int], dict[str, int], tuple[int, ...], tuple[int, tuple[int, int]], set[str], int | str]


def made(type_: Any) -> FlatValues:
    flat = flat_values(codec_for(type_))
    assert flat is not None
    return flat


def kept(flat: FlatValues, values: list[Any], slots: np.ndarray[Any, Any]) -> None:
    flat.write(slots, flat.arrays_of(values), int(slots.max(initial=-1)) + 1)


@pytest.mark.parametrize("type_", TYPES, ids=str)
@given(data=st.data())
def test_values_come_back_from_their_slots_as_they_were(type_: Any, data: st.DataObject) -> None:
    values = data.draw(st.lists(TYPES[type_], min_size=1))
    slots = np.array(data.draw(st.permutations(range(len(values)))))
    flat = made(type_)
    kept(flat, values, slots)
    read = flat.read(slots)
    assert read == values
    assert list(map(type, read)) == list(map(type, values))


@pytest.mark.parametrize("type_", TYPES, ids=str)
@given(data=st.data())
def test_a_capture_is_what_the_codec_makes_of_the_values_and_is_read_back(type_: Any, data: st.DataObject) -> None:
    values = data.draw(st.lists(TYPES[type_], min_size=1))
    flat, other, slots = made(type_), made(type_), np.arange(len(values))
    kept(flat, values, slots)
    (column,) = flat.frozen()([array[: len(values)] for array in flat.arrays])
    assert column.equals(codec_for(type_).encode(values))
    other.put(slots, [column], len(values))
    assert other.read(slots) == values


@pytest.mark.parametrize("type_", NOT_FLAT, ids=str)
def test_other_types_are_not_flat(type_: Any) -> None:
    assert flat_values(codec_for(type_)) is None


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (int, True),
        (int, 1.5),
        (int, None),
        (int, 2**63),
        (int | None, "1"),
        (float, "1.5"),
        (float, 2**64 + 1),
        (bool, 1),
        (str, b"x"),
        (str, "\ud800"),
        (bytes, "x"),
        (tuple[int, int], (1, 2, 3)),
        (tuple[int, int], (1, None)),
        (tuple[int, int], 7),
    ],
)
def test_what_the_codec_refuses_is_refused_and_changes_nothing(type_: Any, value: Any) -> None:
    flat = made(type_)
    with pytest.raises(UnstorableValue):
        codec_for(type_).encode([value])
    with pytest.raises(UnstorableValue):
        flat.arrays_of([value])


@pytest.mark.parametrize(
    ("type_", "value", "plain"),
    [(int, np.int32(7), 7), (float, 3, 3.0), (float, np.float32(0.5), 0.5), (str, np.str_("a"), "a")],
)
def test_numbers_of_other_kinds_count_as_what_is_declared(type_: Any, value: Any, plain: Any) -> None:
    flat = made(type_)
    kept(flat, [value], np.arange(1))
    assert flat.read(np.arange(1)) == [plain]
    assert type(flat.read(np.arange(1))[0]) is type(plain)


def test_more_slots_are_made_as_they_are_needed() -> None:
    flat = made(tuple[int, str])
    values = [(number, str(number)) for number in range(5_000)]
    for start in range(0, 5_000, 100):
        kept(flat, values[start : start + 100], np.arange(start, start + 100))
    assert flat.read(np.arange(5_000)) == values
    flat.only(np.array([4_999, 7]))
    assert flat.read(np.arange(2)) == [(4_999, "4999"), (7, "7")]
