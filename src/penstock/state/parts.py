"""The parts of a snapshot: what operators hand over at a barrier and get back at a restore.

A part is a named run of bytes. It is captured in the short synchronous step of a snapshot and encoded later, off the
task's
thread: whatever `encode` touches must not change after the capture (copy, or copy on write).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.core.handles import KeyGroupRange, PartHandle, PartKind
from penstock.core.ids import ChannelId

__all__ = ["Buffer", "CapturedPart", "KeyGroupRange", "OperatorSnapshot", "PartHandle", "PartKind", "RestoredPart"]


Buffer = bytes | bytearray | memoryview
"""Anything with the buffer protocol, `pyarrow.Buffer` wrapped in a memoryview included."""


@dataclass(frozen=True, slots=True)
class CapturedPart:
    """A part between capture and write."""

    name: str
    """Unique among the operator's parts: a state's name, `timers`, `splits`."""
    kind: PartKind
    encode: Callable[[], Sequence[Buffer]]
    key_groups: KeyGroupRange | None = None
    channel: ChannelId | None = None


@dataclass(frozen=True, slots=True)
class RestoredPart:
    """A part as an operator gets it back. `subtask` is the index that wrote it."""

    name: str
    kind: PartKind
    subtask: int
    read: Callable[[], memoryview]
    """Reads and verifies; raises a `CorruptCheckpoint` that names the file."""
    key_groups: KeyGroupRange | None = None
    channel: ChannelId | None = None


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """What one operator contributes to one checkpoint."""

    parts: Sequence[CapturedPart] = ()
    committables: Sequence[bytes] = field(default_factory=tuple)
    """A sink's prepared transactions, opaque to everybody but its committer."""
