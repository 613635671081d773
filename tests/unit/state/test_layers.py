"""Maps with pictures: what a picture shows never changes, and the map behaves like a dict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state import layers
from penstock.state.layers import MAX_ASIDE, REMOVED, LayeredMap, Picture

Step = tuple[str, int, int]


@pytest.fixture(autouse=True, scope="module", params=[0, 3, 1 << 20], ids="copied={}".format)
def small_portions(request: pytest.FixtureRequest) -> Iterator[None]:
    """Merging takes several calls, so that everything else also happens in the middle of it; pictures hold copies of no
    map, of small ones, or of all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "MOVED_AT_ONCE", 2)
        patch.setattr(layers, "COPIED", request.param)
        yield


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["set", "remove", "get", "whole", "changes", "drop", "settle", "mutate"]),
        st.integers(0, 5),
        st.integers(0, 99),
    )
)


class Snapshots:
    """Takes pictures as a state log does: some are written, and later ones hold the changes since the newest of those
    or since one that still may be."""

    def __init__(self, under_test: LayeredMap) -> None:
        self._map = under_test
        self._taken: dict[int, dict[int, Any]] = {}
        self._floor = 0
        self.pictures: list[tuple[Picture, dict[int, Any], dict[int, Any]]] = []
        """With what the map held when it was taken, and when that was taken which it is built upon."""

    def take(self, model: dict[int, Any], number: int, changes: bool) -> None:
        cut = len(self._taken) + 1
        self._map.freeze(cut, self._floor)
        since = self._floor + number % (cut - self._floor)
        self._taken[cut] = model
        known = since > 0 and self._map.changed_since(since) is not None
        assert known or not since or since < self._floor
        base = since if changes and known else None
        self.pictures.append((self._map.picture(base), model, self._taken[base] if base is not None else {}))
        if number % 3:
            self._floor = cut

    def drop(self, number: int) -> None:
        if self.pictures:
            self.pictures.pop(number % len(self.pictures))

    def check(self) -> None:
        for picture, whole, before in self.pictures:
            if picture.since is None:
                assert picture.items() == whole
            else:
                changes = picture.items()
                kept = {key: value for key, value in before.items() if key not in changes}
                assert kept | {key: value for key, value in changes.items() if value is not REMOVED} == whole


@given(STEPS)
def test_the_map_behaves_like_a_dict_and_pictures_never_change(steps: list[Step]) -> None:
    under_test, model = LayeredMap(), dict[int, int]()
    snapshots = Snapshots(under_test)
    for action, key, number in steps:
        match action:
            case "set":
                under_test.set(key, number)
                model[key] = number
            case "remove":
                under_test.remove(key)
                model.pop(key, None)
            case "whole" | "changes":
                snapshots.take(dict(model), number, action == "changes")
            case "drop":
                snapshots.drop(number)
            case "settle":
                under_test.settle()
        assert under_test.get(key, -1) == model.get(key, -1)
        assert (key in under_test) == (key in model)
    assert dict(under_test.items()) == model
    assert len(under_test) == len(model) <= under_test.size
    snapshots.check()


@given(STEPS)
def test_values_that_change_in_place_never_change_in_a_picture(steps: list[Step]) -> None:
    copy: Callable[[Any], Any] = list
    under_test, model = LayeredMap(copy), dict[int, list[int]]()
    snapshots = Snapshots(under_test)
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
            case "whole" | "changes":
                snapshots.take({k: list(v) for k, v in model.items()}, number, action == "changes")
            case "drop":
                snapshots.drop(number)
            case "settle":
                under_test.settle()
    assert dict(under_test.items()) == model
    snapshots.check()


def frozen(entries: dict[Any, Any]) -> LayeredMap:
    """A map through which cut 1 was made."""
    under_test = LayeredMap()
    under_test.live.update(entries)
    under_test.freeze(1, 1)
    return under_test


def test_a_picture_of_a_large_map_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "COPIED", 0)
    under_test = LayeredMap()
    under_test.set("a", 1)
    whole = under_test.live
    under_test.freeze(1, 1)
    assert under_test.picture().items() is whole


def test_a_picture_of_changes_holds_what_was_written_and_removed_since() -> None:
    under_test = frozen({"a": 1, "b": 2, "c": 3})
    under_test.set("b", 20)
    under_test.remove("c")
    under_test.freeze(2, 1)
    assert under_test.changed_since(1) == 2
    assert under_test.picture(1).items() == {"b": 20, "c": REMOVED}


def test_changes_since_a_cut_before_the_last_one_are_those_of_all_layers_above_it() -> None:
    under_test = frozen({"a": 1})
    under_test.set("b", 2)
    under_test.freeze(2, 1)
    under_test.set("c", 3)
    under_test.freeze(3, 1)
    assert under_test.picture(1).items() == {"b": 2, "c": 3}


def test_changes_since_a_cut_before_the_floor_cannot_be_told() -> None:
    under_test = frozen({"a": 1})
    under_test.set("b", 2)
    under_test.freeze(2, 2)
    under_test.set("c", 3)
    under_test.freeze(3, 2)
    under_test.settle()
    assert under_test.changed_since(1) is None
    assert under_test.changed_since(2) == 1


def test_a_large_map_lies_below_until_the_last_picture_of_it_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "COPIED", 0)
    under_test = frozen({"a": 1})
    picture = under_test.picture()
    under_test.set("b", 2)
    under_test.freeze(2, 1)
    under_test.set("c", 3)
    under_test.remove("a")
    under_test.settle()
    assert not under_test.is_plain
    assert picture.items() == {"a": 1}
    del picture
    for _ in range(2):  # portions of two
        assert dict(under_test.items()) == {"b": 2, "c": 3}
        under_test.settle()
    assert under_test.is_plain
    assert under_test.live == {"b": 2, "c": 3}


def test_what_is_written_while_a_large_map_is_put_together_again_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "COPIED", 0)
    under_test = frozen({"kept": 0, 0: "old"})
    under_test.picture()
    for number in range(5):
        under_test.set(number, number)
    under_test.settle()
    assert not under_test.is_plain
    under_test.set("new", 1)
    under_test.remove("kept")
    for _ in range(4):
        under_test.settle()
    assert under_test.is_plain
    assert under_test.live == {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, "new": 1}


def test_cuts_of_which_nothing_is_durable_do_not_pile_up() -> None:
    under_test = frozen({})
    held = []
    for number in range(20):
        under_test.set(number, number)
        under_test.freeze(number + 2, 1)
        held.append(under_test.picture(1))
    assert len(under_test._changes) <= MAX_ASIDE
    assert [len(picture.items()) for picture in held] == list(range(1, 21))


@pytest.mark.parametrize("frozen_first", [False, True])
def test_a_removed_key_stays_removed(frozen_first: bool) -> None:
    under_test = LayeredMap()
    under_test.set("a", 1)
    if frozen_first:
        under_test.freeze(1, 1)
    picture = under_test.picture() if frozen_first else None
    under_test.remove("a")
    assert "a" not in under_test
    assert under_test.get("a", "none") == "none"
    assert picture is None or picture.items() == {"a": 1}
