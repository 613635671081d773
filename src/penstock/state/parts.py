"""The parts of a snapshot: what operators hand over at a barrier and get back at a restore.

A part is a named run of bytes. It is captured in the short synchronous step of a snapshot and encoded later, off the
task's
thread: whatever `encode` touches must not change after the capture (copy, or copy on write).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from penstock.core.handles import KeyGroupRange, PartHandle, PartKind
from penstock.core.ids import ChannelId, CheckpointId

__all__ = [
    "Buffer",
    "CapturedPart",
    "KeyGroupRange",
    "OperatorSnapshot",
    "PartHandle",
    "PartKind",
    "RestoredPart",
    "UnchangedPart",
]


Buffer = bytes | bytearray | memoryview
"""Anything with the buffer protocol, `pyarrow.Buffer` wrapped in a memoryview included."""


@dataclass(frozen=True, slots=True)
class CapturedPart:
    """A part between capture and write."""

    name: str
    """Unique among the operator's parts: a state's name, `timers`, `splits`."""
    kind: PartKind
    encode: Callable[[], Iterable[Buffer]]
    """Called once, off the task's thread; what it gives is written as it comes."""
    key_groups: KeyGroupRange | None = None
    channel: ChannelId | None = None
    base: CheckpointId | None = None
    """What is encoded are the changes to the part as it was in this checkpoint; None: the part as a whole."""
    layer: int = 0
    """Given by the runtime, which knows the layers below."""


@dataclass(frozen=True, slots=True)
class UnchangedPart:
    """A part that is as it was in the checkpoint `base`: nothing is written for it."""

    name: str
    base: CheckpointId


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
    layer: int = 0
    """Layers of one writer come in rising order: changes after what they change."""
    handle: PartHandle | None = None
    """Where it is, if later checkpoints of the job may name that place too; not of a savepoint, which others own."""


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """What one operator contributes to one checkpoint."""

    parts: Sequence[CapturedPart] = ()
    committables: Sequence[bytes] = field(default_factory=tuple)
    """A sink's prepared transactions, opaque to everybody but its committer."""
    unchanged: Sequence[UnchangedPart] = ()
