"""What the objects in a job's directory mean, and what may be done with them: pure decisions.

Theory of operation
-------------------
The directory is the only truth, and it holds no status that could disagree with itself: a checkpoint is complete
because an entry of the *log* names it. The log is a row of numbered objects, each made by conditional create, so of
several drivers exactly one writes entry k, and whoever wants to write entry k has seen all entries before it. The
kinds:

- a *claim* raises the generation: from here on the directory belongs to the driver that wrote it;
- a *completion* names a checkpoint whose data and metadata are durable;
- a *void* only takes a number. When the answer to a completion got lost, its request may still be under way somewhere
  and arrive after its driver has given the checkpoint up. The void takes the number that the request would need.

A driver that was overtaken finds its entry taken, reads on, meets a higher generation and is `Fenced`: it can complete
nothing any more. Every entry carries its generation, so the last one alone tells who owns the directory.

The log must not grow for ever. Every entry says which is the `oldest` that still counts: all from there to the end must
exist (a hole is damage and is reported), all before are history. History is deleted except for the last `HISTORY`
entries. A driver that slept so long that its own next entry is already deleted history could create it again; it
therefore looks after every append whether there is anything beyond its entry (`check_last`), and readers ignore
whatever lies before `oldest`.

Cleaning happens in two steps: `classify` gives every object exactly one class with a reason; then `deletions` puts
those that may go into an order in which a crash between any two does no harm: metadata before the data that it names.
Nothing is deleted that a retained checkpoint references. A checkpoint is subsumed only by `keep` newer ones whose files
are all there; broken ones do not count, so at least one restorable checkpoint stays. Ids from the newest complete one
upwards are in the making and untouched, unless their owner says that they are aborted, or an older generation wrote
them: that one is fenced. What the subtasks of a running attempt have written is theirs, whatever became of the
checkpoint for which they did, because later ones may name it; until a checkpoint has named it: then it goes when the
last checkpoint goes that names it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from penstock.core.ids import Attempt, CheckpointId, Generation

HISTORY = 100
"""How many log entries stay at least, whether they still count or not."""


class Fenced(Exception):
    """A newer driver has claimed the job's directory; this one may not change anything any more."""


