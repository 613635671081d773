"""Every number and choice that steers a job, with its default. Durations are seconds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.core.barrier import Mode


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    every: float = 1.0
    mode: Mode = Mode.ADAPTIVE
    alignment_timeout: float = 0.1
    """`ADAPTIVE`: how long a barrier waits for alignment on its whole way before it overtakes."""
    timeout: float = 600.0
    minimum_pause: float = 0.0
    """Between the end of one checkpoint and the start of the next."""
    maximum_concurrent: int = 1
    tolerable_failures: int = 0
    """How many checkpoints in a row may fail before the job restarts."""
    keep: int = 3
    """How many complete checkpoints are retained."""


@dataclass(frozen=True, slots=True)
class InFlightSettings:
    """Bounds of what is between two subtasks. `target=None` turns time-sizing off: channels are then `max_rows`
    deep."""

    target: float | None = 0.1
    """How many seconds of processing may lie in a subtask's input queues."""
    initial_rows: int = 16_384
    min_rows: int = 128
    max_rows: int = 1 << 20
    max_bytes: int = 64 << 20
    """Per subtask input, all channels together."""


@dataclass(frozen=True, slots=True)
class LayerSettings:
    """When a checkpoint writes only what changed in a state. A chain of layers that has grown beyond these bounds is
    replaced by the whole state, which is written in the background."""

    incremental: bool = True
    most: int = 16
    """Layers of one state, its base included: a restore reads them all."""
    share: float = 1.0
    """What the layers on top of the base may hold, of the base's bytes."""
    worth: float = 0.5
    """Of a state's entries: changes to more of them than this are not worth a layer, the whole is written instead."""
    small: int = 2_048
    """States of fewer entries are written whole: one small piece is better than many."""
    inline: int = 16 << 10
    """Bytes. What a subtask writes at once goes into the checkpoint's metadata, not into a file of its own, if it is no
    more than this: many small operators make no files at all."""
    changelog: bool = False
    """Whether changes are also written between two checkpoints."""
    flush_every: float = 0.2
    """Seconds from one such write to the next."""

    def as_changelog(self) -> LayerSettings:
        """For a log that goes on for long: the whole is written seldom, a restore reads more instead."""
        return replace(self, changelog=True, most=max(self.most, 512), share=max(self.share, 8.0))

    shared: int = 1 << 20
    """Bytes. What a subtask writes at once goes into a file that it shares with the other subtasks of its worker, if it
    is no more than this."""
    wait_for_others: float = 1.0
    """How long such a write waits at most until all others of the worker have come to the same checkpoint."""


@dataclass(frozen=True, slots=True)
class RocksDBSettings:
    """User state in RocksDB, of any size, in bounded memory."""

    memory: int = 256 << 20
    """Bytes, for all RocksDB state of a worker process together: caches, write buffers, and what is on its way in."""
    directory: str | None = None
    """Of the worker's machine, for the working files; None: the system's directory for temporary files."""


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    in_flight: InFlightSettings = field(default_factory=InFlightSettings)
    layers: LayerSettings = field(default_factory=LayerSettings)
    rocksdb: RocksDBSettings | None = None
    """Where user state is kept; None: in hash maps."""
    step_budget: float = 0.010
    """What one step of an operator should take; batches are sliced to it. No step may exceed about twice this."""
    linger: float = 0.002
    """How long a small output batch may wait for company."""
    small_batch_rows: int = 4_096
    """Output batches of at least so many rows do not linger."""
    source_batch_rows: int = 65_536
    heartbeat_every: float = 1.0
    heartbeat_timeout: float = 10.0
    cancel_grace: float = 5.0
    """How long a user function may go on after its task was cancelled, before its process is ended."""
    clean_every: float = 1.0
    """The checkpoint directory is cleaned after a complete checkpoint, but not more often than this."""
    deploy_timeout: float = 60.0
    registration_timeout: float = 120.0
    spares: int = 0
    local_copies: bool | None = None
    """Whether workers keep copies of what they write on their own disk and restore from there. None: if the checkpoint
    directory is not on a local disk."""
    local_directory: str | None = None
    """Where on the workers' hosts copies are kept; None: in the system's directory for temporary files."""
    allow_dropped_state: bool = False
    """Whether state in a checkpoint that the graph has no place for may be dropped by a restore."""
