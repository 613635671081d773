"""The parts of a snapshot: what operators hand over at a barrier and get back at a restore.

A part is a named run of bytes. It is captured in the short synchronous step of a snapshot and encoded later, off the
task's thread: whatever `encode` touches must not change after the capture (copy, or copy on write).

Most parts are small and handed over with every snapshot (`OperatorSnapshot`). Keyed state is not: an operator only says
how it can be captured, whole or as changes (`LoggedState`), and the runtime decides when and what (`runtime/statelog`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.core.handles import KeyGroupRange, PartHandle, PartKind
from penstock.core.ids import ChannelId, Cut

__all__ = [
    "Buffer",
    "CapturedPart",
    "Encode",
    "KeyGroupRange",
    "LoggedState",
    "OperatorSnapshot",
    "PartHandle",
    "PartKind",
    "Piece",
    "RestoredPart",
]


Buffer = bytes | bytearray | memoryview
"""Anything with the buffer protocol, `pyarrow.Buffer` wrapped in a memoryview included."""

Encode = Callable[[], Iterable[Buffer]]
"""Called once, off the task's thread; what it gives is written as it comes."""


@dataclass(frozen=True, slots=True)
class CapturedPart:
    """A part between capture and write."""

    name: str
    """Unique among the operator's parts: a state's name, `timers`, `splits`."""
    kind: PartKind
    encode: Encode
    key_groups: KeyGroupRange | None = None
    channel: ChannelId | None = None
    piece: str = ""
    small: bool = False
    """A few bytes, encoded sooner than another thread could be woken for it: that may be done on the task's thread."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a whole state. One with a `name` never changes: if it was written before, it is not written again."""

    encode: Encode
    name: str = ""


class LoggedState(Protocol):
    """A keyed state of one subtask of which the runtime keeps a log. All methods are called on the task's thread,
    between batches. What they return is encoded later and shows the state as it was at the last `mark`."""

    @property
    def name(self) -> str: ...

    @property
    def key_groups(self) -> KeyGroupRange: ...

    @property
    def size(self) -> int:
        """How many entries there are, at most."""
        ...

    def mark(self, cut: Cut, floor: Cut) -> None:
        """This moment is the cut of that number. Nobody will ask for changes since cuts before `floor` any more."""
        ...

    def changed_since(self, cut: Cut) -> int | None:
        """How many entries have changed at most; None if that cannot be told."""
        ...

    def changes(self, since: Cut) -> Encode:
        """What has changed since an earlier cut: a layer on top of what there was then. More than that does no harm."""
        ...

    def whole(self, portable: bool) -> Sequence[Piece]:
        """All of it; none if there is nothing. `portable`: as every backend can read it."""
        ...


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
    piece: str = ""
    path: str = ""
    """The file that it is in, for people."""

    def __str__(self) -> str:
        return f"{self.name!r} of subtask {self.subtask}" + (f" in {self.path}" if self.path else "")


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """What one operator contributes to one checkpoint, beside its logged states."""

    parts: Sequence[CapturedPart] = ()
    committables: Sequence[bytes] = field(default_factory=tuple)
    """A sink's prepared transactions, opaque to everybody but its committer."""