class DamagedLog(Exception):
    """An entry that still counts is missing."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


@dataclass(frozen=True, slots=True)
class Claimed:
    number: int
    generation: Generation
    oldest: int


@dataclass(frozen=True, slots=True)
class Completed:
    number: int
    generation: Generation
    oldest: int
    checkpoint: CheckpointId
    metadata: str
    """Path of the metadata file."""
    crc32: int
    """Of the metadata file as a whole."""


@dataclass(frozen=True, slots=True)
class Voided:
    number: int
    generation: Generation
    oldest: int


LogEntry = Claimed | Completed | Voided


@dataclass(frozen=True, slots=True)
class Log:
    """The entries that count, in their order."""

    entries: tuple[LogEntry, ...] = ()

    @property
    def next_number(self) -> int:
        return self.entries[-1].number + 1 if self.entries else 1

    @property
    def generation(self) -> Generation:
        return self.entries[-1].generation if self.entries else Generation(0)

    @property
    def completions(self) -> tuple[Completed, ...]:
        return tuple(entry for entry in self.entries if isinstance(entry, Completed))

    @property
    def newest(self) -> Completed | None:
        return next((entry for entry in reversed(self.entries) if isinstance(entry, Completed)), None)

    def find(self, checkpoint: CheckpointId) -> Completed | None:
        """Their numbers rise, and mostly a new one is looked for."""
        for entry in reversed(self.entries):
            if isinstance(entry, Completed) and entry.checkpoint <= checkpoint:
                return entry if entry.checkpoint == checkpoint else None
        return None

    def with_entry(self, entry: LogEntry) -> Log:
        """What is known was checked when it was read: only whether the new one follows is not."""
        first = self.entries[0].number if self.entries else entry.number
        kept = self.entries[max(0, entry.oldest - first) :]
        if not kept or kept[0].number != entry.oldest or kept[-1].number + 1 != entry.number:
            return read_log([*kept, entry])
        _check_generations(kept[-1], entry)
        return Log((*kept, entry))


def counting(numbers: Collection[int], last: LogEntry) -> range:
    """The numbers of the entries to read, given the listing and its last entry."""
    missing = sorted(set(range(last.oldest, last.number)).difference(numbers))
    if missing:
        raise DamagedLog(missing[0], f"log entry {missing[0]} is missing, though entry {last.number} still needs it")
    return range(last.oldest, last.number + 1)


def read_log(entries: Iterable[LogEntry]) -> Log:
    """The log out of its entries; drops those that the last one no longer needs, refuses holes and generations that go
    back."""
    ordered = sorted(entries, key=lambda entry: entry.number)
    if not ordered:
        return Log()
    wanted = counting([entry.number for entry in ordered], ordered[-1])
    kept = tuple(entry for entry in ordered if entry.number in wanted)
    for before, after in pairwise(kept):
        _check_generations(before, after)
    return Log(kept)


def _check_generations(before: LogEntry, after: LogEntry) -> None:
    rises = (
        after.generation > before.generation if isinstance(after, Claimed) else after.generation == before.generation
    )
    if not rises:
        raise DamagedLog(
            after.number,
            f"log entry {after.number} is of generation {after.generation}, which cannot follow "
            f"generation {before.generation} of entry {before.number}",
        )


def claim(log: Log, existing: Collection[str]) -> Claimed:
    """The entry that makes the caller the owner. `existing`: the metadata files that are there."""
    number = log.next_number
    return Claimed(number, Generation(log.generation + 1), _oldest(log, existing, number))


def complete(
    log: Log, generation: Generation, checkpoint: CheckpointId, metadata: str, crc32: int, existing: Collection[str]
) -> Completed:
    """The entry that completes a checkpoint; its data and metadata are already durable."""
    check_owner(log, generation)
    newest = log.newest
    if newest is not None and checkpoint <= newest.checkpoint:
        raise ValueError(
            f"checkpoint {checkpoint} cannot complete after {newest.checkpoint}: "
            "checkpoints complete in the order of their numbers, older pending ones are aborted"
        )
    number = log.next_number
    return Completed(number, generation, _oldest(log, existing, number), checkpoint, metadata, crc32)


def void(log: Log, generation: Generation, existing: Collection[str]) -> Voided:
    """The entry after which nothing that this driver sent before can arrive."""
    check_owner(log, generation)
    number = log.next_number
    return Voided(number, generation, _oldest(log, existing, number))


def _oldest(log: Log, existing: Collection[str], number: int) -> int:
    """From where on entries count: the oldest completion whose metadata is still there. The newest one always counts,
    even if its metadata got lost: a restore must stumble over that, not overlook it."""
    newest = log.newest
    for entry in log.entries:
        if isinstance(entry, Completed) and (entry is newest or entry.metadata in existing):
            return entry.number
    return number


def check_owner(log: Log, generation: Generation) -> None:
    if log.generation != generation:
        raise Fenced(
            f"another driver has claimed this job's directory: generation {log.generation} is newer than this "
            f"driver's {generation}. Only one driver may run a job; stop this one, or start it again to take over"
        )


def check_last(numbers: Iterable[int], own: int) -> None:
    """After an append: if the entry is not the last one, it went into deleted history, or its writer was overtaken just
    after it. Either way the directory has another owner now."""
    last = max(numbers, default=own)
    if last > own:
        raise Fenced(
            f"another driver has claimed this job's directory: this driver's log entry {own} is already followed by "
            f"entry {last}. Only one driver may run a job; stop this one, or start it again to take over"
        )


def next_checkpoint(log: Log, seen: Iterable[CheckpointId]) -> CheckpointId:
    """Above every id in the log and among the directories."""
    named = [entry.checkpoint for entry in log.completions]
    return CheckpointId(max([0, *named, *seen]) + 1)


# ---- cleaning ----
class Fate(StrEnum):
    KEPT = "kept"
    """A retained checkpoint needs it."""
    PENDING = "pending"
    """Of a checkpoint in the making."""
    SUBSUMED = "subsumed"
    """Of a complete checkpoint that enough newer ones have replaced."""
    ABANDONED = "abandoned"
    """Of a checkpoint that never completed and never will."""
    ORPHANED = "orphaned"
    """In the directory of a retained checkpoint, but no retained checkpoint references it."""
    HISTORY = "history"
    """A log entry that no longer counts."""

    @property
    def deletable(self) -> bool:
        return self in (Fate.SUBSUMED, Fate.ABANDONED, Fate.ORPHANED, Fate.HISTORY)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file below `checkpoints/`, with what its name says."""

    path: str
    size: int
    checkpoint: CheckpointId
    generation: Generation
    attempt: Attempt | None = None
    """In which a subtask wrote it; None: a driver did."""


