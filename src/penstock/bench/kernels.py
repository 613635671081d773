"""The loops that make the benchmarks' events."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

_SCATTER = 2_654_435_761
_PER_MILLISECOND = 100
_EVENTS_EACH = 100


@njit(nogil=True, cache=True)
def columns(
    index: NDArray[np.int64], keys: int, hot_keys: int, values: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Key, value and time of every index. With `hot_keys`, all but every fifth index has one of those."""
    rows = len(index)
    key_column = np.empty(rows, np.int64)
    value_column = np.empty(rows, np.int64)
    time_column = np.empty(rows, np.int64)
    before, distance = np.int64(0), np.int64(0)
    key, key_step, value, value_step = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for row in range(rows):
        i = index[row]
        if i - before != distance:
            distance = i - before
            key_step = (distance % keys) * (_SCATTER % keys) % keys  # what 64 bits hold, however far it goes
            value_step = distance % values
        before = i
        key += key_step
        if key >= keys:
            key -= keys
        value += value_step
        if value >= values:
            value -= values
        key_column[row] = key
        value_column[row] = value
        time_column[row] = i // _PER_MILLISECOND
    if hot_keys:
        for row in range(rows):
            if index[row] % 5:
                key_column[row] = (index[row] % hot_keys) * (_SCATTER % hot_keys) % hot_keys
    return key_column, value_column, time_column


@njit(nogil=True, cache=True)
def recent_keys(index: NDArray[np.int64], keys: int, recent: int) -> NDArray[np.int64]:
    """First every key once, in order; then `recent` neighbouring ones at a time, each a hundred times before they move
    on to the next ones."""
    key_column = np.empty(len(index), np.int64)
    for row in range(len(index)):
        i = index[row]
        if i < keys:
            key_column[row] = i
        else:
            start = i // (_EVENTS_EACH * recent) * recent
            key_column[row] = (start + (i * _SCATTER) % recent) % keys
    return key_column


@njit(nogil=True, cache=True)
def names(keys: NDArray[np.int64], prefix: NDArray[np.uint8], fours: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The bytes of all keys' names, one after another: the prefix and eight decimal digits. `fours` holds the four
    digits of every number below 10,000."""
    width = len(prefix) + 8
    made = np.empty(len(keys) * width, np.uint8)
    for row in range(len(keys)):
        place = row * width
        for byte in range(len(prefix)):
            made[place + byte] = prefix[byte]
        place += len(prefix)
        key = np.uint32(keys[row])
        upper = key // np.uint32(10_000)
        lower = key - upper * np.uint32(10_000)
        for digit in range(4):
            made[place + digit] = fours[4 * upper + digit]
            made[place + 4 + digit] = fours[4 * lower + digit]
    return made
