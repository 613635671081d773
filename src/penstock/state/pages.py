"""Memory straight from the system, in large pages where there are such, and given back to it as a whole.

For what is large and grows by being replaced. The C library would cut such pieces out of the memory that batches come
from, and what they leave behind there is too small for the next one and too much for anything else. Nor may a process
that is forked write into it.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]


def pages(size: int) -> mmap.mmap:
    """So many bytes, all zero, from the start of a page on. Large pages cost fewer faults when they are first touched,
    and fewer look-ups later: of the processor, and of a disk that writes from them."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if (large := getattr(mmap, "MADV_HUGEPAGE", None)) is not None:
        with contextlib.suppress(OSError):  # a system without them
            memory.madvise(large)
    return memory


def words(count: int) -> Words:
    """So many, all zero."""
    return np.frombuffer(pages(count * 8), np.uint64)
