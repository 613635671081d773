"""The events of the benchmark workloads: a pure function of the index, the same for every engine that is compared."""

from __future__ import annotations

from typing import Any

import penstock as ps

_SCATTER = 2_654_435_761


def events(count: int | None, keys: int, *, rate: float | None = None) -> Any:
    """`key` scattered over `keys` values, `value` 0 to 999, `ts` 100 events per millisecond."""
    return ps.sources.Generator(
        count,
        {
            "key": lambda i: (i * _SCATTER) % keys,
            "value": lambda i: i % 1_000,
            "ts": lambda i: i // 100,
        },
        rate=rate,
    )
