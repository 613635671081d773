"""What can be asked of a running job, and what it answers. MessagePack by msgspec: typed, bounded, never code.

One request, one answer. Fields go by name and unknown ones are ignored, so that a command and a driver of neighbouring
versions understand each other.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

LARGEST_REQUEST: Final = 64 << 10
LARGEST_ANSWER: Final = 64 << 20


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


# ---- requests ----
class Describe(_Message, frozen=True):
    """How is the job? Answered by `JobView`, at any time."""


class ListCheckpoints(_Message, frozen=True):
    """The last ones of this run, with those under way."""

    last: int


class TakeCheckpoint(_Message, frozen=True):
    pass


class TakeSavepoint(_Message, frozen=True):
    path: str
    """Absolute: the driver has a working directory of its own."""
    aligned: bool = False


class Stop(_Message, frozen=True):
    drain: bool = True
    savepoint: str | None = None


class Cancel(_Message, frozen=True):
    pass


class Rescale(_Message, frozen=True):
    parallelism: int


class Configure(_Message, frozen=True):
    options: dict[str, str | int | float]
    """As `ps.Checkpoints` takes them; what is not named stays as it is."""


Request = Describe | ListCheckpoints | TakeCheckpoint | TakeSavepoint | Stop | Cancel | Rescale | Configure


# ---- answers ----
class Underway(msgspec.Struct, frozen=True):
    """A checkpoint that is being taken."""

    checkpoint: int
    purpose: str
    acknowledged: int
    expected: int
    duration_ms: float


class JobView(_Message, frozen=True):
    name: str
    state: str
    attempt: int
    restarts: int
    slots: int
    workers: int
    """That hold a slot."""
    spares: int
    newest_checkpoint: int | None
    completed_checkpoints: int
    failed_checkpoints: int
    """Both in this driver's life."""
    last_failure: str
    settings: dict[str, Any] | None
    """How checkpoints are taken; None: not at all."""
    underway: list[Underway] = []


class Checkpoints(_Message, frozen=True):
    entries: list[dict[str, Any]]
    """As they are written to the statistics, oldest first."""


class CheckpointTaken(_Message, frozen=True):
    checkpoint: int


class Ended(_Message, frozen=True):
    state: str
    seconds: float
    restarts: int
    checkpoints: int
    newest_checkpoint: int | None


class Rescaled(_Message, frozen=True):
    parallelism: int
    checkpoint: int | None
    outage: float
    """Seconds in which nothing ran."""


class Configured(_Message, frozen=True):
    settings: dict[str, Any]


class Refused(_Message, frozen=True):
    """It was not done, or did not work."""

    error: str
    """The name of the exception."""
    message: str


Answer = JobView | Checkpoints | CheckpointTaken | Ended | Rescaled | Configured | Refused