References = Mapping[str, int]
"""The files that a checkpoint needs, and how long each must be at least."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that cleaning decides upon."""

    log: Log
    log_numbers: Sequence[int]
    files: Sequence[StoredFile]
    references: Mapping[CheckpointId, References | None]
    """What each completion whose metadata exists needs, metadata included; None: its metadata cannot be read."""
    generation: Generation
    """Of the driver that cleans."""
    keep: int
    aborted: Collection[CheckpointId] = ()
    pinned: Collection[CheckpointId] = ()
    """Complete checkpoints that are being restored from: kept whatever their age."""
    oldest_writer: Attempt | None = None
    """Subtasks of earlier attempts write nothing any more that a checkpoint could name; None: of no attempt do they."""
    released: Collection[str] = ()
    """Files of checkpoints that were subsumed before."""

    def is_being_written(self, file: StoredFile) -> bool:
        """Whether a subtask wrote it that still runs, and may yet name it."""
        if self.oldest_writer is None or file.attempt is None or file.generation != self.generation:
            return False
        return file.attempt >= self.oldest_writer


@dataclass(frozen=True, slots=True)
class Classified:
    files: Mapping[str, Fate]
    released: frozenset[str]
    """What subsumed checkpoints have named."""
    history: tuple[int, ...]
    """Numbers of the log entries that may go, oldest first."""
    retained: tuple[CheckpointId, ...]
    subsumed: tuple[CheckpointId, ...]
    broken: tuple[CheckpointId, ...]
    """Retained, but files that they need are missing, too short or unreadable."""


def restorable(references: References | None, sizes: Mapping[str, int]) -> bool:
    """Whether every file that the checkpoint needs is there in its full length."""
    return references is not None and all(sizes.get(path, -1) >= size for path, size in references.items())


def classify(facts: Facts) -> Classified:
    """Gives every file one fate. Decides nothing from what is absent in the listing but present in the log."""
    sizes = {file.path: file.size for file in facts.files}
    there = [entry.checkpoint for entry in facts.log.completions if entry.checkpoint in facts.references]
    floor = _newest_whole(facts, there, sizes)
    retained = tuple(checkpoint for checkpoint in there if checkpoint >= floor or checkpoint in facts.pinned)
    kept = frozenset(retained)
    subsumed = tuple(checkpoint for checkpoint in there if checkpoint not in kept)
    gone = frozenset(subsumed)
    needed = {path for checkpoint in retained for path in facts.references[checkpoint] or ()}
    released = {path for checkpoint in subsumed for path in facts.references[checkpoint] or ()}.union(facts.released)
    unreadable = {checkpoint for checkpoint in retained if facts.references[checkpoint] is None}
    newest = facts.log.newest

    def fate(file: StoredFile) -> Fate:
        if file.path in needed or file.checkpoint in unreadable:
            return Fate.KEPT
        if facts.is_being_written(file) and file.path not in released:
            return Fate.PENDING
        if file.checkpoint in gone:
            return Fate.SUBSUMED
        if file.checkpoint in kept:
            return Fate.ORPHANED if file.generation <= facts.generation else Fate.PENDING
        if newest is not None and file.checkpoint == newest.checkpoint:
            return Fate.KEPT
        if newest is not None and file.checkpoint < newest.checkpoint:
            return Fate.ABANDONED
        mine_and_aborted = file.checkpoint in facts.aborted and file.generation == facts.generation
        return Fate.ABANDONED if mine_and_aborted or file.generation < facts.generation else Fate.PENDING

    return Classified(
        files={file.path: fate(file) for file in facts.files},
        released=frozenset(released),
        history=_history(facts.log, facts.log_numbers),
        retained=retained,
        subsumed=subsumed,
        broken=tuple(c for c in retained if not restorable(facts.references[c], sizes)),
    )


def _newest_whole(facts: Facts, there: Sequence[CheckpointId], sizes: Mapping[str, int]) -> CheckpointId:
    """The oldest of the `keep` newest checkpoints that can be restored; 0 if there are not so many."""
    left = facts.keep
    for checkpoint in reversed(there):
        left -= restorable(facts.references[checkpoint], sizes)
        if not left:
            return checkpoint
    return CheckpointId(0)


def _history(log: Log, numbers: Sequence[int]) -> tuple[int, ...]:
    if not log.entries:
        return ()
    last = log.entries[-1]
    floor = min(last.oldest, last.number - HISTORY + 1)
    return tuple(sorted(number for number in numbers if number < floor))


def deletions(classified: Classified, metadata: Collection[str]) -> tuple[str, ...]:
    """The checkpoint files to delete, in order: first the metadata files (`metadata` names them), then what they
    name."""
    going = sorted(path for path, fate in classified.files.items() if fate.deletable)
    return tuple(path for path in going if path in metadata) + tuple(path for path in going if path not in metadata)
