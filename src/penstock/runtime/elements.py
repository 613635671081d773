"""What travels in a channel. Every element stands for itself, given its edge's schema, so that elements in flight can
be stored, replayed and partitioned again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.core.barrier import Barrier

MAX_WATERMARK: Final = (1 << 63) - 1
"""No record of any event time will follow."""
MIN_WATERMARK: Final = -(1 << 63)


@dataclass(frozen=True, slots=True)
class Watermark:
    """No record with an event time at or below `time` (milliseconds since the epoch) will follow on this channel."""

    time: int


@dataclass(frozen=True, slots=True)
class Idle:
    """The channel says nothing about time until it says something again: `active=False` goes idle, True is back."""

    active: bool = False


@dataclass(frozen=True, slots=True)
class EndOfData:
    """No more records or watermarks; barriers still follow, until the sender's last checkpoint."""


@dataclass(frozen=True, slots=True)
class EndOfChannel:
    """Nothing at all will follow: the sender has finished for good."""


Element = pa.RecordBatch | Watermark | Idle | Barrier | EndOfData | EndOfChannel
