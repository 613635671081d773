"""The coordinator under any order of events: what must hold whatever subtasks, store and clock do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.core.barrier import Mode, Purpose
from penstock.core.causes import Cause
from penstock.core.coordinator import CheckpointCoordinator
from penstock.core.handles import SnapshotFigures
from penstock.core.ids import Attempt, ChainId, CheckpointId, Generation, SubtaskId, Uid
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
from penstock.core.plan import Topology
from penstock.core.record import CheckpointRecord, GraphRecord
from penstock.core.settings import CheckpointSettings
from penstock.core.statistics import Status

A, B, SINK = (SubtaskId(ChainId(chain), 0) for chain in ("a", "b", "sink"))
TOPOLOGY = Topology((A, B, SINK), {A: frozenset(), B: frozenset(), SINK: frozenset({A, B})})
OUT = Uid("out")
TWO_AT_ONCE = CheckpointSettings(
    every=5.0, mode=Mode.AT_LEAST_ONCE, maximum_concurrent=2, timeout=20.0, tolerable_failures=3
)
SUBTASKS = st.sampled_from([A, B, SINK])
DECLINES = st.sampled_from([Cause.DECLINED, Cause.WRITE_FAILED, Cause.SUPERSEDED, Cause.SUBTASK_FINISHED])


class Sink:
    """A sink's subtask by the book: names a committable in every snapshot until it hears of a completion above it."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._unconfirmed: dict[CheckpointId, bytes] = {}
        self.prepared: list[bytes] = []
        """All it ever prepared."""
        self.named: dict[CheckpointId, list[bytes]] = {}
        """What its acknowledgement of each checkpoint names."""

    def acknowledgement(self, checkpoint: CheckpointId) -> list[bytes] | None:
        """None: its barrier was overtaken by one that passed. A passed one may be acknowledged late, and again."""
        if checkpoint > max(self.named, default=0):
            self._unconfirmed[checkpoint] = f"{self._attempt}:{len(self.prepared)}".encode()
            self.prepared.append(self._unconfirmed[checkpoint])
            self.named[checkpoint] = list(self._unconfirmed.values())
        return self.named.get(checkpoint)

    def completed(self, checkpoint: CheckpointId) -> None:
        self._unconfirmed = {named: payload for named, payload in self._unconfirmed.items() if named > checkpoint}


class CoordinatorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.attempt = Attempt(1)
        self.on = False
        self.coordinator = CheckpointCoordinator(
            TOPOLOGY, GraphRecord("job", 1, (), ()), TWO_AT_ONCE, Generation(1), CheckpointId(1)
        )
        self.triggered: list[CheckpointId] = []
        self.writing: CheckpointId | None = None
        self.written: list[CheckpointRecord] = []
        self.notified: list[CheckpointId] = []
        self.aborted: list[CheckpointId] = []
        self.ended: list[CheckpointId] = []
        self.commits: list[CheckpointId] = []
        self.sink = Sink(self.attempt)

    def do(self, instructions: Sequence[Instruction] | None) -> None:
        for instruction in instructions or ():
            match instruction:
                case SendTrigger(attempt, subtasks, barrier):
                    assert self.on and attempt == self.attempt and subtasks
                    self.triggered.append(barrier.checkpoint)
                case WriteRecord(record):
                    assert self.writing is None, "two records at once"
                    self.writing, self.record = record.checkpoint, record
                case SendComplete(attempt, checkpoint):
                    assert attempt == self.attempt and self.on
                    assert self.written[-1].checkpoint == checkpoint
                    self.notified.append(checkpoint)
                case SendAbort(attempt, checkpoint, _):
                    assert attempt == self.attempt and self.on
                    self.aborted.append(checkpoint)
                case Commit(record):
                    assert record is self.written[-1]
                case CheckpointEnded(statistics, _):
                    self.ended.append(statistics.checkpoint)
                    done = statistics.checkpoint in [record.checkpoint for record in self.written]
                    assert (statistics.status is Status.COMPLETED) == done
                case FailAttempt(attempt, _):
                    assert attempt == self.attempt and self.on

    def at(self) -> Moment:
        return Moment(self.now, 0)

    @initialize()
    def begin(self) -> None:
        self.start()

    @precondition(lambda self: not self.on and self.writing is None)
    @rule()
    def start(self) -> None:
        self.on, self.sink = True, Sink(self.attempt)
        self.do(self.coordinator.attempt_started(self.at(), self.attempt))

    @precondition(lambda self: self.on)
    @rule(really=st.sampled_from([False, False, False, True]))
    def fail(self, really: bool) -> None:
        if not really:
            return
        instructions = self.coordinator.attempt_ended(self.at(), self.attempt, Cause.JOB_FAILED, "boom")
        self.on = False
        self.do(instructions)
        self.attempt = Attempt(self.attempt + 1)

    @rule(seconds=st.sampled_from([0.1, 5.0, 5.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.do(self.coordinator.tick(self.at()))

    @precondition(lambda self: self.triggered)
    @rule(subtask=SUBTASKS, which=st.integers(0, 3), age=st.sampled_from([0, 0, 0, 1]), drained=st.booleans())
    def acknowledge(self, subtask: SubtaskId, which: int, age: int, drained: bool) -> None:
        checkpoint = self.triggered[-1 - which % len(self.triggered)]
        committables: dict[Uid, list[bytes]] = {}
        if subtask == SINK:
            named = self.sink.acknowledgement(checkpoint)
            if named is None:
                return
            committables = {OUT: named}
        attempt = Attempt(self.attempt - age)
        figures = SnapshotFigures()
        self.do(
            self.coordinator.acknowledge(self.at(), attempt, subtask, checkpoint, (), committables, figures, drained)
        )

    @precondition(lambda self: self.triggered)
    @rule(which=st.integers(0, 1))
    def all_acknowledge(self, which: int) -> None:
        for subtask in TOPOLOGY.subtasks:
            self.acknowledge(subtask, which, 0, False)

    @precondition(lambda self: self.notified)
    @rule()
    def sink_hears_of_the_newest_completion(self) -> None:
        if self.on:
            self.sink.completed(self.notified[-1])

    @precondition(lambda self: self.triggered)
    @rule(subtask=SUBTASKS, cause=DECLINES, which=st.integers(0, 2))
    def decline(self, subtask: SubtaskId, cause: Cause, which: int) -> None:
        checkpoint = self.triggered[-1 - which % len(self.triggered)]
        self.do(self.coordinator.decline(self.at(), self.attempt, subtask, checkpoint, cause, "because"))

    @rule(subtask=SUBTASKS)
    def drain(self, subtask: SubtaskId) -> None:
        self.do(self.coordinator.drained(self.at(), self.attempt, subtask))

    @rule(subtask=st.sampled_from([A, B]), really=st.sampled_from([False, False, True]))
    def finish(self, subtask: SubtaskId, really: bool) -> None:
        if not really:
            return
        self.do(self.coordinator.finished(self.at(), self.attempt, subtask))

    @rule(purpose=st.sampled_from([Purpose.CHECKPOINT, Purpose.SAVEPOINT]))
    def ask(self, purpose: Purpose) -> None:
        self.do(self.coordinator.request(self.at(), purpose)[1])

    @precondition(lambda self: self.writing is not None)
    @rule(works=st.sampled_from([True, True, False]))
    def store_answers(self, works: bool) -> None:
        checkpoint, self.writing = self.writing, None
        assert checkpoint is not None
        if works:
            self.written.append(self.record)
            self.do(self.coordinator.record_written(self.at(), checkpoint))
        else:
            self.do(self.coordinator.record_failed(self.at(), checkpoint, "disk full"))

    @precondition(lambda self: len(self.commits) < len(self.written))
    @rule()
    def commit_returns(self) -> None:
        checkpoint = self.written[len(self.commits)].checkpoint
        self.commits.append(checkpoint)
        self.coordinator.committed(self.at(), checkpoint)

    @invariant()
    def it_is_consistent(self) -> None:
        self.coordinator.validate()
        assert self.coordinator.writing == (self.writing is not None)

    @invariant()
    def ids_rise_and_each_checkpoint_ends_once(self) -> None:
        completed = [record.checkpoint for record in self.written]
        assert self.triggered == sorted(set(self.triggered)) and completed == sorted(set(completed))
        assert len(self.ended) == len(set(self.ended))

    @invariant()
    def nothing_is_both_notified_and_aborted(self) -> None:
        assert len(self.notified) == len(set(self.notified))
        assert not set(self.notified) & set(self.aborted)
        assert set(self.aborted).isdisjoint(record.checkpoint for record in self.written)

    @invariant()
    def no_output_before_a_complete_checkpoint_is_lost(self) -> None:
        """All that the sink prepared up to its snapshot for the newest complete checkpoint is committed, or that
        checkpoint's record names it: a restore from it commits it."""
        if not self.written or self.written[-1].attempt != self.attempt:
            return
        newest = self.written[-1]
        before = self.sink.prepared[: self.sink.prepared.index(self.sink.named[newest.checkpoint][-1]) + 1]
        safe = [record for record in self.written if record.checkpoint in self.commits or record is newest]
        assert {*before} <= {payload for record in safe for payload in record.committables[OUT]}, self.coordinator.story


CoordinatorMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestCoordinator: Any = CoordinatorMachine.TestCase


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=12))
def test_round_after_round_no_output_is_lost_whoever_hears_of_what(rounds: list[tuple[bool, bool, bool]]) -> None:
    """Each round the record is written or not, the sink hears of it or not, and the oldest commit returns or not."""
    machine = CoordinatorMachine()
    machine.start()
    for written, heard, committed in rounds:
        machine.wait(5.0)
        machine.all_acknowledge(0)
        if machine.writing is not None:
            machine.store_answers(written)
        if heard and machine.notified:
            machine.sink_hears_of_the_newest_completion()
        if committed and len(machine.commits) < len(machine.written):
            machine.commit_returns()
        machine.no_output_before_a_complete_checkpoint_is_lost()
