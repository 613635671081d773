"""What happened in a run: a bounded log of its events, and a hash of all of them.

The hash covers every line ever told, also those that fell out of the log: two runs of one seed went the same way if
and only if their hashes are equal.
"""

from __future__ import annotations

import hashlib
from collections import deque


class Violation(AssertionError):
    """A rule of the product does not hold in this run."""


class Story:
    def __init__(self, limit: int = 300) -> None:
        self._lines: deque[str] = deque(maxlen=limit)
        self._hash = hashlib.blake2b(digest_size=12)
        self.told = 0

    def tell(self, line: str) -> None:
        self._lines.append(line)
        self._hash.update(line.encode())
        self.told += 1

    def lines(self) -> list[str]:
        return list(self._lines)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()
