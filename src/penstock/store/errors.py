"""What can be wrong with a stored checkpoint. Each error names the file, what was found and what to do next."""

from __future__ import annotations

from penstock.core.store import Fenced

__all__ = ["CorruptCheckpoint", "Fenced", "NotComplete", "OtherJob", "UnknownFormat"]

RESTORE_ANOTHER = (
    "Nothing was restored. Put the file back from a copy, or choose another complete checkpoint of this directory by "
    "its number (restore=<number>); complete checkpoints are those that the entries in log/ name"
)

NO_OTHER_LOG = (
    "Put the file back from a copy of the directory. If there is none: the checkpoints themselves are below "
    "checkpoints/, but which of them are complete can no longer be told for sure"
)


class CorruptCheckpoint(Exception):
    """A file of a complete checkpoint is missing, shorter than recorded, or not what was written."""

    def __init__(self, path: str, found: str, advice: str = RESTORE_ANOTHER) -> None:
        super().__init__(f"{path}: {found}. {advice}.")
        self.path = path


class UnknownFormat(Exception):
    """Written by a newer version of Penstock."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(
            f"{path} has format {found}; this version of Penstock reads formats up to {known}. "
            "Run the job with the version that wrote it, or a newer one."
        )
        self.path = path


class NotComplete(Exception):
    """The checkpoint that was asked for never completed, or was removed by retention."""


class OtherJob(Exception):
    """The directory belongs to a job of another name."""
