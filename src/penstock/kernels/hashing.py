"""The stable hash of keys: the same for ever and on every platform, because it decides where state lies in a file.

Every key column is first reduced to one 64-bit *word* per row, by value and not by representation:

- integers and booleans: the value, two's complement, so that an int8 and an int64 of the same value agree;
- floats: the bits of the value as float64, with -0.0 taken as 0.0 and every NaN as the one quiet NaN;
- dates: days since the epoch;
- timestamps, times and durations: nanoseconds modulo 2^64, whatever their unit or time zone;
- decimals: the value modulo the prime 2^61 - 1 (a power of ten has an inverse there), so that 1.5 and 1.50 agree;
- strings and binaries: the fold (below) of their length in bytes and their bytes as little-endian words, zero-padded;
- null: a word of its own.

The hash folds the words of the key's columns, in the key's order: `h = SEED`, then `h = mix(h ^ word)` for each word,
where `mix` is a bijection of 64 bits with full avalanche. A key of one integer column therefore never collides. The
key group is the hash's uppermost bits. `docs/format.md` states all this with test vectors; changing any of it breaks
every existing checkpoint.

Small batches are hashed by NumPy, large ones by compiled kernels, with identical results: a tiny pipeline never pays
for loading Numba.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from penstock.core.keygroups import check_total
from penstock.kernels.loading import COMPILED_FROM_ROWS, compiled

Words = npt.NDArray[np.uint64]
Scalar = TypeVar("Scalar", bound=np.generic)

SEED = 0x9E3779B97F4A7C15
NULL_WORD = 0x6E756C6C00000001
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
PRIME = (1 << 61) - 1
QUIET_NAN = 0x7FF8000000000000

_PADDED_WORDS_LIMIT = 1 << 16
"""The NumPy form of the byte hash pads all values to the longest: not beyond so many words."""

_NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def supports(type: pa.DataType) -> bool:
    """Whether a column of this type can be part of a key."""
    if pat.is_dictionary(type):
        return supports(type.value_type)
    return (
        pat.is_integer(type)
        or pat.is_boolean(type)
        or pat.is_floating(type)
        or (pat.is_temporal(type) and not pat.is_interval(type))
        or pat.is_decimal(type)
        or is_bytes(type)
        or pat.is_null(type)
    )


def hash_rows(batch: pa.RecordBatch, key: tuple[str, ...]) -> Words:
    """The hash of every row's key."""
    return hash_columns([batch.column(name) for name in key])


def hash_columns(columns: list[pa.Array]) -> Words:
    """The hash of every row, of the columns that make up the key."""
    kernels = compiled(len(columns[0]))
    hashes: Words | None = None
    for column in columns:
        words = column_words(column)
        if kernels is not None:
            hashes = kernels.hash_words(words) if hashes is None else kernels.fold_words(hashes, words)
        else:
            hashes = mix(words ^ np.uint64(SEED) if hashes is None else hashes ^ words)
    if hashes is None:
        raise ValueError("a key needs at least one column")
    return hashes


def key_groups_of_hashes(hashes: Words, total: int) -> npt.NDArray[np.int32]:
    """The key group of every hash: its uppermost bits."""
    check_total(total)
    if total == 1:
        return np.zeros(len(hashes), np.int32)
    return (hashes >> np.uint64(64 - (total.bit_length() - 1))).astype(np.int32)


def mix(words: Words) -> Words:
    """A bijection of 64 bits in which every bit of the input sways every bit of the output."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(MIX_1)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(MIX_2)
    return words ^ (words >> np.uint64(31))


def column_words(column: pa.Array) -> Words:
    """One word per row, equal for equal values of whatever width, unit or encoding.

    May share the column's memory: do not write to it.
    """
    if pat.is_dictionary(column.type):
        return read_only(_dictionary_words(column))
    if pat.is_null(column.type):
        return read_only(np.full(len(column), NULL_WORD, np.uint64))
    words = _value_words(column)
    if column.null_count:
        words = np.where(valid_rows(column), words, np.uint64(NULL_WORD))
    return read_only(words)


def read_only(array: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """The same array, not to be written to: kernels are compiled for that sort alone, wherever an array comes from."""
    array.flags.writeable = False
    return array


def valid_rows(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Which rows are not null."""
    return column.is_valid().to_numpy(zero_copy_only=False)


