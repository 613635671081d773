"""What the runtime asks of an operator.

An operator lives in one task's thread: it is never called from two threads, needs no locks and must not start any
that touch its
state. It gets batches, watermarks and barriers strictly in order, and emits through `out`, which hands on to the next
operator
of the chain or to the chain's outputs. No call should take much longer than the step budget
(`RuntimeSettings.step_budget`):
the runtime slices batches by the measured cost per row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.core.settings import RocksDBSettings
from penstock.state.parts import KeyGroupRange, LoggedState, OperatorSnapshot, RestoredPart


class Collector(Protocol):
    """Where an operator emits to."""

    def emit(self, batch: pa.RecordBatch) -> None: ...

    def emit_side(self, output: str, batch: pa.RecordBatch) -> None:
        """To one of the operator's side outputs. Nobody may be there to take it."""
        ...


class Clock(Protocol):
    """Time, passed in so that tests and the simulation own it."""

    def now(self) -> float:
        """Seconds, monotonic: for durations and deadlines."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch: for processing time."""
        ...


@dataclass(frozen=True)
class OperatorContext:
    """Who and where an operator's instance is, and what it had stored before."""

    uid: Uid
    name: str
    subtask: int
    parallelism: int
    key_groups: KeyGroupRange
    """The key groups that this subtask owns, when its input is keyed."""
    total_key_groups: int
    attempt: Attempt
    generation: Generation
    clock: Clock
    restored: Sequence[RestoredPart] = ()
    restored_checkpoint: CheckpointId | None = None
    """None on a fresh start."""
    rocksdb: RocksDBSettings | None = None
    """Where user state is to be kept; None: in memory."""
    job: str = ""
    same_share: bool = True
    """Whether the subtask goes on with what the one of its index had; not at another parallelism, nor after a change of
    the key groups that moved keys between subtasks."""
    deployed_ms: int = 0
    """Milliseconds since the epoch: when the attempt was deployed, which all of its subtasks agree on; 0: unknown."""


class Operator:
    """Base of all operators that have input. All hooks but `process` have a do-nothing default."""

    def open(self, context: OperatorContext) -> None:
        """Called once, before anything else, on the task's thread. Restores from `context.restored`."""

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        """`batch` has at least one row. `input` is the edge's `target_input`."""
        raise NotImplementedError

    def on_watermark(self, time: int, out: Collector) -> None:
        """Event time has reached `time`. The watermark itself goes on downstream after this returns, unless
        `passes_watermarks` is False."""

    passes_watermarks: bool = True
    """False on an operator that replaces its input's watermarks with its own: those of `emitted_watermark` go
    downstream then."""

    def emitted_watermark(self) -> int | None:
        """Asked after every `process` and tick where `passes_watermarks` is False: the operator's own watermark so
        far."""
        return None

    def is_idle(self, input_idle: bool) -> bool:
        """Whether there is nothing to say about event time until rows come again. Asked where `passes_watermarks` is
        False; others are idle when their input is."""
        return input_idle

    def on_split(self, split: str | None, splits: frozenset[str] | None) -> None:
        """The rows that follow come from this split of the chain's source, which reads all these. Called before them,
        whenever that is not as it was; not at all behind an exchange."""

    def next_timer(self) -> int | None:
        """When (milliseconds since the epoch) `on_timer` wants to be called, or None. Asked after every call into
        the operator."""
        return None

    def on_timer(self, now_ms: int, out: Collector) -> None:
        """Processing time has reached `next_timer()`. May do part of the work only: it is called again while one
        is due."""

    def finish(self, out: Collector) -> None:
        """All input has ended: emit what is left. Called once, after the last watermark, before the last snapshot."""

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        """The synchronous part of a snapshot: capture quickly, encode later. The barrier has already been forwarded.
        Keyed state is not handed over here: see `logged`."""
        return OperatorSnapshot()

    def logged(self) -> Sequence[LoggedState]:
        """The keyed states, asked for once, after `open`. The runtime captures them when and as it sees fit."""
        return ()

    def on_complete(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is complete and can be restored from for ever (until subsumed)."""

    def on_abort(self, checkpoint: CheckpointId) -> None:
        """The checkpoint will never complete. What was captured for it belongs to the next one."""

    def close(self) -> None:
        """Called once, whatever happened, also after a failed `open`. Must not raise and not block."""


@dataclass(frozen=True, slots=True)
class Polled:
    """What a source had. `batch` None: nothing now; try again after `idle_for` seconds."""

    batch: pa.RecordBatch | None = None
    watermark: int | None = None
    """Event time is known to have reached this, after the batch."""
    idle: bool = False
    """True: this subtask has nothing to say about event time until it delivers again (no splits, or quiet ones)."""
    idle_for: float = 0.0
    done: bool = False
    """No record will ever follow this batch."""
    split: str | None = None
    """Which of its splits the batch is from, if it reads several at a time."""
    splits: frozenset[str] | None = None
    """Those that it is reading: event time waits for all of them."""


class SourceOperator(Operator):
    """The head of a chain without input. `process` is never called; `poll` is, as long as downstream takes what it
    emits."""

    def poll(self, max_rows: int) -> Polled:
        """At most `max_rows` rows; must not block (use `idle_for`). Positions move with the poll: a snapshot right
        after it covers exactly what was polled."""
        raise NotImplementedError

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        raise TypeError("a source has no input")


class OperatorError(Exception):
    """A user function or connector raised. Carries what a person needs to find it."""

    def __init__(
        self, message: str, *, uid: Uid, name: str, subtask: int, sample_row: dict[str, object] | None, traceback: str
    ):
        super().__init__(message)
        self.uid, self.name, self.subtask, self.sample_row, self.traceback = uid, name, subtask, sample_row, traceback


@dataclass(frozen=True, slots=True)
class Emitted:
    """A collector that keeps what it gets: for tests and for operators that post-process."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    sides: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)

    def emit(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def emit_side(self, output: str, batch: pa.RecordBatch) -> None:
        self.sides.setdefault(output, []).append(batch)


BatchFunction = Callable[[pa.RecordBatch], pa.RecordBatch]
