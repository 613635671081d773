"""The hash is part of the file format: fixed vectors, and an independent statement of the rules in plain Python."""

from __future__ import annotations

import datetime as dt
import struct
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels import compiled, hashing
from penstock.kernels.hashing import hash_columns, key_groups_of_hashes, supports

MASK = (1 << 64) - 1
PRIME = (1 << 61) - 1

VECTORS = [
    (
        pa.array([0, 1, -1, 42, 2**63 - 1]),
        "e220a8397b1dcdaf e4d971771b652c20 de0a564cbcd060c4 bdd732262feb6e95 39ca3c835068d818",
    ),
    (pa.array([False, True]), "e220a8397b1dcdaf e4d971771b652c20"),
    (
        pa.array([0.0, 1.0, -2.5, float("nan"), float("inf")]),
        "e220a8397b1dcdaf bcabcb2a8dae6591 bd4f93e3e4cd3f40 8709d8d19b4c0ac2 a9fe2c7f019f06da",
    ),
    (
        pa.array(["", "a", "12345678", "123456789", "grüße"]),
        "0397ab29740681d9 f68c89f8ad7a1fe1 b527e810481d6935 712e4e0d1faa9aff 0a030e0e13228130",
    ),
    (pa.array([dt.date(1970, 1, 1), dt.date(2024, 2, 29)]), "e220a8397b1dcdaf e774c656b66050ca"),
    (pa.array([dt.datetime(2024, 2, 29, 12, 0, 0, 1)], pa.timestamp("us")), "734d8127c20ae122"),
    (
        pa.array([Decimal("1.5"), Decimal("-1.5"), Decimal("12345678901234567890.123456789")], pa.decimal128(38, 9)),
        "3b7a8ead0dad174f 52b344dff1e4351b 81c36e55a15588c9",
    ),
    (pa.nulls(1), "c176a0f53ed28598"),
]


def mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def fold(words: list[int]) -> int:
    hashed = 0x9E3779B97F4A7C15
    for word in words:
        hashed = mix(hashed ^ word)
    return hashed


def word_of(value: object) -> int:
    match value:
        case None:
            return 0x6E756C6C00000001
        case bool() | int():
            return value & MASK
        case float():
            if value != value:
                return 0x7FF8000000000000
            return int(struct.unpack("<Q", struct.pack("<d", value + 0.0))[0])
        case Decimal():
            ratio = Fraction(value)
            return ratio.numerator * pow(ratio.denominator, -1, PRIME) % PRIME
        case str():
            return word_of(value.encode())
        case bytes():
            chunks = [value[start : start + 8].ljust(8, b"\0") for start in range(0, len(value), 8)]
            return fold([len(value), *(int.from_bytes(chunk, "little") for chunk in chunks)])
        case dt.datetime():
            return (value - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1) * 1000 & MASK
        case dt.date():
            return (value - dt.date(1970, 1, 1)).days & MASK
    raise AssertionError(value)


def hashes(*columns: pa.Array) -> list[int]:
    return hash_columns(list(columns)).tolist()


