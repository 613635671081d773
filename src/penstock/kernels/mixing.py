"""The stable hash's mixing step, for kernels to build upon."""

from __future__ import annotations

import numpy as np
from numba import njit

from penstock.kernels import hashing

SEED = np.uint64(hashing.SEED)
_MIX_1, _MIX_2 = np.uint64(hashing.MIX_1), np.uint64(hashing.MIX_2)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


@njit(nogil=True, cache=True, inline="always")
def mix_word(word: np.uint64) -> np.uint64:
    word = (word ^ (word >> _30)) * _MIX_1
    word = (word ^ (word >> _27)) * _MIX_2
    return word ^ (word >> _31)
