"""How the C library gives out memory in a worker.

By itself, glibc gives every thread an arena of its own, up to eight for each processor, and each keeps what was freed
in it: in a worker with a dozen threads that pass batches on to each other, that is a hundred megabytes that nobody
uses. Arenas that are there already stay in use, also in processes that are forked: so it is said before libraries
start threads.
"""

from __future__ import annotations

import ctypes
from typing import Final

_ARENA_MAX: Final = -8
"""glibc's M_ARENA_MAX."""


def share_arena() -> bool:
    """From now on new threads share the arena that is there. Whether that could be done: other libraries do not know of
    it. (Threads seldom wait for each other there: Python and Arrow have allocators of their own.)"""
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    return change is not None and bool(change(_ARENA_MAX, 1))