@pytest.fixture(params=["numpy", "compiled"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test once with each implementation."""
    monkeypatch.setattr(hashing, "compiled", lambda _rows: compiled if request.param == "compiled" else None)
    return str(request.param)


@pytest.mark.parametrize(("column", "expected"), VECTORS, ids=lambda value: str(getattr(value, "type", "")))
@pytest.mark.usefixtures("path")
def test_the_hash_of_known_values_never_changes(column: pa.Array, expected: str) -> None:
    assert [f"{value:016x}" for value in hashes(column)] == expected.split()


@pytest.mark.usefixtures("path")
def test_the_hash_of_composite_keys_never_changes() -> None:
    numbers, words = pa.array([7, 7]), pa.array(["x", None])
    assert [f"{value:016x}" for value in hashes(numbers, words)] == ["5e9e0b40be8c0ad4", "048b832a642a5387"]


VALUES = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.string(): st.text(),
    pa.large_string(): st.text(),
    pa.string_view(): st.text(),
    pa.binary(): st.binary(max_size=40),
    pa.large_binary(): st.binary(),
    pa.binary(5): st.binary(min_size=5, max_size=5),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.decimal128(38, 10): st.decimals(-(10**27), 10**27, places=10),
    pa.decimal256(60, 20): st.decimals(-(10**27), 10**27, places=20),
    pa.dictionary(pa.int8(), pa.string()): st.text(max_size=3),
}


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[object], pa.Array]:
    """Values with nulls, and a column of them that does not start at the beginning of its buffers."""
    kind = draw(st.sampled_from(list(VALUES)))
    values: list[object] = draw(st.lists(st.none() | VALUES[kind], min_size=1, max_size=20))
    skipped = draw(st.integers(0, 3))
    return values, pa.array([None] * skipped + values, kind).slice(skipped)


@given(columns())
def test_both_implementations_agree_with_the_rules_for_every_type(case: tuple[list[object], pa.Array]) -> None:
    values, column = case
    expected = [fold([word_of(value)]) for value in values]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "compiled", lambda _rows: None)
        assert hashes(column) == expected
        patch.setattr(hashing, "compiled", lambda _rows: compiled)
        assert hashes(column) == expected


@given(st.data(), st.integers(1, 12))
def test_composite_keys_fold_their_columns_in_order(data: st.DataObject, rows: int) -> None:
    kinds = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=2, max_size=4))
    values = [data.draw(st.lists(st.none() | VALUES[kind], min_size=rows, max_size=rows)) for kind in kinds]
    arrays = [pa.array(column, kind) for column, kind in zip(values, kinds, strict=True)]
    assert hashes(*arrays) == [fold([word_of(value) for value in row]) for row in zip(*values, strict=True)]


def test_integers_of_all_widths_agree_by_value() -> None:
    kinds = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    assert len({tuple(hashes(pa.array([0, 5, 127, None], kind))) for kind in kinds}) == 1


def test_the_same_instant_hashes_alike_in_every_unit_and_time_zone() -> None:
    kinds = [pa.timestamp(unit, tz) for unit in ("s", "ms", "us", "ns") for tz in (None, "UTC", "Europe/Berlin")]
    assert (
        len({hashes(pa.array([1_700_000_000], pa.int64()).cast(pa.timestamp("s")).cast(kind))[0] for kind in kinds})
        == 1
    )


def test_dates_of_both_widths_agree_also_before_the_epoch() -> None:
    days = [dt.date(1969, 12, 31), dt.date(1900, 1, 1), dt.date(2100, 1, 1)]
    assert hashes(pa.array(days, pa.date32())) == hashes(pa.array(days, pa.date64()))


def test_decimals_agree_by_value_at_every_scale_and_width() -> None:
    value = [Decimal("-12.5")]
    kinds = [pa.decimal128(9, 1), pa.decimal128(38, 30), pa.decimal256(60, 4), pa.decimal32(5, 2), pa.decimal64(10, 2)]
    assert len({hashes(pa.array(value, kind))[0] for kind in kinds}) == 1


def test_both_zeros_are_one_key_and_all_nans_are_one_key() -> None:
    payload_nan = np.array([0x7FF8000000000ABC, 0xFFF8000000000000], np.uint64).view(np.float64)
    assert hashes(pa.array([0.0])) == hashes(pa.array([-0.0]))
    assert len(set(hashes(pa.array([float("nan"), *payload_nan])))) == 1


def test_what_lies_under_a_null_does_not_matter() -> None:
    one, other = (
        pa.Array.from_buffers(pa.int64(), 1, [pa.py_buffer(b"\0"), pa.py_buffer(bytes([n] * 8))]) for n in (1, 2)
    )
    assert hashes(one) == hashes(other) == hashes(pa.nulls(1))


def test_strings_and_encoded_strings_agree() -> None:
    words = ["", "a", None, "a rather longer string", "a"]
    kinds = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()), pa.binary()]
    assert len({tuple(hashes(pa.array(words, pa.string()).cast(kind))) for kind in kinds}) == 1


def test_one_very_long_value_among_short_ones_is_hashed_by_the_rules() -> None:
    values = ["x" * 1_000_003, *map(str, range(20))]
    assert hashes(pa.array(values)) == [fold([word_of(value)]) for value in values]


def test_nested_columns_are_refused_with_what_to_use_instead() -> None:
    with pytest.raises(TypeError, match=r"list<.*> cannot be part of a key: use integers"):
        hash_columns([pa.array([[1]])])
    assert not supports(pa.list_(pa.int64()))
    assert not supports(pa.month_day_nano_interval())
    assert all(supports(kind) for kind in VALUES)


def test_the_key_group_is_the_uppermost_bits_of_the_hash() -> None:
    some = hash_columns([pa.array(range(1000))])
    for total in (1, 2, 128, 1 << 15):
        assert key_groups_of_hashes(some, total).tolist() == [(value * total) >> 64 for value in some.tolist()]


def test_small_batches_do_not_load_numba() -> None:
    program = (
        "import sys, pyarrow as pa; from penstock.kernels.partition import partition; "
        "partition(pa.record_batch({'k': pa.array(['a', 'b', 'c'] * 100)}), ('k',), 128, 2); "
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
