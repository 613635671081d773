"""Both forms of the key index against a Python dict: slots, first rows, places, what was touched, and the keys back."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels import table
from penstock.kernels.additions import ADD, ADD_FRACTION, COUNT, LEAVE
from penstock.kernels.hashing import read_only
from penstock.state.hashindex import Additions, HashIndex
from penstock.state.index import DictIndex, KeyIndex, suited_index
from penstock.state.keys import KeyColumns

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-3, 3) | st.sampled_from([-(2**63), 2**63 - 1]),
    pa.uint64(): st.integers(0, 3) | st.just(2**64 - 1),
    pa.int8(): st.integers(-128, -124),
    pa.bool_(): st.booleans(),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, float("inf"), float("nan")]),
    pa.float32(): st.sampled_from([0.0, -0.0, 0.25, float("nan")]),
    pa.date32(): st.dates(dt.date(2024, 1, 1), dt.date(2024, 1, 4)),
    pa.timestamp("us", "UTC"): st.datetimes(
        dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, 0, 0, 1), timezones=st.just(dt.UTC)
    ),
    pa.time32("s"): st.integers(0, 3).map(dt.time),
    pa.decimal128(20, 2): st.integers(-3, 3).map(lambda cents: Decimal(cents) / 100),
    pa.decimal256(50, 0): st.sampled_from([Decimal(10**40), Decimal(-(10**40)), Decimal(0)]),
    pa.string(): st.text("ab", max_size=3)
    | st.sampled_from(["8 bytes!", "a long word", "a long wort", "of fifteen byte", "of sixteen bytes", "ünïcödé" * 3]),
    pa.large_string(): st.text("ab", max_size=2),
    pa.binary(): st.binary(max_size=2) | st.just(bytes(17)),
    pa.binary(3): st.sampled_from([b"abc", b"abd", bytes(3)]),
    pa.dictionary(pa.int8(), pa.string()): st.text("ab", max_size=2),
    pa.null(): st.none(),
}


def columns_of(types: list[pa.DataType], keys: list[tuple[Any, ...]]) -> list[pa.Array]:
    made = []
    for place, kind in enumerate(types):
        values = pa.array([key[place] for key in keys], kind.value_type if pa.types.is_dictionary(kind) else kind)
        made.append(values.dictionary_encode() if pa.types.is_dictionary(kind) else values)
    return made


def hashable(column: pa.Array) -> list[Any]:
    """As values of which equal ones are one key: both zeros, all NaNs."""
    return ["nan" if value != value else value for value in column.to_pylist()]


def plain(columns: list[pa.Array]) -> list[tuple[Any, ...]]:
    return list(zip(*map(hashable, columns), strict=True))


def keys_of(types: list[pa.DataType]) -> KeyColumns:
    names = [str(place) for place in range(len(types))]
    return KeyColumns(pa.schema(list(zip(names, types, strict=True))), names)


class Model:
    def __init__(self) -> None:
        self.slots: dict[tuple[Any, ...], int] = {}
        self.touched: set[int] = set()

    def check(self, index: KeyIndex, columns: list[pa.Array]) -> None:
        rows, found = plain(columns), index.find(columns)
        slots = [self.slots.setdefault(key, len(self.slots)) for key in rows]
        self.touched |= set(slots)
        assert found.slots.tolist() == slots
        assert [rows[row] for row in found.first_rows.tolist()] == list(dict.fromkeys(rows))
        assert found.slots[found.first_rows][found.places].tolist() == slots
        assert len(index) == len(self.slots)

    def check_kept(self, index: KeyIndex) -> None:
        assert plain(index.captured()(None)) == list(self.slots)
        touched = index.take_touched().numbers().tolist()
        assert len(touched) == len(set(touched))
        assert set(touched) == self.touched
        self.touched = set()


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[pa.DataType], list[list[pa.Array]]]:
    """The types of a key's columns, and the key columns of some batches; some of them slices, some with nulls."""
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    batches = []
    for _ in range(draw(st.integers(1, 4))):
        values = [VALUES[kind] | st.none() if draw(st.booleans()) else VALUES[kind] for kind in types]
        keys = draw(st.lists(st.tuples(*values), min_size=1, max_size=30))
        skipped = draw(st.integers(0, len(keys) - 1))
        batches.append([column.slice(skipped) for column in columns_of(types, keys)])
    return types, batches


@given(runs(), st.booleans())
def test_an_index_gives_every_key_its_slot_and_gives_the_keys_back(
    run: tuple[list[pa.DataType], list[list[pa.Array]]], compiled: bool
) -> None:
    types, batches = run
    index: KeyIndex = HashIndex(keys_of(types), table, nulls=True) if compiled else DictIndex(keys_of(types))
    model = Model()
    for columns in batches:
        model.check(index, columns)
        model.check_kept(index)


@given(runs())
def test_an_index_that_changes_its_form_keeps_slots_and_what_was_touched(
    run: tuple[list[pa.DataType], list[list[pa.Array]]],
) -> None:
    types, batches = run
    keys = keys_of(types)
    index: KeyIndex = DictIndex(keys)
    model = Model()
    for number, columns in enumerate(batches):
        if number:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("penstock.state.index.compiled", lambda _rows: table)
                index = suited_index(index, keys, columns)
        model.check(index, columns)
    model.check_kept(index)


