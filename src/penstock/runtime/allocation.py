"""How a worker's process treats memory: what a batch gives back is kept for the next one.

Batches of some megabytes come and go a thousand times a second. The defaults of the allocators give memory of that size
back to the system at once, which then has to be asked for again and filled with zeros page by page: that costs more
than making the batch. So the C library keeps what is freed, up to a limit, and Arrow allocates from it.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

import pyarrow as pa

_KEPT: Final = 64 << 20
"""Bytes, of every arena of the C library: about what may be in flight to a subtask."""
_GROWTH: Final = 4 << 20
_MAPPED_FROM: Final = 32 << 20
"""Bytes from which memory comes from the system directly. The C library takes no more."""
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory() -> None:
    """For the process as a whole. Does nothing where the C library has no such setting."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_TRIM_THRESHOLD, _KEPT)
    mallopt(_TOP_PAD, _GROWTH)
    mallopt(_MMAP_THRESHOLD, _MAPPED_FROM)
    pa.set_memory_pool(pa.system_memory_pool())
