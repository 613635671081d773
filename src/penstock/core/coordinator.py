"""The checkpoint coordinator: from trigger to completion, for one driver's life.

Theory of operation
-------------------
A checkpoint is triggered at the subtasks where barriers start (`core.plan`), when `core.requests` allows it. Every
running subtask acknowledges with the handles of what it wrote. When all have, the record is written to the store, and
only when the store has confirmed it (`record_written`) is the checkpoint complete: subtasks are notified, sinks
commit, older pending ones are overtaken (`SUPERSEDED`).

::

    COLLECTING --all acknowledged--> READY --no other record being written--> WRITING --record_written--> complete
        |                              |                                         |
        +-- declined, expired, overtaken, subtask finished, attempt ended --+    +--record_failed--> failed

Rules that carry the guarantees:

- *Fencing.* Everything carries its attempt; what belongs to another one is ignored. Duplicate and late
  acknowledgements too.
- *The store decides.* A checkpoint in WRITING outlives its attempt: whether it is complete is known only when the
  store has answered, so nothing (expiry, failure, decline) ends it, and no restore point may be chosen while
  `writing` is set.
- *One record at a time, in rising order.* Ids of complete checkpoints only rise.
- *No output falls between two records.* A sink's subtask stops naming a committable once it was told that a
  checkpoint is complete, which may be before its commit has happened. A record therefore also names the committables
  of complete checkpoints whose commit has not returned (`committed`).
- *The end.* A subtask whose snapshot was taken after its input ended finishes once that checkpoint is complete. Until
  those have reported their end, no new checkpoint starts: it could only be declined. When all subtasks are drained, a
  FINAL checkpoint starts as soon as the limit of concurrent ones allows; no interval or pause is waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from penstock.core.barrier import Barrier, Mode, Purpose
from penstock.core.causes import Cause
from penstock.core.failures import FailureCounter
from penstock.core.handles import PartHandle, SnapshotFigures
from penstock.core.ids import Attempt, CheckpointId, Generation, SubtaskId, Uid
from penstock.core.instructions import (
    CheckpointEnded,
    Commit,
    FailAttempt,
    Instruction,
    SendAbort,
    SendComplete,
    SendTrigger,
    WriteRecord,
)
from penstock.core.moments import Moment
from penstock.core.pending import PendingCheckpoint, Phase
from penstock.core.plan import Topology, plan_checkpoint
from penstock.core.record import CheckpointRecord, GraphRecord, SubtaskRecord
from penstock.core.requests import Request, RequestId, Requests
from penstock.core.settings import CheckpointSettings
from penstock.core.statistics import CheckpointStatistics, History, Status
from penstock.core.story import Story

FINAL_RETRY = 1.0
"""Seconds until a final checkpoint that failed is tried again."""


class CheckpointCoordinator:
    def __init__(
        self,
        topology: Topology,
        graph: GraphRecord,
        settings: CheckpointSettings,
        generation: Generation,
        next_id: CheckpointId,
        newest: CheckpointId | None = None,
        story: Story | None = None,
    ) -> None:
        self.story = story or Story()
        self.newest = newest
        """The newest complete checkpoint."""
        self.history = History()
        self._topology, self._graph, self._settings, self._generation = topology, graph, settings, generation
        self._next_id = next_id
        self._requests = Requests(settings)
        self._failures = FailureCounter(settings.tolerable_failures)
        self._attempt: Attempt | None = None
        self._last_attempt = Attempt(0)
        self._base: CheckpointId | None = None
        """The newest complete checkpoint that the running attempt took or was restored from. Savepoints are their
        owner's, and nothing is built upon them."""
        self._drained: set[SubtaskId] = set()
        self._finished: set[SubtaskId] = set()
        self._ending: set[SubtaskId] = set()
        """Will report their end soon: their last checkpoint is complete, or they were restored as finished."""
        self._final_asked = False
        self._given_up = False
        """Too many checkpoints failed: the attempt is about to be ended."""
        self._last_taken = False
        """The job is about to end with a checkpoint that is complete."""
        self._only_final = False
        self._pending: dict[CheckpointId, PendingCheckpoint] = {}
        self._uncommitted: dict[CheckpointId, Mapping[Uid, Sequence[bytes]]] = {}

    # ---- the attempt ----
    def attempt_started(
        self, at: Moment, attempt: Attempt, restored: CheckpointRecord | None = None
    ) -> list[Instruction]:
        self._tell(at, "attempt started", attempt)
        assert self._attempt is None, f"attempt {self._attempt} has not ended"
        self._attempt = self._last_attempt = attempt
        self._base = restored.checkpoint if restored else None
        subtasks = restored.subtasks if restored else ()
        self._ending = {record.subtask for record in subtasks if record.finished}
        self._drained = {record.subtask for record in subtasks if record.drained or record.finished}
        self._finished = set()
        self._final_asked = self._given_up = False
        self._failures = FailureCounter(self._settings.tolerable_failures)
        self._requests.attempt_started(at.now)
        return self._advance(at)

    def attempt_ended(self, at: Moment, attempt: Attempt, cause: Cause, reason: str) -> list[Instruction]:
        """Aborts what is under way, except a record whose outcome only the store knows."""
        if attempt != self._attempt:
            return []
        self._tell(at, "attempt ended", attempt, cause)
        self._attempt = None
        open_ones = [pending for pending in self._pending.values() if pending.phase is not Phase.WRITING]
        return [instruction for pending in open_ones for instruction in self._abort(at, pending, cause, None, reason)]

    def rescale(self, at: Moment, topology: Topology, graph: GraphRecord) -> list[Instruction]:
        """Ends the attempt; the next one has other subtasks."""
        self._tell(at, "rescaled", f"{len(topology.subtasks)} subtasks")
        reason = "the job goes on at another parallelism"
        ended = [] if self._attempt is None else self.attempt_ended(at, self._attempt, Cause.RESCALED, reason)
        self._topology, self._graph = topology, graph
        self._drained, self._finished, self._ending = set(), set(), set()
        return ended

    # ---- requests and settings ----
    def request(
        self, at: Moment, purpose: Purpose, last: bool = False, aligned: bool = False
    ) -> tuple[RequestId, list[Instruction]]:
        """Asks for a checkpoint; `CheckpointEnded` will carry the request's id. It waits over restarts if it must.
        `last`: once it is complete, no other is started, unless `resume` says so. `aligned`: it shall hold no records
        in flight, whatever the settings say."""
        request = self._requests.ask(purpose, last=last, mode=Mode.ALIGNED if aligned else None)
        self._tell(at, "requested", purpose, request.id)
        return request.id, self._advance(at)

    def resume(self, at: Moment) -> list[Instruction]:
        """The job goes on after all: checkpoints are taken again."""
        self._last_taken = self._only_final = False
        return self._advance(at)

    def end_together(self, at: Moment) -> list[Instruction]:
        """From now on only the final checkpoint is taken, when all input has ended, so that it holds the state of every
        subtask that has not finished yet."""
        self._tell(at, "only the final checkpoint is taken")
        self._only_final = True
        reason = "the job is being drained into one final checkpoint"
        left = list(self._collecting())
        return [i for pending in left for i in self._abort(at, pending, Cause.SUPERSEDED, None, reason)]

    def configure(self, at: Moment, settings: CheckpointSettings) -> list[Instruction]:
        """Holds for checkpoints that start from now on; of those under way, only the timeout changes."""
        self._tell(at, "configured", settings)
        for pending in self._pending.values():
            pending.deadline = pending.triggered.now + settings.timeout
        self._settings = settings
        self._failures.tolerable = settings.tolerable_failures
        self._requests.configure(settings)
        return self.tick(at)

    # ---- from the subtasks ----
    def acknowledge(
        self,
        at: Moment,
        attempt: Attempt,
        subtask: SubtaskId,
        checkpoint: CheckpointId,
        handles: Sequence[PartHandle] = (),
        committables: Mapping[Uid, Sequence[bytes]] | None = None,
        figures: SnapshotFigures | None = None,
        drained: bool = False,
    ) -> list[Instruction]:
        pending = self._of(attempt, checkpoint)
        if pending is None or subtask not in pending.waiting:
            self._tell(at, "ignored ack", checkpoint, subtask, f"attempt {attempt}")
            return []
        self._tell(at, "ack", checkpoint, subtask, "drained" if drained else "")
        record = SubtaskRecord(subtask, tuple(handles), figures or SnapshotFigures(), drained)
        pending.acknowledge(record, committables or {})
        return self._advance(at)

    def decline(
        self, at: Moment, attempt: Attempt, subtask: SubtaskId, checkpoint: CheckpointId, cause: Cause, reason: str
    ) -> list[Instruction]:
        pending = self._of(attempt, checkpoint)
        if pending is None or pending.phase is not Phase.COLLECTING:
            self._tell(at, "ignored decline", checkpoint, subtask, cause, f"attempt {attempt}")
            return []
        return self._abort(at, pending, cause, subtask, reason) + self._advance(at)

    def drained(self, at: Moment, attempt: Attempt, subtask: SubtaskId) -> list[Instruction]:
        """The subtask's input has ended and its operators have finished."""
        if attempt != self._attempt:
            return []
        self._tell(at, "drained", subtask)
        self._drained.add(subtask)
        return self._advance(at)

    def finished(self, at: Moment, attempt: Attempt, subtask: SubtaskId) -> list[Instruction]:
        """The subtask has ended for good; it will acknowledge nothing any more."""
        if attempt != self._attempt:
            return []
        self._tell(at, "finished", subtask)
        self._finished.add(subtask)
        self._drained.add(subtask)
        self._ending.discard(subtask)
        left = [pending for pending in self._pending.values() if subtask in pending.waiting]
        reason = "it ended before its snapshot"
        aborted = [i for pending in left for i in self._abort(at, pending, Cause.SUBTASK_FINISHED, subtask, reason)]
        return aborted + self._advance(at)

    # ---- from the store and the committers ----
    def record_written(self, at: Moment, checkpoint: CheckpointId) -> list[Instruction]:
        pending = self._pending.pop(checkpoint)
        assert pending.phase is Phase.WRITING and pending.record is not None, f"nobody wrote checkpoint {checkpoint}"
        self._tell(at, "complete", checkpoint)
        self.newest = checkpoint
        self._last_taken |= pending.request.last
        self._failures.succeeded()
        self._requests.ended(at.now)
        instructions: list[Instruction] = []
        if pending.attempt == self._attempt:
            if pending.request.purpose is not Purpose.SAVEPOINT:
                self._base = checkpoint
            ended = {subtask for subtask, record in pending.acknowledged.items() if record.drained}
            self._ending |= ended - self._finished
            instructions.append(SendComplete(pending.attempt, checkpoint))
        self._uncommitted[checkpoint] = pending.record.committables
        instructions.append(Commit(pending.record))
        instructions.append(self._ended(pending, pending.statistics(at, Status.COMPLETED)))
        for older in [other for other in self._pending.values() if other.id < checkpoint]:
            instructions += self._abort(at, older, Cause.SUPERSEDED, None, f"checkpoint {checkpoint} completed first")
        return instructions + self._advance(at)

    def record_failed(self, at: Moment, checkpoint: CheckpointId, error: str) -> list[Instruction]:
        """The store has answered that the checkpoint is not, and will not be, complete."""
        pending = self._pending[checkpoint]
        assert pending.phase is Phase.WRITING, f"nobody wrote checkpoint {checkpoint}"
        return self._abort(at, pending, Cause.WRITE_FAILED, None, error) + self._advance(at)

    def committed(self, at: Moment, checkpoint: CheckpointId) -> None:
        self._tell(at, "committed", checkpoint)
        self._uncommitted.pop(checkpoint, None)

    # ---- time ----
    def tick(self, at: Moment) -> list[Instruction]:
        instructions: list[Instruction] = []
        for pending in [pending for pending in self._collecting() if pending.deadline <= at.now]:
            missing = ", ".join(map(str, sorted(pending.waiting)))
            reason = f"not acknowledged within {at.now - pending.triggered.now:.1f} s by {missing}"
            instructions += self._abort(at, pending, Cause.EXPIRED, min(pending.waiting), reason)
        return instructions + self._advance(at)

    def next_wake(self) -> float | None:
        times = [pending.deadline for pending in self._collecting()]
        if self._is_room() and self._may_start():
            wake = self._requests.wake(len(self._pending))
            times += [] if wake is None else [wake]
        return min(times, default=None)

    # ---- views ----
    @property
    def writing(self) -> bool:
        """Whether the outcome of a record is not known yet."""
        return any(pending.phase is Phase.WRITING for pending in self._pending.values())

    @property
    def bases(self) -> frozenset[CheckpointId]:
        """Complete checkpoints that others, under way or to come, are built upon: their files must stay."""
        of_pending = {pending.base for pending in self._pending.values()}
        return frozenset(base for base in {self._base, *of_pending} if base is not None)

    @property
    def oldest_writer(self) -> Attempt:
        """Earlier attempts write nothing any more that a checkpoint could name."""
        running = self._attempt is not None and not self.all_finished
        next = self._last_attempt if running else Attempt(self._last_attempt + 1)
        return min([next, *(pending.attempt for pending in self._pending.values())])

    @property
    def all_finished(self) -> bool:
        """Whether every subtask of the running attempt has ended for good."""
        return self._attempt is not None and len(self._finished) == len(self._topology.subtasks)

    def statistics(self, at: Moment) -> list[CheckpointStatistics]:
        """Ended ones of the recent past and those in progress, oldest first."""
        under_way = [pending.statistics(at, Status.IN_PROGRESS) for pending in self._pending.values()]
        return [*self.history.last(), *under_way]

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        subtasks = set(self._topology.subtasks)
        assert subtasks >= self._drained >= self._finished, self.story
        assert not self._ending & self._finished, self.story
        assert sum(pending.phase is Phase.WRITING for pending in self._pending.values()) <= 1, self.story
        for id, pending in self._pending.items():
            assert id == pending.id < self._next_id, self.story
            assert self.newest is None or id > self.newest, self.story
            assert pending.phase is Phase.WRITING or pending.attempt == self._attempt, self.story
            assert bool(pending.waiting) == (pending.phase is Phase.COLLECTING), self.story
            assert not pending.waiting & self._finished, self.story
            assert pending.waiting.isdisjoint(pending.acknowledged), self.story

    # ---- inside ----
    def _advance(self, at: Moment) -> list[Instruction]:
        """Does whatever has become possible: write the next record, start the next checkpoints."""
        instructions: list[Instruction] = []
        ready = next((pending for pending in self._pending.values() if pending.phase is Phase.READY), None)
        if ready is not None and not self.writing:
            instructions.append(self._write(at, ready))
        if self._attempt is not None and not self._final_asked and len(self._drained) == len(self._topology.subtasks):
            self._final_asked = True
            self._requests.ask(Purpose.FINAL)
        while self._is_room() and self._may_start() and (request := self._requests.choose(at.now, len(self._pending))):
            instructions.append(self._start(at, request))
        return instructions

    def _is_room(self) -> bool:
        return len(self._pending) < self._requests.limit

    def _may_start(self) -> bool:
        all_ended = len(self._finished) == len(self._topology.subtasks)
        ending = self._last_taken or any(pending.request.last for pending in self._pending.values())
        waiting = self._only_final and not self._final_asked
        return self._attempt is not None and not (self._given_up or self._ending or all_ended or ending or waiting)

    def _start(self, at: Moment, request: Request) -> Instruction:
        assert self._attempt is not None
        checkpoint, settings = self._next_id, self._settings
        mode = request.mode or settings.mode
        self._next_id = CheckpointId(checkpoint + 1)
        plan = plan_checkpoint(self._topology, self._finished)
        deadline = at.now + settings.timeout
        self._pending[checkpoint] = PendingCheckpoint(
            checkpoint, self._attempt, mode, request, plan, at, deadline, self._base_for(request)
        )
        self._tell(at, "triggered", checkpoint, request.purpose, mode, *plan.trigger)
        patience = settings.alignment_timeout * 1000.0 if mode is Mode.ADAPTIVE else 0.0
        barrier = Barrier(checkpoint, mode, self._purpose_of(request), patience)
        return SendTrigger(self._attempt, plan.trigger, barrier)

    def _purpose_of(self, request: Request) -> Purpose:
        """The final checkpoint of a job that ends together is copied out as a savepoint: it is written as one, so that
        every backend can read it."""
        copied = self._only_final and request.purpose is Purpose.FINAL
        return Purpose.SAVEPOINT if copied else request.purpose

    def _base_for(self, request: Request) -> CheckpointId | None:
        """Savepoints stand alone."""
        return None if request.purpose is Purpose.SAVEPOINT else self._base

    def _write(self, at: Moment, pending: PendingCheckpoint) -> Instruction:
        pending.phase = Phase.WRITING
        uncommitted = [self._uncommitted[id] for id in sorted(self._uncommitted)]
        pending.record = pending.make_record(at, self._generation, self._graph, uncommitted)
        self._tell(at, "writing", pending.id)
        return WriteRecord(pending.record)

    def _abort(
        self, at: Moment, pending: PendingCheckpoint, cause: Cause, subtask: SubtaskId | None, reason: str
    ) -> list[Instruction]:
        self._tell(at, "failed", pending.id, cause, subtask or "", reason)
        del self._pending[pending.id]
        self._requests.ended(at.now)
        alive = pending.attempt == self._attempt
        instructions: list[Instruction] = [SendAbort(pending.attempt, pending.id, cause)] if alive else []
        again = alive and cause is Cause.SUBTASK_FINISHED
        if again:
            self._requests.ask_again(pending.request)
        statistics = pending.statistics(at, Status.FAILED, cause, subtask, reason)
        instructions.append(self._ended(pending, statistics, answered=not again))
        if alive and pending.request.purpose is Purpose.FINAL and not again:
            self._requests.ask(Purpose.FINAL, not_before=at.now + max(self._settings.minimum_pause, FINAL_RETRY))
        if alive and self._failures.failed(cause) and not self._given_up:
            self._given_up = True
            instructions.append(FailAttempt(pending.attempt, self._too_many(statistics)))
        return instructions

    def _too_many(self, statistics: CheckpointStatistics) -> str:
        where = f" at {statistics.subtask}" if statistics.subtask else ""
        return (
            f"checkpoint {statistics.checkpoint} failed ({statistics.cause}{where}): {statistics.reason}; "
            f"{self._failures.in_a_row} failed in a row, tolerable_failures is {self._failures.tolerable}"
        )

    def _ended(
        self, pending: PendingCheckpoint, statistics: CheckpointStatistics, answered: bool = True
    ) -> CheckpointEnded:
        self.history.add(statistics)
        explicit = answered and not pending.request.periodic
        return CheckpointEnded(statistics, pending.request.id if explicit else None)

    def _of(self, attempt: Attempt, checkpoint: CheckpointId) -> PendingCheckpoint | None:
        return self._pending.get(checkpoint) if attempt == self._attempt else None

    def _collecting(self) -> Collection[PendingCheckpoint]:
        return [pending for pending in self._pending.values() if pending.phase is Phase.COLLECTING]

    def _tell(self, at: Moment, event: str, *details: object) -> None:
        self.story.tell(at.now, event, *details)
