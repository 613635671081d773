"""The map in RocksDB, alone: against a plain dict, at every moment that the merging thread may choose."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.state.rocks.later import Later

from penstock.state import declare
from penstock.state.errors import UnstorableValue
from penstock.state.keys import KeyColumns
from penstock.state.kinds import KeyedState
from penstock.state.layers import REMOVED
from penstock.state.rocks.map import MAX_FROZEN, RocksMap, RocksPicture
from penstock.state.rocks.memory import Share, SharedMemory
from penstock.state.rocks.workdir import Workdir

KEYS = KeyColumns(pa.schema([("key", pa.int64())]), ("key",))
GROUPS = 8
KEYS_USED = 4


class Surroundings:
    """What maps of one test share."""

    def __init__(self, directory: str) -> None:
        self.workdir, self.memory, self.later = Workdir(directory), SharedMemory(16 << 20), Later()

    def map(self, declaration: Any = None, background: Any = None) -> RocksMap:
        state = (declaration or declare.value(int, default=0)).make(lambda: 0)
        state.name = "state"
        assert isinstance(state, KeyedState)
        return RocksMap(state, KEYS, GROUPS, self.workdir, self.memory, background or self.later)

    def content(self, picture: RocksPicture, of: RocksMap) -> dict[Any, Any]:
        """All that a picture shows."""
        entries: dict[Any, Any] = {}
        if picture.linked is not None:
            records = list(picture.linked.scan(self.memory, b""))
            values = of._decoded(records)
            entries = dict(zip(of.records.raw_keys([key for key, _ in records]), values, strict=True))
        entries |= picture.changes()
        return {key: value for key, value in entries.items() if value is not REMOVED}


def applied(changes: dict[Any, Any], before: dict[int, list[int]]) -> dict[int, list[int]]:
    return {key: value for key, value in {**before, **changes}.items() if value is not REMOVED}


@pytest.fixture(scope="module")
def around(rocks_directory: str) -> Surroundings:
    return Surroundings(rocks_directory)


@pytest.fixture(scope="module", autouse=True)
def little_room() -> Any:
    patch = pytest.MonkeyPatch()
    patch.setattr(Share, "_FIRST", 4)
    yield
    patch.undo()


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["set", "set", "change", "change", "remove", "prefetch", "picture", "merge", "run"] + ["all merged"] * 3
        ),
        st.integers(0, KEYS_USED - 1),
        st.integers(0, 9),
    ),
    min_size=20,
    max_size=40,
)


@given(steps=STEPS)
def test_the_map_and_all_its_pictures_are_those_of_a_plain_dict(around: Surroundings, steps: list[Step]) -> None:
    under_test, model = around.map(declare.list(int)), dict[int, list[int]]()
    pictures: list[tuple[RocksPicture, dict[int, list[int]]]] = []
    cuts: list[dict[int, list[int]]] = []
    for action, key, amount in steps:
        match action:
            case "set":
                under_test.live[key], model[key] = [amount], [amount]
            case "change":
                found = under_test.get(key)
                assert found == model.get(key)
                if found is not None:
                    found.append(amount)
                    model[key].append(amount)
            case "remove":
                under_test.remove(key)
                model.pop(key, None)
            case "prefetch":
                under_test.prefetch(range(key))
            case "all merged":
                under_test.merge()
                around.later.run()
                under_test.settle()
            case "picture":
                under_test.mark(len(cuts))
                cuts.append(copy.deepcopy(model))
                pictures.append((under_test.picture(), cuts[-1]))
                since = key % len(cuts)
                if under_test.changed_since(since) is not None:
                    changes = under_test.picture(since).changes()
                    assert applied(changes, cuts[since]) == cuts[-1]
            case "merge":
                under_test.merge()
            case "run":
                around.later.run()
                under_test.settle()
        assert {key: under_test.peek(key) for key in range(KEYS_USED)} == {
            key: model.get(key) for key in range(KEYS_USED)
        }
        assert [key in under_test for key in range(KEYS_USED)] == [key in model for key in range(KEYS_USED)]
    assert dict(under_test.items()) == model
    assert [around.content(picture, under_test) for picture, _ in pictures] == [then for _, then in pictures]
    under_test.close()


def test_no_more_changes_wait_in_memory_than_there_is_room_for(around: Surroundings) -> None:
    under_test = around.map()
    for key in range(100):
        under_test.live[key] = key
        under_test.settle()
        assert under_test.waiting <= under_test._share.entries + 1
    assert under_test._share.entries > Share._FIRST
    assert dict(under_test.items()) == {key: key for key in range(100)}


def test_many_pictures_while_a_merge_takes_long_do_not_make_lookups_slow(around: Surroundings) -> None:
    under_test = around.map()
    under_test.live[0] = 1
    under_test.merge()
    for number in range(20):
        under_test.live[number] = number
        under_test.mark(number)
    assert len(under_test._frozen) <= MAX_FROZEN + 1
    around.later.run()
    under_test.settle()
    assert dict(under_test.items()) == {number: number for number in range(20)}


def test_reading_does_not_count_as_changing_where_values_cannot_change(around: Surroundings) -> None:
    under_test = around.map()
    under_test.live.update({1: 10, 2: 20})
    under_test.merge()
    around.later.run()
    under_test.settle()
    assert (under_test.get(1), under_test.get(3), under_test.waiting) == (10, None, 0)


def test_a_value_that_cannot_be_stored_is_named_with_its_key_when_the_map_is_used_next(around: Surroundings) -> None:
    under_test = around.map()
    under_test.live[7] = "seven"
    under_test.merge()
    around.later.run()
    with pytest.raises(UnstorableValue, match=r"the value state 'state', declared as int, .* for the key 7: 'seven'"):
        under_test.settle()


def test_merging_on_another_thread_disturbs_nobody(around: Surroundings) -> None:
    with ThreadPoolExecutor(1) as threads:
        under_test, model = around.map(background=threads), dict[int, int]()
        for number in range(3_000):
            keys = [(number * step) % 400 for step in (1, 7, 13)]
            under_test.settle()
            under_test.prefetch(keys)
            for key in keys:
                assert under_test.get(key) == model.get(key)
                under_test.live[key] = model[key] = number
        assert dict(under_test.items()) == model
        under_test.close()


def test_a_value_that_is_changed_in_place_is_not_changed_in_the_picture(around: Surroundings) -> None:
    under_test = around.map(declare.list(int))
    under_test.live[1] = [1]
    under_test.mark(1)
    picture = under_test.picture()
    under_test.get(1).append(2)
    assert (around.content(picture, under_test), under_test.get(1)) == ({1: [1]}, [1, 2])


def test_what_was_read_ahead_is_not_believed_after_a_merge(around: Surroundings) -> None:
    under_test = around.map()
    for key in (1, 2):
        under_test.prefetch([1, 2])
        under_test.live[key] = key * 10
        under_test.merge()
        around.later.run()
        under_test.settle()
    assert (under_test.get(1), under_test.get(2)) == (10, 20)


def test_changes_are_told_until_they_are_in_the_database(around: Surroundings) -> None:
    under_test = around.map()
    under_test.mark(1)
    under_test.live[1] = 10
    under_test.mark(2)
    under_test.live[2] = 20
    under_test.merge()
    under_test.live[3] = 30
    under_test.mark(3)
    assert [under_test.changed_since(cut) for cut in (1, 2, 3)] == [3, 2, 0]
    assert under_test.picture(since=2).changes() == {2: 20, 3: 30}
    around.later.run()
    under_test.settle()
    assert [under_test.changed_since(cut) for cut in (1, 2, 3)] == [None, None, 0]
