"""The kernels that Numba compiles. Import it only where a batch is large enough to pay for that: `loading` decides.

Compiled code is cached on disk beside this file, releases the GIL, and gives exactly what its NumPy counterpart gives.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from penstock.kernels import hashing

_SEED = np.uint64(hashing.SEED)
_MIX_1 = np.uint64(hashing.MIX_1)
_MIX_2 = np.uint64(hashing.MIX_2)
_30, _27, _31, _3, _56 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(3), np.uint64(56)


@njit(nogil=True, cache=True, inline="always")
def _mix(word: np.uint64) -> np.uint64:
    word = (word ^ (word >> _30)) * _MIX_1
    word = (word ^ (word >> _27)) * _MIX_2
    return word ^ (word >> _31)


@njit(nogil=True, cache=True)
def hash_words(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The hash of a key of one column."""
    hashes = np.empty(len(words), np.uint64)
    for row in range(len(words)):
        hashes[row] = _mix(_SEED ^ words[row])
    return hashes


@njit(nogil=True, cache=True)
def fold_words(hashes: NDArray[np.uint64], words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The hash of a key with one more column."""
    folded = np.empty(len(words), np.uint64)
    for row in range(len(words)):
        folded[row] = _mix(hashes[row] ^ words[row])
    return folded


@njit(nogil=True, cache=True)
def hash_bytes(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The word of every byte string: the fold of its length and of its bytes, eight at a time."""
    words = np.empty(len(offsets) - 1, np.uint64)
    for row in range(len(words)):
        place, end = offsets[row], offsets[row + 1]
        folded = _mix(_SEED ^ np.uint64(end - place))
        while place + 8 <= end:
            chunk = np.uint64(data[place])
            for byte in range(1, 8):
                chunk |= np.uint64(data[place + byte]) << (np.uint64(byte) << _3)
            folded = _mix(folded ^ chunk)
            place += 8
        if place < end:
            chunk = np.uint64(0)
            for byte in range(end - place):
                chunk |= np.uint64(data[place + byte]) << (np.uint64(byte) << _3)
            folded = _mix(folded ^ chunk)
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


@njit(nogil=True, cache=True, inline="always")
def _starts(counts: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Where the rows of each owner begin when they are ordered by owner."""
    starts = np.empty(len(counts), np.uint32)
    start = 0
    for subtask in range(len(counts)):
        starts[subtask] = start
        start += counts[subtask]
    return starts


@njit(nogil=True, cache=True)
def places(owner: NDArray[np.uint16], counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Where every row goes when the rows are ordered by owner, each owner's rows in their old order."""
    cursor = _starts(counts)
    place = np.empty(len(owner), np.int32)
    for row in range(len(owner)):
        place[row] = cursor[owner[row]]
        cursor[owner[row]] += np.uint32(1)
    return place


@njit(nogil=True, cache=True)
def rows_by_place(place: NDArray[np.int32]) -> NDArray[np.int32]:
    """The inverse of `places`: which row comes to lie at each place."""
    rows = np.empty(len(place), np.int32)
    for row in range(len(place)):
        rows[place[row]] = row
    return rows


@njit(nogil=True, cache=True)
def rows_by_owner(owner: NDArray[np.uint16], counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """The rows ordered by owner, each owner's in their old order: `rows_by_place` of `places`, in one pass."""
    cursor = _starts(counts)
    rows = np.empty(len(owner), np.int32)
    for row in range(len(owner)):
        place = cursor[owner[row]]
        cursor[owner[row]] = place + np.uint32(1)
        rows[place] = row
    return rows


@njit(nogil=True, cache=True)
def scatter(values: NDArray[np.generic], place: NDArray[np.int32]) -> NDArray[np.generic]:
    """The values, each at its place."""
    placed = np.empty_like(values)
    for row in range(len(values)):
        placed[place[row]] = values[row]
    return placed


@njit(nogil=True, cache=True)
def gather(values: NDArray[np.generic], rows: NDArray[np.integer]) -> NDArray[np.generic]:
    """The values of these rows."""
    gathered = np.empty(len(rows), values.dtype)
    for place in range(len(rows)):
        gathered[place] = values[np.uint64(rows[place])]  # unsigned: no row counts from the end
    return gathered


@njit(nogil=True, cache=True)
def find_or_insert(
    table: NDArray[np.uint64],
    keys: NDArray[np.uint64],
    stamps: NDArray[np.int32],
    stamp: np.int32,
    since: np.int32,
    count: int,
    words: NDArray[np.uint64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int]:
    """The slot of every row's key, the rows in which each key occurs first, those of the slots that were not touched
    after the stamp `since`, and how many keys there are afterwards.

    `table` is an open-addressing table of (hash, slot + 1), its length a power of two, with room for all rows to be
    new; a key of one word is known by its hash, because that is a bijection. `keys` and `stamps` are indexed by slot.
    """
    rows, width = words.shape
    slots = np.empty(rows, np.int64)
    first_rows = np.empty(rows, np.int64)
    touched = np.empty(rows, np.int64)
    distinct = fresh = 0
    mask = np.uint64(len(table) - 1)
    for row in range(rows):
        hashed = _SEED
        for column in range(width):
            hashed = _mix(hashed ^ words[row, column])
        place = hashed & mask
        while True:
            entry = table[place, 1]
            if entry == 0:
                slot = count
                count += 1
                table[place, 0] = hashed
                table[place, 1] = slot + 1
                for column in range(width):
                    keys[slot, column] = words[row, column]
                break
            if table[place, 0] == hashed:
                slot = int(entry) - 1
                equal = True
                if width > 1:
                    for column in range(width):
                        if keys[slot, column] != words[row, column]:
                            equal = False
                            break
                if equal:
                    break
            place = (place + np.uint64(1)) & mask
        slots[row] = slot
        if stamps[slot] != stamp:
            if stamps[slot] <= since:
                touched[fresh] = slot
                fresh += 1
            stamps[slot] = stamp
            first_rows[distinct] = row
            distinct += 1
    return slots, first_rows[:distinct], touched[:fresh].copy(), count


@njit(nogil=True, cache=True)
def look_up(table: NDArray[np.uint64], keys: NDArray[np.uint64], words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The slot of every row's key in a table of `find_or_insert`, -1 where it has none."""
    rows, width = words.shape
    slots = np.full(rows, -1, np.int64)
    mask = np.uint64(len(table) - 1)
    for row in range(rows):
        hashed = _SEED
        for column in range(width):
            hashed = _mix(hashed ^ words[row, column])
        place = hashed & mask
        while table[place, 1] != 0:
            slot = int(table[place, 1]) - 1
            equal = table[place, 0] == hashed
            if equal and width > 1:
                for column in range(width):
                    equal = equal and keys[slot, column] == words[row, column]
            if equal:
                slots[row] = slot
                break
            place = (place + np.uint64(1)) & mask
    return slots


@njit(nogil=True, cache=True)
def rehash(old: NDArray[np.uint64], new: NDArray[np.uint64]) -> None:
    """Moves all entries of a table of (hash, slot + 1) to a larger, empty one."""
    mask = np.uint64(len(new) - 1)
    for entry in range(len(old)):
        if old[entry, 1] != 0:
            place = old[entry, 0] & mask
            while new[place, 1] != 0:
                place = (place + np.uint64(1)) & mask
            new[place, 0] = old[entry, 0]
            new[place, 1] = old[entry, 1]


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
