"""What master and workers say to each other. MessagePack by msgspec: typed, bounded, never code.

Every message that speaks of a run carries its attempt; whoever receives one of another attempt drops it.
"""

from __future__ import annotations

import msgspec

from penstock.core.barrier import Barrier
from penstock.core.causes import Cause
from penstock.core.handles import PartHandle, SnapshotFigures
from penstock.core.ids import Attempt, CheckpointId, EdgeId, Generation, SubtaskId, Uid, WorkerId


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


class Address(msgspec.Struct, frozen=True, array_like=True):
    """Where a worker takes data connections: the Unix socket for peers on the same host, TCP for all others."""

    host: str
    port: int
    unix_path: str
    host_key: str
    """Equal for two workers that can reach each other's Unix sockets (boot id and network namespace)."""


# ---- worker -> master ----
class Register(_Message, frozen=True):
    worker: WorkerId
    pid: int
    address: Address
    protocol: int


class Ready(_Message, frozen=True):
    """All tasks of the attempt are built, connected and restored; nothing has run yet."""

    attempt: Attempt
    from_store: int = 0
    """Bytes of state that were read from the store, where the worker keeps copies; and from those."""
    from_copies: int = 0


class Acknowledge(_Message, frozen=True):
    attempt: Attempt
    subtask: SubtaskId
    checkpoint: CheckpointId
    handles: list[PartHandle]
    """Those that the subtask's last acknowledgement did not name."""
    committables: dict[Uid, list[bytes]]
    figures: SnapshotFigures
    drained: bool
    turn: int = 1
    """Which acknowledgement of its subtask in this attempt it is, from 1 on."""
    kept: list[tuple[int, int]] = []
    """Which runs of the handles of the last one it names, too; they come before the new ones."""


class Decline(_Message, frozen=True):
    attempt: Attempt
    subtask: SubtaskId
    checkpoint: CheckpointId
    cause: Cause
    reason: str


class Drained(_Message, frozen=True):
    attempt: Attempt
    subtask: SubtaskId
    committables: dict[Uid, list[bytes]]


class Finished(_Message, frozen=True):
    attempt: Attempt
    subtask: SubtaskId


class ErrorReport(msgspec.Struct, frozen=True, array_like=True):
    """A failure as a person needs to see it."""

    message: str
    uid: str = ""
    operator: str = ""
    subtask: int = -1
    sample_row: str = ""
    traceback: str = ""
    retriable: bool = True
    """False: the same would happen again (corrupt checkpoint, wrong configuration): the job fails at once."""


class TaskFailed(_Message, frozen=True):
    attempt: Attempt
    subtask: SubtaskId
    error: ErrorReport


class Idle(_Message, frozen=True):
    """All tasks of `attempt` (and older ones) have ended on this worker; it can be given a new assignment."""

    attempt: Attempt


class Figures(_Message, frozen=True):
    """Throughput and queue figures of one worker's subtasks, sent with the heartbeat."""

    attempt: Attempt
    at_ms: int
    """The worker's wall clock."""
    rows_in: dict[str, int]
    rows_out: dict[str, int]
    busy: dict[str, float]
    times: dict[str, int] = {}
    """Event time of the sources that are to stay together."""


# ---- master -> worker ----
class Restore(msgspec.Struct, frozen=True, array_like=True):
    """What one subtask starts from."""

    checkpoint: CheckpointId
    directory: str
    """Of the checkpoint; the handles' paths are relative to it."""
    handles: list[tuple[int, PartHandle]]
    """With the index of the subtask that wrote each."""
    finished: bool = False
    """The subtask had finished for good: it only ends its channels."""
    replays: list[tuple[int, PartHandle]] = []
    """Records in flight of reshaped edges, in the order in which the subtask replays those of its own keys."""
    former: int = 0
    """At another parallelism: from how many subtasks the state comes. 0: it is the same subtask's."""
    reshaped: list[EdgeId] = []
    """Edges whose channels are not those of the checkpoint."""


class Assignment(msgspec.Struct, frozen=True, array_like=True):
    subtask: SubtaskId
    restore: Restore | None


class Deploy(_Message, frozen=True):
    """Build these subtasks, listen, connect, restore, answer `Ready`; run only on `Start`."""

    attempt: Attempt
    generation: Generation
    assignments: list[Assignment]
    peers: dict[WorkerId, Address]
    locations: list[tuple[SubtaskId, WorkerId]]
    """Of every subtask of the job."""
    parallelism: int | None = None
    """At which the job runs; None: that of the graph that was shipped."""
    deployed_ms: int = 0
    """When, by the master's wall clock."""


class Start(_Message, frozen=True):
    attempt: Attempt


class TriggerCheckpoint(_Message, frozen=True):
    attempt: Attempt
    subtasks: list[SubtaskId]
    barrier: Barrier


class AbortCheckpoint(_Message, frozen=True):
    attempt: Attempt
    checkpoint: CheckpointId
    cause: Cause


class CompleteCheckpoint(_Message, frozen=True):
    attempt: Attempt
    checkpoint: CheckpointId


class Reset(_Message, frozen=True):
    """Cancel every task of this attempt and older ones in place; answer `Idle`."""

    attempt: Attempt


class Drain(_Message, frozen=True):
    """Sources stop here as if their input had ended."""

    attempt: Attempt


class AlignSources(_Message, frozen=True):
    """So far has the slowest of the sources come that are to stay together."""

    attempt: Attempt
    slowest: int


class Shutdown(_Message, frozen=True):
    """The job is over: cancel what runs, close connections, return from the Spark task."""

    reason: str


ToMaster = Register | Ready | Acknowledge | Decline | Drained | Finished | TaskFailed | Idle | Figures
ToWorker = (
    Deploy | Start | TriggerCheckpoint | AbortCheckpoint | CompleteCheckpoint | Reset | Drain | AlignSources | Shutdown
)
