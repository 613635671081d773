"""Commits come in the order asked, one at a time; one of nothing needs no thread but keeps its place."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from penstock.core.ids import CheckpointId, Uid
from penstock.runtime.clock import SystemClock
from penstock.runtime.commits import Commits

SINK = Uid("sink")


class Sink:
    def __init__(self) -> None:
        self.committed: list[int] = []

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        self.committed.append(checkpoint)


class Rig:
    def __init__(self) -> None:
        self.sink, self.done = Sink(), list[int]()
        self.work: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        sinks: Any = {SINK: self.sink}
        self.commits = Commits(sinks, lambda work, then: self.work.append((work, then)), SystemClock(), print)

    def commit(self, checkpoint: int, *committables: bytes) -> None:
        self.commits.commit(CheckpointId(checkpoint), {SINK: committables}, lambda: self.done.append(checkpoint))

    def work_once(self) -> None:
        work, then = self.work.popleft()
        then(work())


def test_a_commit_of_nothing_is_done_by_the_next_tick_and_asks_for_one() -> None:
    rig = Rig()
    rig.commit(1)
    assert not rig.work and not rig.commits.idle and rig.commits.next_wake() == 0.0
    rig.commits.tick()
    assert rig.done == [1] and rig.commits.idle and rig.commits.next_wake() is None


def test_a_commit_of_nothing_waits_for_the_one_before_it() -> None:
    rig = Rig()
    rig.commit(1, b"part")
    rig.commit(2)
    rig.commits.tick()
    assert rig.done == []
    rig.work_once()
    rig.commits.tick()
    assert rig.done == [1, 2] and rig.sink.committed == [1]


def test_a_commit_behind_one_of_nothing_runs_with_the_tick_that_ends_it() -> None:
    rig = Rig()
    rig.commit(1)
    rig.commit(2, b"part")
    assert not rig.work
    rig.commits.tick()
    rig.work_once()
    assert rig.done == [1, 2] and rig.sink.committed == [2] and rig.commits.idle