@given(runs())
def test_keys_are_looked_up_that_an_index_cannot_hold(run: tuple[list[pa.DataType], list[list[pa.Array]]]) -> None:
    types, batches = run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.state.index.compiled", lambda _rows: table)
        index = suited_index(DictIndex(keys_of(types)), keys_of(types), batches[0])
    model = Model()
    model.check(index, batches[0])
    for columns in batches:
        assert index.look_up(columns).tolist() == [model.slots.get(key, -1) for key in plain(columns)]


def test_keys_that_share_half_their_hash_are_told_apart() -> None:
    """All keys have the same hash: none is found where it is looked for first, but the first one."""
    kernels = SimpleNamespace(**vars(table))
    kernels.hash_keys = lambda words, offsets, data: np.full(words.shape[1], 7 << 40, np.uint64)
    model, random = Model(), np.random.default_rng(1)
    index = HashIndex(keys_of([pa.int64(), pa.string()]), kernels, nulls=False)  # type: ignore[arg-type]
    for _ in range(3):
        numbers = random.integers(0, 20, 100)
        model.check(index, [pa.array(numbers), pa.array([f"word {number % 7}" for number in numbers])])
        model.check_kept(index)


def test_a_table_grows_with_its_keys() -> None:
    model, random = Model(), np.random.default_rng(2)
    index = HashIndex(keys_of([pa.string()]), table, nulls=False)
    for _ in range(4):
        model.check(index, [pa.array(random.integers(0, 100_000, 20_000)).cast(pa.string())])
    model.check_kept(index)


def test_a_capture_stays_as_it_was_while_the_index_goes_on() -> None:
    index = HashIndex(keys_of([pa.string()]), table, nulls=False)
    index.find([pa.array(["a", "b"])])
    captured = index.captured()
    index.find([pa.array([f"{number} and more" for number in range(50_000)])])
    assert captured(None)[0].to_pylist() == ["a", "b"]
    assert captured(np.array([1]))[0].to_pylist() == ["b"]


def test_an_index_counts_its_calls_from_anew_when_there_are_too_many() -> None:
    index = HashIndex(keys_of([pa.int64()]), table, nulls=False)
    index.find([pa.array([1, 2, 3])])
    index.take_touched()
    index.find([pa.array([2])])
    index._call = (1 << 32) - 1
    assert index.find([pa.array([3, 3, 2])]).first_rows.tolist() == [0, 2]
    assert index.take_touched().numbers().tolist() == [1, 2]
    assert index.find([pa.array([1])]).slots.tolist() == [0]
    assert index.take_touched().numbers().tolist() == [0]


def test_room_for_many_keys_is_made_at_once() -> None:
    index = HashIndex(keys_of([pa.int64()]), table, nulls=False)
    index.find([pa.array([5, 6])])
    index.expect(100_000)
    assert index.find([pa.array([6, 7])]).slots.tolist() == [1, 2]


@pytest.mark.parametrize("same_hash", [False, True])
@pytest.mark.parametrize("tell", [False, True])
def test_a_find_adds_to_what_is_kept_beside_each_key(same_hash: bool, tell: bool) -> None:
    kernels = SimpleNamespace(**vars(table))
    if same_hash:
        kernels.hash_keys = lambda words, offsets, data: np.full(words.shape[1], 7 << 40, np.uint64)
    random, columns, rows = np.random.default_rng(2), keys_of([pa.int64()]), 300
    payload = np.array([0, 100, 0, 5], np.uint64)
    index = HashIndex(columns, kernels, nulls=False, payload=payload)  # type: ignore[arg-type]
    kinds = read_only(np.array([COUNT, ADD, ADD_FRACTION, LEAVE], np.uint8))
    counts: dict[int, int] = {}
    wholes: dict[int, int] = {}
    fractions: dict[int, float] = {}
    for most in (3, 40 if same_hash else 5_000):  # so many keys that the records have to grow
        keys, values = random.integers(0, most, rows), np.zeros((4, rows), np.uint64)
        values[1].view(np.int64)[:] = random.integers(-9, 9, rows)
        values[2].view(np.float64)[:] = random.integers(-9, 9, rows) / 4
        sums = np.zeros((4, rows if tell else 0), np.uint64)
        found = index.find([pa.array(keys)], Additions(kinds, read_only(values), sums))
        for row, key in enumerate(keys.tolist()):
            counts[key] = counts.get(key, 0) + 1
            wholes[key] = wholes.get(key, 100) + int(values[1].view(np.int64)[row])
            fractions[key] = fractions.get(key, 0.0) + float(values[2].view(np.float64)[row])
        known = index.captured()(None)[0].to_pylist()
        kept = index.payload[: len(index)]
        assert kept[:, 0].tolist() == [counts[key] for key in known]
        assert kept[:, 1].view(np.int64).tolist() == [wholes[key] for key in known]
        assert kept[:, 2].view(np.float64).tolist() == [fractions[key] for key in known]
        assert (kept[:, 3] == 5).all()
        if tell:
            assert (kept[found.slots[found.first_rows]] == sums[:, : len(found.first_rows)].T).all()


def test_there_is_room_for_as_many_keys_as_are_expected_and_one_more_is_found_too() -> None:
    for power in range(10, 16):
        most = table.room(1 << power)
        for keys in (*range(most - 2, most + 3), (1 << power) - 1, 1 << power):
            index = HashIndex(keys_of([pa.int64()]), table, nulls=False)
            index.expect(keys)
            found = index.find([pa.array(np.arange(keys + 1))])
            assert found.slots.tolist() == list(range(keys + 1))
