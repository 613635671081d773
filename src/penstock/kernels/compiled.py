"""The kernels that Numba compiles. Import it only where a batch is large enough to pay for that: `loading` decides.

Compiled code is cached on disk beside this file, releases the GIL, and gives exactly what its NumPy counterpart gives.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from penstock.kernels.memory import put_word, word_at
from penstock.kernels.mixing import SEED, mix_word


@njit(nogil=True, cache=True)
def hash_words(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The hash of a key of one column."""
    hashes = np.empty(len(words), np.uint64)
    for row in range(len(words)):
        hashes[row] = mix_word(SEED ^ words[row])
    return hashes


@njit(nogil=True, cache=True)
def fold_words(hashes: NDArray[np.uint64], words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The hash of a key with one more column."""
    folded = np.empty(len(words), np.uint64)
    for row in range(len(words)):
        folded[row] = mix_word(hashes[row] ^ words[row])
    return folded


@njit(nogil=True, cache=True)
def hash_bytes(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The word of every byte string: the fold of its length and of its bytes, eight at a time."""
    words = np.empty(len(offsets) - 1, np.uint64)
    for row in range(len(words)):
        place, end = offsets[row], offsets[row + 1]
        folded, long = mix_word(SEED ^ np.uint64(end - place)), end - place >= 8
        while place + 8 <= end:
            folded = mix_word(folded ^ word_at(data, place))
            place += 8
        if place < end:
            chunk = np.uint64(0)
            if long:  # read together with what comes before it, which is then shifted out
                chunk = word_at(data, end - 8) >> np.uint64(64 - 8 * (end - place))
            else:
                for byte in range(end - place):
                    chunk |= np.uint64(data[place + byte]) << np.uint64(8 * byte)
            folded = mix_word(folded ^ chunk)
        words[row] = folded
    return words


@njit(nogil=True, cache=True)
def owners(
    hashes: NDArray[np.uint64], group_shift: np.uint64, group_bits: np.uint64, parallelism: np.uint64
) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
    """The owning subtask of every row, and how many rows each subtask gets."""
    owner = np.empty(len(hashes), np.uint16)
    counts = np.zeros(np.int64(parallelism), np.int64)
    for row in range(len(hashes)):
        subtask = ((hashes[row] >> group_shift) * parallelism) >> group_bits
        owner[row] = subtask
        counts[subtask] += 1
    return owner, counts


@njit(nogil=True, cache=True)
def rows_by_owner(owner: NDArray[np.uint16], counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """The rows ordered by owner, each owner's in their old order."""
    cursor = np.empty(len(counts), np.uint32)
    start = 0
    for subtask in range(len(counts)):
        cursor[subtask] = start
        start += counts[subtask]
    rows = np.empty(len(owner), np.int32)
    for row in range(len(owner)):
        place = cursor[owner[row]]
        cursor[owner[row]] = place + np.uint32(1)
        rows[place] = row
    return rows


@njit(nogil=True, cache=True)
def gather(values: NDArray[np.generic], rows: NDArray[np.integer]) -> NDArray[np.generic]:
    """The values of these rows."""
    gathered = np.empty(len(rows), values.dtype)
    for place in range(len(rows)):
        gathered[place] = values[np.uint64(rows[place])]  # unsigned: no row counts from the end
    return gathered


@njit(nogil=True, cache=True)
def gather_bytes(
    offsets: NDArray[np.int64], data: NDArray[np.uint8], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The byte strings of these rows, one after another, and where each begins and ends."""
    places = np.empty(len(rows) + 1, np.int64)
    place = 0
    for row in range(len(rows)):
        places[row] = place
        place += offsets[rows[row] + 1] - offsets[rows[row]]
    places[len(rows)] = place
    # Eight bytes at a time, also where fewer are wanted: what follows is written over them.
    gathered = np.empty(place + 8, np.uint8)
    for row in range(len(rows)):
        source, place, end = offsets[rows[row]], places[row], places[row + 1]
        while place < end and source + 8 <= len(data):
            put_word(gathered, place, word_at(data, source))
            place, source = place + 8, source + 8
        while place < end:
            gathered[place] = data[source]
            place, source = place + 1, source + 1
    return places, gathered[: places[len(rows)]]


@njit(nogil=True, cache=True)
def longest(offsets: NDArray[np.int64]) -> int:
    """Of byte strings, given where each begins and ends."""
    most = 0
    for row in range(len(offsets) - 1):
        most = max(most, offsets[row + 1] - offsets[row])
    return most


@njit(nogil=True, cache=True)
def pack(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Byte strings of at most 15 bytes as two words each: the bytes, zeros, and in the last byte how many they are."""
    packed = np.empty((2, len(offsets) - 1), np.uint64)
    for row in range(len(offsets) - 1):
        place, length = offsets[row], np.uint64(offsets[row + 1] - offsets[row])
        low, high, one = np.uint64(0), np.uint64(0), np.uint64(1)
        if place + 16 <= len(data):
            if length < 8:
                low = word_at(data, place) & (one << np.uint64(8) * length) - one
            else:
                low = word_at(data, place)
                high = word_at(data, place + 8) & (one << np.uint64(8) * (length - np.uint64(8))) - one
        else:
            for byte in range(length):
                shifted = np.uint64(data[place + byte]) << np.uint64(8) * np.uint64(byte % 8)
                if byte < 8:
                    low |= shifted
                else:
                    high |= shifted
        packed[0, row] = low
        packed[1, row] = high | length << np.uint64(56)
    return packed


@njit(nogil=True, cache=True)
def unpack(low: NDArray[np.uint64], high: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """What `pack` was given: where each begins and ends, and the bytes."""
    offsets = np.empty(len(low) + 1, np.int64)
    offsets[0] = 0
    for row in range(len(low)):
        offsets[row + 1] = offsets[row] + np.int64(high[row] >> np.uint64(56))
    data = np.empty(offsets[len(low)] + 16, np.uint8)
    for row in range(len(low)):  # what is too much is written over by the next one
        put_word(data, offsets[row], low[row])
        put_word(data, offsets[row] + 8, high[row])
    return offsets, data[: offsets[len(low)]]


@njit(nogil=True, cache=True)
def add_ones(totals: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
    for row in range(len(slots)):
        totals[slots[row]] += 1


@njit(nogil=True, cache=True)
def add_values(totals: NDArray[np.generic], slots: NDArray[np.int64], values: NDArray[np.generic]) -> None:
    for row in range(len(slots)):
        totals[slots[row]] += values[row]


@njit(nogil=True, cache=True)
def keep_lowest(lowest: NDArray[np.generic], slots: NDArray[np.int64], values: NDArray[np.generic]) -> None:
    """NaN counts as higher than all numbers."""
    for row in range(len(slots)):
        slot = slots[row]
        if values[row] < lowest[slot] or lowest[slot] != lowest[slot]:
            lowest[slot] = values[row]


@njit(nogil=True, cache=True)
def keep_highest(highest: NDArray[np.generic], slots: NDArray[np.int64], values: NDArray[np.generic]) -> None:
    """NaN counts as higher than all numbers."""
    for row in range(len(slots)):
        slot = slots[row]
        if values[row] > highest[slot] or values[row] != values[row]:
            highest[slot] = values[row]


@njit(nogil=True, cache=True)
def count_and_tell(
    totals: NDArray[np.int64], slots: NDArray[np.int64], places: NDArray[np.int32], results: NDArray[np.int64]
) -> None:
    """As `add_ones`, and what comes out of it: each slot's total at its place in `results`."""
    for row in range(len(slots)):
        total = totals[slots[row]] + 1
        totals[slots[row]] = total
        results[places[row]] = total


@njit(nogil=True, cache=True)
def add_and_tell(
    totals: NDArray[np.generic],
    slots: NDArray[np.int64],
    places: NDArray[np.int32],
    values: NDArray[np.generic],
    results: NDArray[np.generic],
) -> None:
    """As `add_values`, and what comes out of it: each slot's total at its place in `results`."""
    for row in range(len(slots)):
        total = totals[slots[row]] + values[row]
        totals[slots[row]] = total
        results[places[row]] = total


@njit(nogil=True, cache=True)
def set_bits(bits: NDArray[np.uint8], places: NDArray[np.int32]) -> None:
    """Sets these bits; the lowest one of a byte comes first."""
    for place in places:
        bits[place >> 3] |= np.uint8(1 << (place & 7))
