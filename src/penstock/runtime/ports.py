"""The borders of a task: everything it needs from outside, so that threads and sockets, or the simulation, can stand
behind them.

A task is a state machine driven by `Task.step()`. What happens outside reaches it as a `Note` through its mailbox;
what it wants
to happen outside goes through the protocols below, none of which blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.core.barrier import Barrier
from penstock.core.causes import Cause
from penstock.core.handles import PartHandle, SnapshotFigures
from penstock.core.ids import ChannelId, CheckpointId, SubtaskId, Uid
from penstock.runtime.elements import Element
from penstock.state.parts import CapturedPart


# ---- into a task (notes in its mailbox) ----
@dataclass(frozen=True, slots=True)
class Arrived:
    """An element came in on an input channel."""

    channel: ChannelId
    element: Element


@dataclass(frozen=True, slots=True)
class Granted:
    """The receiver of an output channel allows rows up to `limit`, counted from the channel's start (cumulative, so
    that a repeated or late grant does no harm)."""

    channel: ChannelId
    limit: int


@dataclass(frozen=True, slots=True)
class Trigger:
    """The coordinator starts a checkpoint here: sent to subtasks that have no running predecessor."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class Abort:
    checkpoint: CheckpointId
    cause: Cause


@dataclass(frozen=True, slots=True)
class Complete:
    checkpoint: CheckpointId


class WriteId(NamedTuple):
    """What a task gives to its snapshot writer at once: the file goes into the directory of that checkpoint."""

    checkpoint: CheckpointId
    ticket: int


STATE, CHANNELS, REWRITE, FIRST_FLUSH = 0, 1, 2, 3
"""Tickets: state and records in flight of a snapshot, of which each subtask has one of each at most; a state that is
rewritten in the background; changes that are written before the next barrier, numbered on from here."""


@dataclass(frozen=True, slots=True)
class Written:
    """What `SnapshotWriter.write` got is durable."""

    write: WriteId
    handles: Sequence[PartHandle]
    seconds: float


@dataclass(frozen=True, slots=True)
class WriteFailed:
    write: WriteId
    error: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop: close operators and end. No report follows but `TaskReports.cancelled`."""


@dataclass(frozen=True, slots=True)
class StopSources:
    """Stop reading (drain): the source behaves as if its input had ended here."""


@dataclass(frozen=True, slots=True)
class Align:
    """So far has the slowest of the sources come that are to stay together."""

    slowest: int


Note = Arrived | Granted | Trigger | Abort | Complete | Written | WriteFailed | Cancel | StopSources | Align


# ---- out of a task ----
class Transport(Protocol):
    """Moves elements and grants between tasks. FIFO per channel; never blocks: a task sends rows only within its
    grants."""

    def send(self, channel: ChannelId, element: Element) -> None: ...

    def grant(self, channel: ChannelId, limit: int) -> None:
        """Tells the sender of an input channel how many rows, counted from the start, it may have sent."""
        ...

    def flush(self) -> None:
        """What was sent and granted so far may have waited for more to go with, until now."""
        ...


class SnapshotWriter(Protocol):
    """Encodes and writes captured parts off the task's thread, and answers with `Written` or `WriteFailed` in the
    mailbox."""

    def write(self, write: WriteId, parts: Mapping[Uid, Sequence[CapturedPart]], inline: bool = True) -> None:
        """`inline`: little of it may be kept in the handles instead of a file."""
        ...

    def skip(self, write: WriteId) -> None:
        """There is nothing to write there, and no answer is expected: others need not wait for it."""
        ...

    def drop(self, write: WriteId) -> None:
        """Nobody will ever name what was written there: it need not be written any more, or is removed. No answer
        follows."""
        ...


class TaskReports(Protocol):
    """What a task tells the coordinator."""

    def acknowledge(
        self,
        checkpoint: CheckpointId,
        handles: Sequence[PartHandle],
        committables: Mapping[Uid, Sequence[bytes]],
        figures: SnapshotFigures,
        drained: bool,
    ) -> None:
        """`drained`: the snapshot was taken after the subtask's input had ended and its operators had finished."""
        ...

    def decline(self, checkpoint: CheckpointId, cause: Cause, reason: str) -> None: ...

    def drained(self, committables: Mapping[Uid, Sequence[bytes]]) -> None:
        """All input has ended and the operators have finished. Without checkpoints, `committables` are the sinks'
        output."""
        ...

    def finished(self) -> None:
        """The subtask has ended for good, after a checkpoint that covers its end (or at once, without checkpoints)."""
        ...

    def failed(self, error: BaseException) -> None: ...

    def cancelled(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    subtask: SubtaskId
    put: Callable[[Note], None]
    """Puts a note into the task's mailbox; callable from any thread."""
