"""Compiled loops of aggregates that keep more than one number per slot. Loaded with those of `compiled`."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(nogil=True, cache=True)
def add_moments(
    counts: NDArray[np.int64],
    means: NDArray[np.float64],
    squares: NDArray[np.float64],
    slots: NDArray[np.int64],
    values: NDArray[np.float64],
) -> None:
    """Welford: the mean, and the sum of squared distances from it, one value after another."""
    for row in range(len(slots)):
        slot = slots[row]
        counts[slot] += 1
        distance = values[row] - means[slot]
        means[slot] += distance / counts[slot]
        squares[slot] += distance * (values[row] - means[slot])


@njit(nogil=True, cache=True)
def raise_registers(
    registers: NDArray[np.uint8], slots: NDArray[np.int64], places: NDArray[np.int64], ranks: NDArray[np.uint8]
) -> None:
    for row in range(len(slots)):
        if ranks[row] > registers[slots[row], places[row]]:
            registers[slots[row], places[row]] = ranks[row]


@njit(nogil=True, cache=True)
def link(last: NDArray[np.int64], previous: NDArray[np.int64], slots: NDArray[np.int64], first: int) -> None:
    """Puts entries, numbered from `first` on, at the ends of their slots' chains."""
    for row in range(len(slots)):
        slot = slots[row]
        previous[first + row] = last[slot]
        last[slot] = first + row


@njit(nogil=True, cache=True)
def unlink(last: NDArray[np.int64], counts: NDArray[np.int64], previous: NDArray[np.int64]) -> NDArray[np.int64]:
    """The entries of some chains, given by their last entries and lengths, one chain after another, oldest first."""
    total = 0
    for chain in range(len(counts)):
        total += counts[chain]
    entries = np.empty(total, np.int64)
    end = 0
    for chain in range(len(counts)):
        end += counts[chain]
        entry = last[chain]
        for place in range(counts[chain]):
            entries[end - 1 - place] = entry
            entry = previous[entry]
    return entries
