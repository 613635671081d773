"""What was seen while a run went on, by the nodes of its job and by its disk; the first rule that was broken."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.barrier import Barrier, Mode
from penstock.core.handles import PartKind
from penstock.core.ids import Attempt, CheckpointId, Generation
from penstock.core.store import Claimed, Completed
from penstock.store import layout
from penstock.store.documents import Metadata, decode_entry, unseal
from penstock.store.files import Files
from penstock.store.metadata import needed_by

_IN_ORDER = (Mode.ALIGNED, Mode.STOP_THE_WORLD)


class Witness:
    """`exactly_once`: whether a repeated or reordered record inside the job is a violation. `in_time`: whether a record
    behind the watermark is one (sources that go idle may be late when they come back)."""

    def __init__(self, *, exactly_once: bool, in_time: bool) -> None:
        self.exactly_once, self.in_time = exactly_once, in_time
        self.violation: str | None = None
        self.completed: dict[CheckpointId, Generation] = {}
        """Checkpoints that are complete, for the log names them, and the generation that completed them."""
        self.newest = CheckpointId(0)
        self._needed: set[str] = set()
        """The files that the newest complete checkpoint names, its own included."""
        self.owner = 0
        """The number of the driver that claimed the store last."""
        self.raise_in_process = False
        """Set by a fault: the next user code that runs raises, once."""
        self.raise_in_snapshot = False
        self._ends: dict[tuple[int, int], tuple[tuple[Generation, Attempt], int]] = {}
        self._cuts: dict[tuple[Generation, CheckpointId], dict[tuple[int, int], int]] = {}
        self._held_back = True
        """No checkpoint so far let sinks commit rows from behind its barrier, as at-least-once ones do: what those
        committed stays in the output of all later ones, aligned savepoints included."""
        self.overtaken: set[CheckpointId] = set()
        """Checkpoints in which a barrier overtook records somewhere."""
        self.restored: set[tuple[Generation, Attempt]] = set()
        """Runs that started from a checkpoint."""

        self.took_up: set[str] = set()
        """Operator states that some instance had something in when it was opened."""
        self.kinds: frozenset[PartKind] = frozenset()
        """Of the parts of the newest complete checkpoint."""

    def source_ended(self, node: int, split: int, run: tuple[Generation, Attempt], position: int) -> None:
        known = self._ends.get((node, split))
        if known is None or run >= known[0]:
            self._ends[node, split] = (run, position)

    def source_cut(self, node: int, split: int, run: tuple[Generation, Attempt], barrier: Barrier, read: int) -> None:
        """A source let the barrier go after it had read so much of the split."""
        self._held_back &= barrier.mode is not Mode.AT_LEAST_ONCE
        if barrier.mode in _IN_ORDER:
            self._cuts.setdefault((run[0], barrier.checkpoint), {})[node, split] = read

    def cut(self, checkpoint: CheckpointId) -> Mapping[tuple[int, int], int] | None:
        """How much of each split lies before the barriers of a complete checkpoint; None if its barriers may have
        overtaken records, or rows from behind barriers may be in the output. Splits that are not named had ended."""
        return self._cuts.get((self.completed[checkpoint], checkpoint)) if self._held_back else None

    def rows_read(self, node: int, split: int) -> int:
        """Where the newest run that got to the end of the split stopped reading: a job may be asked to drain."""
        return self._ends[node, split][1]

    def object(self, what: str) -> None:
        if self.violation is None:
            self.violation = what

    def disk(self, files: Files, operation: str, path: str, driver: int) -> None:
        """An operation on the store's files has taken effect; `driver` asked for it, 0: no driver."""
        number = layout.log_number(path)
        if operation == "create" and number is not None:
            entry = decode_entry(path, number, files.read(path))
            if isinstance(entry, Claimed):
                self.owner = driver
            if isinstance(entry, Completed):
                if entry.checkpoint <= self.newest:
                    self.object(f"checkpoint {entry.checkpoint} was completed after {self.newest}")
                self.completed[entry.checkpoint] = entry.generation
                self.newest = entry.checkpoint
                metadata = unseal(entry.metadata, files.read(entry.metadata), Metadata)
                self.kinds = frozenset(handle.kind for subtask in metadata.subtasks for handle in subtask.handles)
                self._needed = set(needed_by(entry, metadata))
        elif operation == "delete" and path in self._needed:
            self.object(f"{path} was deleted, though the newest complete checkpoint, {self.newest}, needs it")
