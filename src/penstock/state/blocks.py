"""Memory for tables that come and go, as those of windows do: a block that nobody uses any more is used again.

Fresh memory of the system costs about as much as all that is done with it: every page is cleared when it is first
touched. A thread remembers the blocks that it was last given. One that nothing but this memory refers to is free: an
array refers to the block that it lies in, and so does everything that was made of it, also on other threads.

A table that has outgrown all blocks does not come and go: what it has left behind on its way is forgotten.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

import numpy as np

from penstock.state import pages
from penstock.state.pages import Words

_LEAST: Final = 1 << 17
"""Words: smaller ones are soon made."""
MOST: Final = 1 << 22
"""Words: larger ones are seldom wanted twice, and would be missed."""
_REMEMBERED: Final = 8
_CACHE_LINE: Final = 64
_SPARE: Final = _CACHE_LINE // 8


class _Blocks(threading.local):
    def __init__(self) -> None:
        self.known: list[Words] = []


_blocks = _Blocks()


def words(count: int) -> Words:
    """So many words of any content, from the start of a line of the processor's cache on."""
    if count > MOST:
        _blocks.known.clear()
        return pages.words(count)
    if count >= _LEAST:
        return _block(count)[:count]
    block = np.empty(count + _SPARE, np.uint64)
    begin = -block.__array_interface__["data"][0] % _CACHE_LINE // 8
    return block[begin : begin + count]


def zeros(count: int) -> Words:
    made = words(count)
    if count <= MOST:
        made.fill(0)
    return made


def _block(count: int) -> Words:
    size = 1 << (count - 1).bit_length()
    known = _blocks.known
    for place in range(len(known)):
        if len(known[place]) == size and sys.getrefcount(known[place]) == 2:  # by the list, and by this call
            known.append(known.pop(place))
            return known[-1]
    block = pages.words(size)
    known.append(block)
    del known[:-_REMEMBERED]
    return block
