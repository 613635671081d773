"""When the compiled kernels are worth loading: importing Numba takes half a second, which small batches never repay."""

from __future__ import annotations

import sys
from types import ModuleType

COMPILED_FROM_ROWS = 512
"""Batches with fewer rows use NumPy, unless the compiled kernels are loaded already."""


def compiled(rows: int) -> ModuleType | None:
    """The compiled kernels, if they are worth it for so many rows (or cost nothing, being loaded)."""
    if rows < COMPILED_FROM_ROWS and "penstock.kernels.compiled" not in sys.modules:
        return None
    from penstock.kernels import compiled as kernels

    return kernels
