"""What is written in a checkpoint, as the protocol sees it: named parts and where they are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.core.ids import ChannelId, Uid


class PartKind(StrEnum):
    KEYED = "keyed"
    """Keyed state of the key groups in `key_groups`; a restore gives it to whoever owns those groups."""
    LIST = "list"
    """Operator state; at the same parallelism each subtask gets its own part back, at another the parts of all are
    dealt out whole."""
    UNION = "union"
    """Operator state of which every subtask gets everybody's parts, and picks what is its own (source splits)."""
    BROADCAST = "broadcast"
    """The same on all subtasks; every subtask gets one of the copies."""
    INPUT_CHANNEL = "input_channel"
    """Records in flight that a receiver had not processed."""
    OUTPUT_CHANNEL = "output_channel"
    """Records in flight that a sender had not sent."""


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """Key groups `start <= group < end`."""

    start: int
    end: int

    def __contains__(self, group: int) -> bool:
        return self.start <= group < self.end

    def overlaps(self, other: KeyGroupRange) -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True)
class PartHandle:
    """Where a written part is. The path is relative to the checkpoint's directory."""

    uid: Uid
    name: str
    kind: PartKind
    path: str
    offset: int
    length: int
    crc32: int
    key_groups: KeyGroupRange | None = None
    channel: ChannelId | None = None


@dataclass(frozen=True, slots=True)
class SnapshotFigures:
    """Of one subtask's part in one checkpoint; durations in milliseconds."""

    start_delay_ms: float = 0.0
    """How long the first barrier waited in its queue, until it was at the head or overtook. 0 at sources."""
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    state_bytes: int = 0
    in_flight_bytes: int = 0
    in_flight_rows: int = 0
    unaligned: bool = False
