"""The real clock."""

from __future__ import annotations

import time


class SystemClock:
    def now(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
