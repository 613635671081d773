"""What the barrier handler is told and what it answers: values only, so that any history can be printed and
replayed."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.barrier import Barrier
from penstock.core.ids import ChannelId, CheckpointId


# ---- events ----
@dataclass(frozen=True, slots=True)
class Announced:
    """A barrier entered an input queue. Said of every barrier, before anything that comes after it on its channel."""

    channel: ChannelId
    barrier: Barrier


@dataclass(frozen=True, slots=True)
class Reached:
    """A barrier is at the head of its queue: all records before it are processed. Never said of an `UNALIGNED` one,
    which has no place in the queue."""

    channel: ChannelId
    barrier: Barrier


@dataclass(frozen=True, slots=True)
class Triggered:
    """The coordinator starts the checkpoint here, because no predecessor of this subtask runs."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class PatienceOver:
    """The time that `BarrierHandler.wake_at` asked for has come."""


@dataclass(frozen=True, slots=True)
class Aborted:
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Completed:
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a channel entered its queue: no barrier will be announced there any more."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a channel is at the head of its queue: it counts as having delivered every barrier."""

    channel: ChannelId


Event = Announced | Reached | Triggered | PatienceOver | Aborted | Completed | Ending | Ended


# ---- instructions ----
@dataclass(frozen=True, slots=True)
class Hold:
    """Process nothing more of this channel until it is released."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class Release:
    channels: tuple[ChannelId, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Forward `barrier`, then capture the state, in one step.

    `overtaking`: the barrier passes everything that waits in the output queues, and everything in the input queues
    before this checkpoint's barrier is part of the snapshot. The channels in `recording` have not announced theirs:
    what still comes in on them belongs to it too, until `Recorded`.
    """

    barrier: Barrier
    overtaking: bool = False
    recording: tuple[ChannelId, ...] = ()
    behind: tuple[ChannelId, ...] = ()
    """Overtaking: the channels whose barrier was reached before. All in their queues comes after it."""
    deadline: float | None = None
    """`ADAPTIVE`: when the forwarded barrier's patience ends, wherever in this subtask it waits."""
    announced_at: float = 0.0
    reached_at: float = 0.0
    """When the first barrier got to the head of its queue; with none there, the time of the snapshot."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Everything that belongs to the snapshot has come in on this channel."""

    checkpoint: CheckpointId
    channel: ChannelId


@dataclass(frozen=True, slots=True)
class RecordingComplete:
    """Follows every overtaking snapshot, when no channel is left to record."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Superseded:
    """A newer checkpoint took its place here: decline it and drop what was captured for it."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class PauseSource:
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class ResumeSource:
    checkpoint: CheckpointId


Instruction = Hold | Release | Snapshot | Recorded | RecordingComplete | Superseded | PauseSource | ResumeSource
