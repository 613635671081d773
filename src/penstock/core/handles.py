"""What is written in a checkpoint, as the protocol sees it: named parts and where they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from penstock.core.ids import ChannelId, CheckpointId, Uid


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
    """Where a written part is, or one layer of it: a part may consist of a base (layer 0) and changes to it (layers 1,
    2, ...), each a file's run of its own. The path is relative to the directory of the checkpoint that the file was
    written for: `origin`, or where that is None, the checkpoint that the handle belongs to."""

    uid: Uid
    name: str
    kind: PartKind
    path: str
    offset: int
    length: int
    crc32: int
    key_groups: KeyGroupRange | None = None
    channel: ChannelId | None = None
    layer: int = 0
    origin: CheckpointId | None = None
    inline: bytes | None = None
    """The bytes themselves, if there are few: then there is no file, and `path` is empty."""
    piece: str = ""
    """Which piece of the layer this is, where a layer consists of several that later ones may name again."""

    def seen_from_later(self, written_for: CheckpointId) -> PartHandle:
        """As a later checkpoint names it; `written_for` is the one that this handle belongs to."""
        return self if self.origin is not None else replace(self, origin=written_for)


@dataclass(frozen=True, slots=True)
class SnapshotFigures:
    """Of one subtask's part in one checkpoint; durations in milliseconds."""

    start_delay_ms: float = 0.0
    """How long the first barrier waited in its queue, until it was at the head or overtook. 0 at sources."""
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    state_bytes: int = 0
    """Written for this checkpoint."""
    full_bytes: int = 0
    """What its state takes, with the layers of earlier checkpoints that it is built upon."""
    in_flight_bytes: int = 0
    in_flight_rows: int = 0
    unaligned: bool = False

    def as_dict(self) -> dict[str, float | int | bool]:
        return {name: getattr(self, name) for name in self.__slots__}
