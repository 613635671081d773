"""What was seen while a run went on, by the nodes of its job and by its disk; the first rule that was broken."""

from __future__ import annotations

from penstock.core.ids import CheckpointId
from penstock.core.store import Completed
from penstock.store import layout
from penstock.store.documents import decode_entry
from penstock.store.files import Files


class Witness:
    """`exactly_once`: whether a repeated or reordered record inside the job is a violation. `in_time`: whether a record
    behind the watermark is one (sources that go idle may be late when they come back)."""

    def __init__(self, *, exactly_once: bool, in_time: bool) -> None:
        self.exactly_once, self.in_time = exactly_once, in_time
        self.violation: str | None = None
        self.completed: set[CheckpointId] = set()
        """Checkpoints that are complete: the log names them."""
        self.newest = CheckpointId(0)
        self.raise_in_process = False
        """Set by a fault: the next user code that runs raises, once."""
        self.raise_in_snapshot = False
        self.unaligned = 0
        """Complete checkpoints that hold records in flight or whose barriers overtook some."""
        self.failed = 0
        self.restores = 0
        """Attempts that started from a checkpoint."""

    def object(self, what: str) -> None:
        if self.violation is None:
            self.violation = what

    def disk(self, files: Files, operation: str, path: str) -> None:
        """An operation on the store's files has taken effect."""
        number = layout.log_number(path)
        if operation == "create" and number is not None:
            entry = decode_entry(path, number, files.read(path))
            if isinstance(entry, Completed):
                if entry.checkpoint <= self.newest:
                    self.object(f"checkpoint {entry.checkpoint} was completed after {self.newest}")
                self.completed.add(entry.checkpoint)
                self.newest = max(self.newest, entry.checkpoint)
        elif operation == "delete":
            owner = layout.checkpoint_file(path)
            if owner is not None and owner[0] == self.newest:
                self.object(f"{path} was deleted, though its checkpoint is the newest complete one")
