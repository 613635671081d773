"""What goes wrong in a run, as data: at the n-th time that a named point of the protocol is reached, this happens.

The points are reached by the simulated world while production code runs; most lie between two actions of the schedule,
those of the store lie between any two operations on files. A plan is drawn from the seed before the run begins and does
not depend on it, so a failing plan can be cut down by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

SIMULATED = "simulated:"
"""Errors that faults raise begin with it."""


KIND = "fault: "
"""Before the name of an action, in the figures of a run."""


class Point(StrEnum):
    STEP = "step"
    """Any action of the schedule."""
    ACK_SENT = "ack sent"
    ACK_DELIVERED = "ack delivered"
    TO_MASTER = "message to the master"
    TO_WORKER = "message to a worker"
    BARRIER = "barrier delivered"
    DEPLOY = "deployment"
    RESTORE = "restore"
    """A subtask was opened with state of a checkpoint."""
    REPLAY = "replay"
    """A subtask was opened with in-flight records of a checkpoint."""
    RESET = "reset"
    DATA = "data write"
    DATA_DONE = "data written"
    COMMITTABLES = "committables write"
    METADATA = "metadata write"
    METADATA_DONE = "metadata written"
    LOG = "log append"
    LOG_DONE = "log appended"
    DELETE = "delete"
    DELETE_DONE = "deleted"
    COMMIT = "commit"
    COMMIT_DONE = "committed"
    SINK = "sink file operation"


class Action(StrEnum):
    KILL_WORKER = "kill a worker"
    MUTE_WORKER = "cut a worker off; it lives on for a while"
    KILL_DRIVER = "kill the driver; its workers live on for a while"
    SECOND_DRIVER = "start a second driver while the first lives on"
    STORE_ERROR = "fail an operation on files"
    STORE_SILENCE = "lose the answer of an operation on files that took effect"
    STORE_GHOST = "fail an append to the log that takes effect later all the same"
    REPEAT_MESSAGE = "deliver a message once more, later"
    STALL = "stop a task, a channel or a connection for a while"
    USER_ERROR = "raise in user code"
    SNAPSHOT_ERROR = "raise in a snapshot"
    TRIGGER = "ask for a checkpoint by hand"
    CONFIGURE = "change how checkpoints are taken"
    CANCEL = "cancel the job; its user starts it again"
    RESCALE = "go on at another parallelism"
    SAVEPOINT = "take a savepoint"
    STOP = "stop with a savepoint; its user starts it again from there"


CRASHES = frozenset(
    (Action.KILL_WORKER, Action.MUTE_WORKER, Action.KILL_DRIVER, Action.SECOND_DRIVER, Action.USER_ERROR)
)
"""After these some part of the job starts again from a checkpoint."""


@dataclass(frozen=True)
class Fault:
    point: Point
    occurrence: int
    """Counted from 1, since `after` checkpoints were complete."""
    action: Action
    after: int = 0

    def __str__(self) -> str:
        return f"{self.action} at {self.point} {self.occurrence} after {self.after} checkpoints"


_WORKER_POINTS = (
    *(Point.STEP,) * 3,
    Point.ACK_SENT,
    Point.ACK_DELIVERED,
    Point.BARRIER,
    Point.DEPLOY,
    Point.RESTORE,
    Point.REPLAY,
    Point.RESET,
    Point.DATA,
    Point.DATA_DONE,
)
_DRIVER_POINTS = (
    *(Point.STEP,) * 3,
    Point.ACK_DELIVERED,
    Point.COMMITTABLES,
    Point.METADATA,
    Point.METADATA_DONE,
    Point.LOG,
    Point.LOG_DONE,
    Point.DELETE,
    Point.DELETE_DONE,
    Point.COMMIT,
    Point.COMMIT_DONE,
    Point.SINK,
    Point.DEPLOY,
    Point.RESTORE,
    Point.REPLAY,
    Point.RESET,
)
_ERROR_POINTS = (
    Point.DATA,
    Point.COMMITTABLES,
    Point.METADATA,
    Point.LOG,
    Point.DELETE,
    Point.COMMIT,
    Point.SINK,
)
_SILENCE_POINTS = (Point.DATA_DONE, Point.METADATA_DONE, Point.LOG_DONE, Point.DELETE_DONE, Point.COMMIT_DONE)

_Kind = tuple[Action, int, tuple[Point, ...]]
_KINDS: tuple[_Kind, ...] = (
    (Action.KILL_WORKER, 30, _WORKER_POINTS),
    (Action.MUTE_WORKER, 10, _WORKER_POINTS),
    (Action.KILL_DRIVER, 14, _DRIVER_POINTS),
    (Action.SECOND_DRIVER, 6, _DRIVER_POINTS),
    (Action.STORE_ERROR, 10, _ERROR_POINTS),
    (Action.STORE_SILENCE, 5, _SILENCE_POINTS),
    (Action.STORE_GHOST, 4, (Point.LOG,)),
    (Action.REPEAT_MESSAGE, 12, (Point.TO_MASTER, Point.TO_WORKER, Point.ACK_DELIVERED)),
    (Action.STALL, 12, (Point.STEP, Point.BARRIER, Point.ACK_SENT)),
    (Action.USER_ERROR, 5, (Point.STEP, Point.BARRIER)),
    (Action.SNAPSHOT_ERROR, 4, (Point.BARRIER, Point.STEP)),
    (Action.TRIGGER, 6, (Point.STEP, Point.BARRIER, Point.ACK_DELIVERED)),
    (Action.CONFIGURE, 5, (Point.STEP, Point.BARRIER, Point.ACK_DELIVERED)),
    (Action.CANCEL, 4, (Point.STEP, Point.ACK_DELIVERED, Point.DEPLOY, Point.RESET)),
    (Action.RESCALE, 10, (Point.STEP, Point.BARRIER, Point.ACK_DELIVERED)),
    (Action.SAVEPOINT, 4, (Point.STEP, Point.BARRIER, Point.ACK_DELIVERED)),
    (Action.STOP, 4, (Point.STEP, Point.BARRIER, Point.ACK_DELIVERED)),
)
_REACH = {
    Point.STEP: 150,
    Point.TO_MASTER: 20,
    Point.TO_WORKER: 15,
    Point.ACK_SENT: 10,
    Point.ACK_DELIVERED: 10,
    Point.BARRIER: 15,
    Point.DATA: 5,
    Point.DATA_DONE: 5,
    Point.SINK: 6,
}
"""How often a point is reached between two checkpoints or so; points that are not named, a few times."""


_DRIVER_FAULTS = (
    Action.KILL_DRIVER,
    Action.SECOND_DRIVER,
    Action.CANCEL,
    Action.RESCALE,
    Action.SAVEPOINT,
    Action.STOP,
)


def random_rescale(random: Random) -> Fault:
    """While the job runs."""
    return Fault(Point.STEP, random.randint(1, 200), Action.RESCALE, random.choice((0, 1)))


def random_faults(random: Random, checkpointing: bool) -> tuple[Fault, ...]:
    """None in one run of seven: a run without faults must be right as well. Without checkpoints nothing is promised for
    a lost driver."""
    kinds = [kind for kind in _KINDS if checkpointing or kind[0] not in _DRIVER_FAULTS]
    count = random.choices((0, 1, 2, 3, 5, 8), (14, 14, 24, 22, 16, 10))[0]
    return tuple(_random_fault(random, kinds) for _ in range(count))


def _random_fault(random: Random, kinds: Sequence[_Kind]) -> Fault:
    action, _, points = random.choices(kinds, [weight for _, weight, _ in kinds])[0]
    point = random.choice(points)
    return Fault(point, random.randint(1, _REACH.get(point, 3)), action, random.choice((0, 1, 1, 1, 2)))


def random_write_errors(random: Random, checkpoints: int = 5) -> tuple[Fault, ...]:
    """Some writes of state fail, and later a worker is lost: then it shows whether what was written fits together. So
    many checkpoints at most are complete by then."""
    errors = [
        Fault(Point.DATA, random.randint(1, 6), Action.STORE_ERROR, random.randint(0, checkpoints - 2))
        for _ in range(random.randint(1, checkpoints - 1))
    ]
    return (*errors, Fault(Point.STEP, random.randint(1, 60), Action.KILL_WORKER, random.randint(2, checkpoints)))


class FaultPlan:
    """Counts how often each point was reached and says what happens there."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self._left: dict[Point, dict[Fault, int]] = {}
        for fault in faults:
            self._left.setdefault(fault.point, {})[fault] = fault.occurrence
        self.happened: Counter[Action] = Counter()

    def reach(self, point: Point, checkpoints: int) -> list[Fault]:
        """What happens now; `checkpoints` are complete so far."""
        waiting = self._left.get(point)
        if not waiting:
            return []
        due: list[Fault] = []
        for fault in waiting:
            if checkpoints >= fault.after:
                waiting[fault] -= 1
                if not waiting[fault]:
                    due.append(fault)
        for fault in due:
            del waiting[fault]
        return due

    def awaits(self, point: Point) -> bool:
        return bool(self._left.get(point))

    def stop(self) -> None:
        self._left.clear()