def fixed_width_values(column: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    """The values of a fixed-width column as they lie in memory, without a copy; what lies under a null is arbitrary."""
    width = np.dtype(dtype).itemsize
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros(0, dtype)
    return read_only(np.frombuffer(buffer, dtype, len(column), column.offset * width))


@cache
def storage_dtype(kind: pa.DataType) -> np.dtype[Any]:
    """How the values of a type of numbers (dates and times included) lie in memory."""
    if pat.is_floating(kind):
        return np.dtype(f"f{kind.bit_width // 8}")
    return np.dtype(f"{'u' if pat.is_unsigned_integer(kind) else 'i'}{kind.bit_width // 8}")


def _value_words(column: pa.Array) -> Words:
    kind = column.type
    if pat.is_integer(kind):
        values = fixed_width_values(column, ("i" if pat.is_signed_integer(kind) else "u") + str(kind.bit_width // 8))
        return _as_words(values)
    if pat.is_boolean(kind):
        return _as_words(fixed_width_values(column.cast(pa.uint8()), "u1"))
    if pat.is_floating(kind):
        return float_words(fixed_width_values(column, f"f{kind.bit_width // 8}"))
    if pat.is_date32(kind):
        return _as_words(fixed_width_values(column, "i4"))
    if pat.is_date64(kind):
        return _as_words(fixed_width_values(column, "i8").astype(np.int64) // 86_400_000)
    if pat.is_temporal(kind) and not pat.is_interval(kind):
        words = _as_words(fixed_width_values(column, f"i{kind.bit_width // 8}"))
        return words if kind.unit == "ns" else words * np.uint64(_NANOSECONDS[kind.unit])
    if pat.is_decimal(kind):
        return _decimal_words(column)
    if is_bytes(kind):
        return _bytes_words(column)
    raise TypeError(
        f"a column of type {kind} cannot be part of a key: use integers, booleans, floats, strings, binaries, dates, "
        "times, timestamps, durations or decimals, or derive such a column first"
    )


def _as_words(integers: npt.NDArray[np.generic]) -> Words:
    if integers.dtype == np.uint64:
        return integers.view(np.uint64)
    return integers.astype(np.int64, copy=False).view(np.uint64)


def float_words(values: npt.NDArray[np.generic]) -> Words:
    """Equal for equal numbers, both zeros included, and for all NaNs."""
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like any other
        wide = values.astype(np.float64) + 0.0  # adding zero turns -0.0 into 0.0
    words = wide.view(np.uint64)
    words[np.isnan(wide)] = QUIET_NAN
    return words


def _dictionary_words(column: pa.DictionaryArray) -> Words:
    dictionary = column_words(column.dictionary)
    if not len(dictionary):
        return np.full(len(column), NULL_WORD, np.uint64)
    valid = valid_rows(column.indices)
    indices = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
    return np.where(valid, dictionary[indices], np.uint64(NULL_WORD))


def _decimal_words(column: pa.Array) -> Words:
    """The value modulo 2^61 - 1: the unscaled integer, limb by limb, times the inverse of ten to the scale."""
    width = column.type.bit_width // 32
    limbs = fixed_width_values(column, f"V{width * 4}").view(np.uint32).reshape(-1, width)
    rest = np.zeros(len(column), np.uint64)
    for limb in range(width - 1, -1, -1):
        rest = _modulo(_times_2_32(rest) + limbs[:, limb])
    negative = limbs[:, -1] >> np.uint32(31)
    rest = _modulo(rest + negative * np.uint64(PRIME - pow(2, 32 * width, PRIME)))
    scale: int = column.type.scale
    return _times(rest, pow(10, -scale, PRIME))


def _modulo(values: Words) -> Words:
    values = (values & np.uint64(PRIME)) + (values >> np.uint64(61))
    return np.where(values >= np.uint64(PRIME), values - np.uint64(PRIME), values)


def _times_2_32(values: Words) -> Words:
    """Modulo 2^61 - 1 a factor of a power of two is a rotation of 61 bits."""
    return ((values & np.uint64((1 << 29) - 1)) << np.uint64(32)) | (values >> np.uint64(29))


def _times(values: Words, factor: int) -> Words:
    low, high = values & np.uint64(0xFFFFFFFF), values >> np.uint64(32)
    factor_low, factor_high = np.uint64(factor & 0xFFFFFFFF), np.uint64(factor >> 32)
    middle = _modulo(_modulo(high * factor_low) + _modulo(low * factor_high))
    top = _modulo(high * factor_high * np.uint64(8))  # 2^64 is 8 modulo the prime
    return _modulo(_modulo(low * factor_low) + _times_2_32(middle) + top)


@cache
def is_bytes(kind: pa.DataType) -> bool:
    """Whether values are strings or binaries."""
    return (
        pat.is_string(kind)
        or pat.is_large_string(kind)
        or pat.is_string_view(kind)
        or pat.is_binary(kind)
        or pat.is_large_binary(kind)
        or pat.is_binary_view(kind)
        or pat.is_fixed_size_binary(kind)
    )


def _bytes_words(column: pa.Array) -> Words:
    offsets, data = offsets_and_bytes(column)
    if (kernels := compiled(len(column))) is not None:
        return kernels.hash_bytes(read_only(offsets), read_only(data))
    lengths = np.diff(offsets)
    longest = int(lengths.max(initial=0)) // 8 + 1
    if len(column) * longest > _PADDED_WORDS_LIMIT and (kernels := compiled(COMPILED_FROM_ROWS)) is not None:
        return kernels.hash_bytes(read_only(offsets), read_only(data))
    padded = np.zeros((len(column), longest * 8), np.uint8)
    inside = np.arange(longest * 8) < lengths[:, None]
    padded[inside] = data[offsets[0] : offsets[-1]]
    chunks = padded.view("<u8").astype(np.uint64, copy=False)
    hashes = mix(lengths.astype(np.uint64) ^ np.uint64(SEED))
    for place in range(longest):
        hashes = np.where(place * 8 < lengths, mix(hashes ^ chunks[:, place]), hashes)
    return hashes


def offsets_and_bytes(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Of strings or binaries: where each begins and ends, and the bytes."""
    kind = column.type
    if pat.is_string_view(kind) or pat.is_binary_view(kind):
        return offsets_and_bytes(column.cast(pa.large_binary() if pat.is_binary_view(kind) else pa.large_string()))
    _, *buffers = column.buffers()
    data = np.frombuffer(buffers[-1], np.uint8) if buffers[-1] is not None else np.zeros(0, np.uint8)
    if pat.is_fixed_size_binary(kind):
        return np.arange(column.offset, column.offset + len(column) + 1, dtype=np.int64) * kind.byte_width, data
    if buffers[0] is None:
        return np.zeros(len(column) + 1, np.int64), data
    wide = pat.is_large_string(kind) or pat.is_large_binary(kind)
    dtype = np.dtype(np.int64 if wide else np.int32)
    offsets = np.frombuffer(buffers[0], dtype, len(column) + 1, column.offset * dtype.itemsize)
    return offsets.astype(np.int64, copy=False), data
