"""Acknowledgements of a worker go out when the last of its subtasks has spoken."""

from __future__ import annotations

from penstock.core.handles import SnapshotFigures
from penstock.core.ids import Attempt, ChainId, CheckpointId, SubtaskId
from penstock.runtime.control.messages import Acknowledge
from penstock.runtime.together import Together

ONE, TWO, THREE = (SubtaskId(ChainId(name), 0) for name in ("one", "two", "three"))


class Worker:
    def __init__(self) -> None:
        self.left: list[tuple[SubtaskId, int]] = []
        self.sent: list[list[tuple[SubtaskId, int]]] = []
        self.together = Together((ONE, TWO, THREE), self.leave, self.flush)

    def leave(self, message: Acknowledge) -> None:
        self.left.append((message.subtask, message.checkpoint))

    def flush(self) -> None:
        self.sent.append(self.left)
        self.left = []

    def acknowledge(self, subtask: SubtaskId, checkpoint: int) -> None:
        message = Acknowledge(Attempt(1), subtask, CheckpointId(checkpoint), [], {}, SnapshotFigures(), False)
        self.together.acknowledge(message)


def test_the_last_one_sends_them_all() -> None:
    worker = Worker()
    worker.acknowledge(ONE, 1)
    worker.acknowledge(TWO, 1)
    assert not worker.sent
    worker.acknowledge(THREE, 1)
    assert worker.sent == [[(ONE, 1), (TWO, 1), (THREE, 1)]]


def test_checkpoints_that_overlap_do_not_wait_for_each_other() -> None:
    worker = Worker()
    worker.acknowledge(ONE, 1)
    for subtask in (ONE, TWO, THREE):
        worker.acknowledge(subtask, 2)
    assert worker.sent == [[(ONE, 1), (ONE, 2), (TWO, 2), (THREE, 2)]]
    worker.acknowledge(TWO, 1)
    worker.acknowledge(THREE, 1)
    assert worker.sent[1:] == [[(TWO, 1), (THREE, 1)]]


def test_nobody_waits_for_a_subtask_that_has_ended() -> None:
    worker = Worker()
    worker.acknowledge(ONE, 1)
    worker.together.ended(TWO)
    assert not worker.sent
    worker.acknowledge(THREE, 1)
    worker.acknowledge(ONE, 2)
    worker.together.ended(THREE)
    assert worker.sent == [[(ONE, 1), (THREE, 1)], [(ONE, 2)]]
    worker.acknowledge(ONE, 3)
    assert worker.sent[2:] == [[(ONE, 3)]]


def test_checkpoints_that_never_get_all_are_forgotten() -> None:
    worker = Worker()
    for checkpoint in range(1_000):
        worker.acknowledge(ONE, checkpoint)
    assert not worker.sent
    assert len(worker.together._missing) < 100
