"""Exactly-once of the files sink, whatever dies when: random histories with a crash at any operation on a file."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.connectors.support import barrier, context, written

from penstock.connectors.files_sink import Files
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.operators.base import Emitted
from penstock.operators.sink import SinkOperator
from penstock.simulation.files import MemoryFiles

UID = Uid("out")
OUT = Emitted()


class Crash(BaseException):
    """The process is gone: nothing may catch it."""


class History:
    """A job with one sink subtask that writes 0, 1, 2, ...; what is stored outlives every crash, the rest does not."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.sink = Files("target", files=self.files)
        self.complete: tuple[CheckpointId | None, int, Sequence[bytes]] = (None, 0, ())
        self.last_checkpoint = 0
        self.generation, self.attempt = 1, 0
        self.restart()

    def restart(self) -> None:
        """A new attempt from the newest complete checkpoint; recovery itself may crash and is then tried again."""
        self.attempt += 1
        self.operator: SinkOperator | None = None
        checkpoint, self.next, committables = self.complete
        self.committer = self.sink.committer(UID, "job")
        self.committer.recover(checkpoint, committables, Generation(self.generation), Attempt(self.attempt))
        self.operator = SinkOperator(self.sink.writer())
        self.operator.open(context(attempt=self.attempt, generation=self.generation, uid=UID))
        self.under_way: dict[CheckpointId, tuple[int, Sequence[bytes]]] = {}

    def write(self) -> None:
        self.operator.process(pa.record_batch({"n": [self.next]}), 0, OUT)
        self.next += 1

    def snapshot(self, acknowledged: bool) -> None:
        self.last_checkpoint += 1
        snapshot = self.operator.snapshot(barrier(self.last_checkpoint))
        if acknowledged:
            written(snapshot.parts, 0)
            self.under_way[CheckpointId(self.last_checkpoint)] = self.next, snapshot.committables

    def complete_one(self, notified: bool) -> None:
        if not self.under_way:
            return
        checkpoint = max(self.under_way)
        covered, committables = self.under_way[checkpoint]
        self.under_way.clear()
        self.complete = checkpoint, covered, committables
        if notified:
            self.operator.on_complete(checkpoint)
        self.committer.commit(checkpoint, committables)

    def abort_one(self) -> None:
        if self.under_way:
            checkpoint = min(self.under_way)
            del self.under_way[checkpoint]
            self.operator.on_abort(checkpoint)

    def driver_lost(self) -> None:
        self.generation, self.attempt = self.generation + 1, 0
        self.restart()

    def target(self) -> list[int]:
        found = sorted(info.path for info in self.files.list("target"))
        return [
            n
            for path in found
            for n in pq.read_table(io.BytesIO(bytes(self.files.read(path))))["n"].to_pylist()
        ]  # fmt: skip

    def pending(self) -> list[str]:
        return [info.path for info in self.files.list("_target.pending") if info.path.endswith(".pending")]


ACTIONS = {
    "write": History.write,
    "snapshot": lambda history: history.snapshot(True),
    "declined snapshot": lambda history: history.snapshot(False),
    "complete": lambda history: history.complete_one(True),
    "complete, notice lost": lambda history: history.complete_one(False),
    "abort": History.abort_one,
    "task lost": History.restart,
    "driver lost": History.driver_lost,
}


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.none() | st.integers(0, 12), st.booleans()), max_size=30)
)
def test_a_crash_at_any_operation_leaves_each_record_of_the_newest_complete_checkpoint_exactly_once(
    actions: list[tuple[str, int | None, bool]],
) -> None:
    history = History()
    for name, crash_at, effective in actions:
        countdown = [crash_at if crash_at is not None else -1]

        def hook(operation: str, path: str, countdown: list[int] = countdown) -> None:
            if countdown[0] == 0:
                raise Crash(f"{operation} {path}")
            countdown[0] -= 1

        if effective:
            history.files.after = hook
        else:
            history.files.before = hook
        crashed = False
        try:
            ACTIONS[name](history)
        except Crash:
            crashed = True
        history.files.before = history.files.after = lambda operation, path: None
        if crashed:
            history.restart()
        target = history.target()
        assert target == list(range(len(target))), name
        assert len(target) <= history.complete[1]
    history.restart()
    assert history.target() == list(range(history.complete[1]))
    assert history.pending() == []


@pytest.mark.parametrize("crash_at", range(12))
def test_a_commit_of_several_files_may_die_between_any_two_steps(crash_at: int) -> None:
    history = History()
    for _ in range(3):
        history.write()
        history.snapshot(True)
    history.write()
    history.snapshot(True)
    left = [crash_at]

    def die(operation: str, path: str) -> None:
        if left[0] == 0:
            raise Crash(f"{operation} {path}")
        left[0] -= 1

    history.files.before = die
    try:
        history.complete_one(True)
    except Crash:
        history.files.before = lambda operation, path: None
        assert set(history.target()) <= {0, 1, 2, 3}
        history.driver_lost()
    history.files.before = lambda operation, path: None
    assert history.target() == [0, 1, 2, 3]


def test_a_fenced_driver_that_still_commits_meets_the_one_that_recovers_and_neither_harms_the_other() -> None:
    history = History()
    history.write()
    history.snapshot(True)
    [(checkpoint, (covered, committables))] = history.under_way.items()
    history.complete = checkpoint, covered, committables
    old = history.committer
    moved: list[str] = []

    def the_new_driver_is_faster(operation: str, path: str) -> None:
        if operation == "move" and not moved:
            moved.append(path)
            history.driver_lost()

    history.files.before = the_new_driver_is_faster
    old.commit(checkpoint, committables)
    assert moved and history.target() == [0]
    history.write()
    history.snapshot(True)
    old.close()
    history.complete_one(True)
    assert history.target() == [0, 1]
