"""Compiled loops of joins: rows of a key as a list that is linked both ways, and the walks along such lists.

Arrays `first`, `last` and `counts` are by key; `following` and `previous` by row, -1 at the ends. A key below 0 has no
rows. Rows of a key are linked in the order in which they came.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


@njit(nogil=True, cache=True)
def append(
    first: Numbers, last: Numbers, counts: Numbers, following: Numbers, previous: Numbers, keys: Numbers, begin: int
) -> None:
    """Puts rows, numbered from `begin` on, at the ends of their keys' lists."""
    for place in range(len(keys)):
        key, row = keys[place], begin + place
        before = last[key]
        previous[row], following[row] = before, -1
        if before < 0:
            first[key] = row
        else:
            following[before] = row
        last[key] = row
        counts[key] += 1


@njit(nogil=True, cache=True)
def unlink(
    first: Numbers,
    last: Numbers,
    counts: Numbers,
    following: Numbers,
    previous: Numbers,
    owners: Numbers,
    rows: Numbers,
) -> None:
    """Takes rows, which are linked, out of their lists."""
    for place in range(len(rows)):
        row = rows[place]
        key, before, behind = owners[row], previous[row], following[row]
        if before < 0:
            first[key] = behind
        else:
            following[before] = behind
        if behind < 0:
            last[key] = before
        else:
            previous[behind] = before
        counts[key] -= 1


@njit(nogil=True, cache=True)
def matches(first: Numbers, counts: Numbers, following: Numbers, keys: Numbers) -> tuple[Numbers, Numbers]:
    """Every row of each of these keys: the place of the key, and the row."""
    total = 0
    for place in range(len(keys)):
        if keys[place] >= 0:
            total += counts[keys[place]]
    places, rows = np.empty(total, np.int64), np.empty(total, np.int64)
    found = 0
    for place in range(len(keys)):
        row = first[keys[place]] if keys[place] >= 0 else -1
        while row >= 0:
            places[found], rows[found] = place, row
            found += 1
            row = following[row]
    return places, rows


@njit(nogil=True, cache=True)
def matches_between(
    first: Numbers, following: Numbers, times: Numbers, keys: Numbers, lows: Numbers, highs: Numbers
) -> tuple[Numbers, Numbers]:
    """The rows of each of these keys whose time is between its bounds, both included."""
    total = 0
    for place in range(len(keys)):
        row = first[keys[place]] if keys[place] >= 0 else -1
        while row >= 0:
            total += lows[place] <= times[row] <= highs[place]
            row = following[row]
    places, rows = np.empty(total, np.int64), np.empty(total, np.int64)
    found = 0
    for place in range(len(keys)):
        row = first[keys[place]] if keys[place] >= 0 else -1
        while row >= 0:
            if lows[place] <= times[row] <= highs[place]:
                places[found], rows[found] = place, row
                found += 1
            row = following[row]
    return places, rows


@njit(nogil=True, cache=True)
def newest(first: Numbers, following: Numbers, times: Numbers, keys: Numbers, limits: Numbers) -> Numbers:
    """Of each of these keys the row with the highest time up to its limit, the last one of equals; -1 for none."""
    rows = np.full(len(keys), -1, np.int64)
    for place in range(len(keys)):
        row = first[keys[place]] if keys[place] >= 0 else -1
        while row >= 0:
            if times[row] <= limits[place] and (rows[place] < 0 or times[row] >= times[rows[place]]):
                rows[place] = row
            row = following[row]
    return rows


@njit(nogil=True, cache=True)
def equal(
    first: Numbers, following: Numbers, hashes: Numbers, keys: Numbers, wanted: Numbers, taken: NDArray[np.bool_]
) -> Numbers:
    """For each of these keys the first row with the wanted hash that is not taken, which is taken then; -1 for none."""
    rows = np.full(len(keys), -1, np.int64)
    for place in range(len(keys)):
        row = first[keys[place]] if keys[place] >= 0 else -1
        while row >= 0:
            if hashes[row] == wanted[place] and not taken[row]:
                taken[row] = True
                rows[place] = row
                break
            row = following[row]
    return rows
