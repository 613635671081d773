"""Maps with pictures: what a picture shows never changes, and the map behaves like a dict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state import layers
from penstock.state.layers import MAX_FROZEN, LayeredMap, Picture

Step = tuple[str, int, int]


@pytest.fixture(autouse=True, scope="module")
def small_portions() -> Iterator[None]:
    """Merging takes several calls, so that everything else also happens in the middle of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "MERGED_AT_ONCE", 2)
        yield


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["set", "remove", "get", "picture", "drop", "settle", "mutate"]),
        st.integers(0, 5),
        st.integers(0, 99),
    )
)


@given(STEPS)
def test_the_map_behaves_like_a_dict_and_pictures_never_change(steps: list[Step]) -> None:
    under_test, model = LayeredMap(), dict[int, int]()
    pictures: list[tuple[Picture, dict[int, int]]] = []
    for action, key, number in steps:
        match action:
            case "set":
                under_test.set(key, number)
                model[key] = number
            case "remove":
                under_test.remove(key)
                model.pop(key, None)
            case "picture":
                pictures.append((under_test.picture(), dict(model)))
            case "drop" if pictures:
                pictures.pop(number % len(pictures))
            case "settle":
                under_test.settle()
        assert under_test.get(key, -1) == model.get(key, -1)
        assert (key in under_test) == (key in model)
    assert dict(under_test.items()) == model
    assert len(under_test) == len(model)
    for picture, expected in pictures:
        assert picture.items() == expected


@given(STEPS)
def test_values_that_change_in_place_never_change_in_a_picture(steps: list[Step]) -> None:
    copy: Callable[[Any], Any] = list
    under_test, model = LayeredMap(copy), dict[int, list[int]]()
    pictures: list[tuple[Picture, dict[int, list[int]]]] = []
    for action, key, number in steps:
        match action:
            case "set":
                under_test.set(key, [number])
                model[key] = [number]
            case "mutate" if key in model:
                under_test.get(key).append(number)
                model[key].append(number)
            case "remove":
                under_test.remove(key)
                model.pop(key, None)
            case "picture":
                pictures.append((under_test.picture(), {k: list(v) for k, v in model.items()}))
            case "drop" if pictures:
                pictures.pop(number % len(pictures))
            case "settle":
                under_test.settle()
    assert dict(under_test.items()) == model
    for picture, expected in pictures:
        assert picture.items() == expected


def test_a_picture_copies_nothing() -> None:
    under_test = LayeredMap()
    under_test.set("a", 1)
    whole = under_test.live
    assert under_test.picture().items() is whole


def test_the_layers_merge_once_the_last_picture_is_dropped() -> None:
    under_test = LayeredMap()
    under_test.set("a", 1)
    first, second = under_test.picture(), under_test.picture()
    under_test.set("b", 2)
    del first
    under_test.settle()
    assert not under_test.is_plain
    del second
    under_test.settle()
    assert under_test.is_plain
    assert under_test.live == {"a": 1, "b": 2}


def test_pictures_that_are_never_dropped_do_not_pile_up_layers() -> None:
    under_test = LayeredMap()
    held = []
    for number in range(20):
        under_test.set(number, number)
        held.append(under_test.picture())
    assert len(under_test._frozen) <= MAX_FROZEN
    assert [len(picture.items()) for picture in held] == list(range(1, 21))


def test_merging_goes_on_a_portion_at_a_time_and_loses_nothing_that_is_written_meanwhile() -> None:
    under_test = LayeredMap()
    under_test.set("kept", 0)
    picture = under_test.picture()
    for number in range(5):
        under_test.set(number, number)
    del picture
    under_test.settle()
    assert not under_test.is_plain
    under_test.set("new", 1)
    under_test.remove("kept")
    for _ in range(4):
        under_test.settle()
    assert under_test.is_plain
    assert under_test.live == {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, "new": 1}


@pytest.mark.parametrize("frozen_first", [False, True])
def test_a_removed_key_stays_removed(frozen_first: bool) -> None:
    under_test = LayeredMap()
    under_test.set("a", 1)
    picture = under_test.picture() if frozen_first else None
    under_test.remove("a")
    assert "a" not in under_test
    assert under_test.get("a", "none") == "none"
    assert picture is None or picture.items() == {"a": 1}
