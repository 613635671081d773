"""The store of a job's checkpoints: claims the directory, completes, loads and cleans.

What may be done is decided in `core/store.py`; this module reads the facts, asks, and executes the answer. Order
matters in two places: a checkpoint's data is written before its committables, these before its metadata, this before
the log entry that completes it; and a file is classified before any file is deleted. Safe to call from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from zlib_ng.zlib_ng import crc32

from penstock.core import store as decide
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.core.record import CheckpointRecord
from penstock.core.store import Completed, Facts, Log, LogEntry, References, StoredFile
from penstock.store import layout
from penstock.store.documents import (
    CommittablesFile,
    Identity,
    Metadata,
    decode_committables,
    encode_committables,
    seal,
    to_record,
    unseal,
)
from penstock.store.errors import CorruptCheckpoint, Fenced, NotComplete, OtherJob, UnknownFormat
from penstock.store.files import Files
from penstock.store.log import LogFiles
from penstock.store.metadata import MetadataWriter, needed_by
from penstock.store.savepoints import Snapshot, copy_parts, write_savepoint
from penstock.store.statistics import Statistics

INLINE = 16 << 10
"""Bytes of committables that are put into the metadata instead of a file."""
_STALE_EVERY = 32
"""Cleanings, from one search for files that killed writers left to the next: these are an hour old."""

__all__ = ["CheckpointStore", "Claim", "CleanReport", "CorruptCheckpoint", "Fenced", "NotComplete", "UnknownFormat"]


@dataclass(frozen=True)
class Claim:
    generation: Generation
    newest: CheckpointRecord | None
    """What the job continues from: the newest complete checkpoint, or the one that was asked for."""
    next_id: CheckpointId
    """Above every id that was ever seen in this directory."""


@dataclass(frozen=True)
class CleanReport:
    deleted: tuple[str, ...]
    """Checkpoint files; log entries are not listed."""
    retained: tuple[CheckpointId, ...]
    broken: tuple[CheckpointId, ...]
    """Retained, but not restorable: files are missing or too short."""


class CheckpointStore:
    def __init__(self, files: Files, job: str, keep: int = 3, inline: int | None = None) -> None:
        """`inline`: how many bytes of committables may be in the metadata; None: `INLINE`."""
        self._files = files
        self._inline = inline
        self._job = job
        self.retain(keep)
        self._log_files = LogFiles(files)
        self._metadata_writer = MetadataWriter()
        self._statistics = Statistics(files)
        self._lock = threading.RLock()
        self._log: Log | None = None
        """As last seen by this driver; None when an operation ended in doubt and it must be read again."""
        self._in_doubt = 0
        """Number of a log entry of this driver that may still be under way, its answer having been lost; 0: none is."""
        self._generation: Generation | None = None
        self._pinned: set[CheckpointId] = set()
        self._held: frozenset[CheckpointId] = frozenset()
        self._references: dict[Completed, References] = {}
        self._released: frozenset[str] = frozenset()
        """Files of subsumed checkpoints that were still there."""
        self._cleanings = 0

    @staticmethod
    def directory_of(checkpoint: CheckpointId) -> str:
        """Relative to the root of the files; the paths in handles are relative to it."""
        return layout.checkpoint_directory(checkpoint)

    def retain(self, keep: int) -> None:
        """How many complete checkpoints stay, from the next cleaning on."""
        if keep < 1:
            raise ValueError(
                f"keep must be at least 1, not {keep}: without a retained checkpoint nothing can be restored"
            )
        self._keep = keep

    # ---- owning the directory ----
    def claim(self, restore: CheckpointId | Snapshot | None = None) -> Claim:
        """Makes this driver the owner and fences all earlier ones. `restore` names a checkpoint to continue from
        instead of the newest one, or is one from elsewhere: that is copied in, and is the newest from then on. Raises
        `OtherJob`, and what `load` raises."""
        with self._lock:
            self._check_identity(make=True)
            log, entry = self._log_files.append(self._log_files.read(), decide.claim)
            assert entry is not None
            self._log, self._generation = log, entry.generation
            if isinstance(restore, Snapshot):
                self.complete(self._adopt(restore, entry.generation))
                log, restore = self._read_log(), None
            newest = self._load(log, restore) if restore is not None or log.newest is not None else None
            seen = (file.checkpoint for file in self._stored_files())
            return Claim(entry.generation, newest, decide.next_checkpoint(log, seen))

    def _adopt(self, snapshot: Snapshot, generation: Generation) -> CheckpointRecord:
        """Copies a checkpoint from elsewhere. What its own job prepared in its sinks is that job's to commit."""
        log = self._read_log()
        id = decide.next_checkpoint(log, (file.checkpoint for file in self._stored_files()))
        record = copy_parts(
            snapshot.files,
            snapshot.directory,
            snapshot.record,
            self._files,
            lambda number: layout.adopted_path(id, generation, number),
            snapshot.located,
        )
        own = record.graph.job == self._job
        return replace(
            record,
            checkpoint=id,
            generation=generation,
            graph=replace(record.graph, job=self._job),
            committables=record.committables if own else {},
        )

    # ---- savepoints ----
    def hold(self, checkpoint: CheckpointId) -> None:
        """Keeps the checkpoint whatever its age, until it is released. Never waits for other calls."""
        self._held = self._held | {checkpoint}

    def release(self, checkpoint: CheckpointId) -> None:
        self._held = self._held - {checkpoint}

    def export(self, checkpoint: CheckpointId, target: Files) -> None:
        """Copies a complete checkpoint, whose output is committed, to a directory of the user's."""
        record = self.load(checkpoint)
        write_savepoint(self._files, self.directory_of(checkpoint), record, target)

    def _check_identity(self, make: bool) -> None:
        try:
            content = self._files.read(layout.IDENTITY)
        except FileNotFoundError as error:
            if self._log_files.numbers():
                raise CorruptCheckpoint(
                    layout.IDENTITY,
                    "the file is missing, though the directory has a log",
                    f"Put it back if the directory belongs to job {self._job!r}, or choose another directory",
                ) from error
            if not make:
                return
            try:
                self._files.create(layout.IDENTITY, seal(Identity(self._job)))
                return
            except FileExistsError:
                content = self._files.read(layout.IDENTITY)
        job = _identified(content)
        if job != self._job:
            raise OtherJob(
                f"the checkpoint directory belongs to job {job!r}, this is job {self._job!r}. "
                "Give every job a directory of its own, or the job its old name back."
            )

    # ---- completing ----
    def complete(self, record: CheckpointRecord) -> None:
        """Makes the checkpoint complete. Its data files are durable already. Raises `Fenced` when another driver has
        claimed the directory; on `OSError` ask `is_complete`, the answer to the last write may have been lost.
        Repeating is harmless."""
        with self._lock:
            generation = self._owned()
            if record.generation != generation:
                raise Fenced(
                    f"checkpoint {record.checkpoint} was taken in generation {record.generation}, "
                    f"but this driver has generation {generation}"
                )
            log = self._settled_log() if self._in_doubt or self._log is None else self._log
            self._log = None  # until the end is known
            if not _completed_by(log, record.checkpoint, generation):
                decide.check_owner(log, generation)
                path, crc, needs = self._write_metadata(record)

                def entry(log: Log, existing: Collection[str]) -> LogEntry | None:
                    if _completed_by(log, record.checkpoint, generation):
                        return None  # a client that repeats requests by itself was refused by its own first try
                    self._in_doubt = log.next_number
                    return decide.complete(log, generation, record.checkpoint, path, crc, existing)

                log, written = self._log_files.append(log, entry)
                if isinstance(written, Completed):
                    self._references[written] = {path: 0, **needs}
                self._in_doubt = 0
                self._pinned.clear()
            self._log = log

    def _write_metadata(self, record: CheckpointRecord) -> tuple[str, int, References]:
        """Its path and checksum, and what else the checkpoint needs."""
        document, needs = self._metadata_writer.document(record, self._write_committables(record))
        path = layout.metadata_path(record.checkpoint, record.generation)
        self._files.write_in_place(path, [document])  # nobody reads it before the log names it
        return path, crc32(document), needs

    def _write_committables(self, record: CheckpointRecord) -> CommittablesFile | None:
        """Makes no file of a few bytes: writing it durably would cost more than all the rest."""
        if not any(record.committables.values()):
            return None
        content = encode_committables(record.committables)
        length, crc = len(content), crc32(content)
        if length <= (INLINE if self._inline is None else self._inline):
            return CommittablesFile("", length, crc, content)
        path = layout.committables_path(record.checkpoint, record.generation)
        self._files.write_in_place(path, [content])
        return CommittablesFile(path.rpartition("/")[2], length, crc)

    def is_complete(self, checkpoint: CheckpointId) -> bool:
        """What the directory says now, whatever this driver believes; the answer is final. A checkpoint that a newer
        driver completed under the same number is not the one that the owner of an older claim asks for."""
        with self._lock:
            found = self._settled_log().find(checkpoint)
            return found is not None and (self._generation is None or found.generation <= self._generation)

    def _settled_log(self) -> Log:
        """The log, to which nothing that this driver sent earlier can be added any more."""
        log, doubtful = self._read_log(self._log), self._in_doubt
        if doubtful:
            generation, self._log = self._owned(), None

            def entry(log: Log, existing: Collection[str]) -> LogEntry | None:
                return decide.void(log, generation, existing) if log.next_number <= doubtful else None

            self._log, _ = self._log_files.append(log, entry)
            log, self._in_doubt = self._log, 0
        return log

    def _owned(self) -> Generation:
        if self._generation is None:
            raise RuntimeError("claim() the job's directory first")
        return self._generation

    def _read_log(self, known: Log | None = None) -> Log:
        self._log = self._log_files.read(known)
        return self._log

    # ---- reading ----
    def completed(self) -> list[CheckpointId]:
        """All complete checkpoints that are still there, oldest first."""
        with self._lock:
            self._check_identity(make=False)
            log = self._read_log()
            existing = self._log_files.existing(log)
            return [entry.checkpoint for entry in log.completions if entry == log.newest or entry.metadata in existing]

    def load(self, checkpoint: CheckpointId | None = None) -> CheckpointRecord:
        """The newest complete checkpoint or the named one, never silently another one. Verifies the metadata and that
        all files are there in their full length. Raises `NotComplete`, `CorruptCheckpoint`, `UnknownFormat`,
        `OtherJob`."""
        with self._lock:
            self._check_identity(make=False)
            return self._load(self._read_log(), checkpoint)

    def _load(self, log: Log, checkpoint: CheckpointId | None) -> CheckpointRecord:
        entry = log.newest if checkpoint is None else log.find(checkpoint)
        if entry is None:
            wanted = (
                "no checkpoint of this job is complete"
                if checkpoint is None
                else f"checkpoint {checkpoint} is not complete"
            )
            raise NotComplete(f"{wanted}: {self._alternatives(log)}")
        self._pinned.add(entry.checkpoint)
        metadata = self._metadata(entry)
        needs = needed_by(entry, metadata)
        directories = {path.rpartition("/")[0] for path in needs}
        listed = {file.path: file.size for directory in directories for file in self._files.list(directory)}
        for path, least in needs.items():
            size = listed.get(path)
            if size is None:
                raise CorruptCheckpoint(path, f"the file is missing; checkpoint {entry.checkpoint} needs it")
            if size < least:
                raise CorruptCheckpoint(path, f"the file has {size} bytes, at least {least} were written")
        return to_record(metadata, self._committables(entry, metadata.committables))

    def _alternatives(self, log: Log) -> str:
        existing = self._log_files.existing(log)
        there = [str(entry.checkpoint) for entry in log.completions if entry.metadata in existing]
        if not there:
            return "there is none to restore from. Start the job without naming a checkpoint to begin from scratch"
        return f"it never completed, or retention has removed it. Complete ones: {', '.join(there)}"

    def _metadata(self, entry: Completed) -> Metadata:
        try:
            content = self._files.read(entry.metadata)
        except FileNotFoundError as error:
            found = f"the file is missing; log entry {entry.number} says that checkpoint {entry.checkpoint} is complete"
            raise CorruptCheckpoint(entry.metadata, found) from error
        metadata = unseal(entry.metadata, content, Metadata)
        crc = crc32(content)
        if crc != entry.crc32 or metadata.checkpoint != entry.checkpoint:
            found = (
                f"it is not the file that log entry {entry.number} completed (checksum {crc}, recorded {entry.crc32})"
            )
            raise CorruptCheckpoint(entry.metadata, found)
        return metadata

    def _committables(self, entry: Completed, file: CommittablesFile | None) -> Mapping[Uid, tuple[bytes, ...]]:
        if file is None:
            return {}
        if file.inline is not None:
            return decode_committables(entry.metadata, memoryview(file.inline), file)
        path = f"{self.directory_of(entry.checkpoint)}/{file.path}"
        return decode_committables(path, self._files.read(path), file)

    # ---- cleaning ----
    def clean(
        self,
        aborted: Collection[CheckpointId] = (),
        bases: Collection[CheckpointId] = (),
        oldest_writer: Attempt | None = None,
    ) -> CleanReport:
        """Deletes what no retained checkpoint needs. `aborted`: ids of this driver that will never complete; `bases`:
        complete ones that checkpoints under way are built upon; `oldest_writer`: the first attempt whose subtasks may
        still be writing. Repeating after a crash or an `OSError` goes on where it ended. Raises `Fenced`."""
        with self._lock:
            generation = self._owned()
            log = self._settled_log()
            decide.check_owner(log, generation)
            stored = list(self._stored_files())
            facts = Facts(
                log=log,
                log_numbers=self._log_files.numbers(),
                files=stored,
                references=dict(self._known_references(log, {file.path for file in stored})),
                generation=generation,
                keep=self._keep,
                aborted=tuple(aborted),
                pinned=(*self._pinned, *self._held, *bases),
                oldest_writer=oldest_writer,
                released=self._released,
            )
        classified = decide.classify(facts)
        # Once the metadata that names them is gone, nobody else knows that they were.
        self._released = classified.released & {file.path for file in stored}
        metadata = {layout.metadata_path(file.checkpoint, file.generation) for file in stored}
        doomed = decide.deletions(classified, metadata)
        try:
            for path in doomed:
                self._files.delete(path)
        finally:
            with self._lock:
                self._log_files.gone(doomed)
        for number in classified.history:
            self._log_files.delete(number)
        if self._cleanings % _STALE_EVERY == 0:
            self._files.remove_stale("")
        self._cleanings += 1
        return CleanReport(doomed, classified.retained, classified.broken)

    def _stored_files(self) -> Iterator[StoredFile]:
        for file in self._files.list(layout.CHECKPOINTS):
            owner = layout.checkpoint_file(file.path)
            if owner is not None:
                yield StoredFile(file.path, file.size, *owner)

    def _known_references(self, log: Log, paths: Collection[str]) -> Iterator[tuple[CheckpointId, References | None]]:
        """Metadata never changes, so each file is read once."""
        self._references = {entry: known for entry, known in self._references.items() if entry in log.completions}
        for entry in log.completions:
            if entry.metadata not in paths:
                continue
            if entry not in self._references:
                try:
                    self._references[entry] = needed_by(entry, self._metadata(entry))
                except (CorruptCheckpoint, UnknownFormat):
                    # Reported as broken by the cleaner, with its cause by `load`.
                    yield entry.checkpoint, None
                    continue
            yield entry.checkpoint, self._references[entry]

    # ---- statistics ----
    def record_statistics(self, *entries: Mapping[str, object]) -> None:
        """Keeps the figures of completed or failed checkpoints: anything that JSON can hold."""
        self._statistics.record(self._owned(), *entries)

    def statistics(self) -> list[dict[str, object]]:
        """Oldest first, those of earlier drivers included."""
        return list(self._statistics.read())


def job_of(files: Files) -> str:
    """The name of the job whose directory this is."""
    return _identified(files.read(layout.IDENTITY))


def _identified(content: memoryview) -> str:
    advice = "Put the file back from a copy of the directory, or choose another directory"
    return unseal(layout.IDENTITY, content, Identity, advice).job


def _completed_by(log: Log, checkpoint: CheckpointId, generation: Generation) -> bool:
    found = log.find(checkpoint)
    return found is not None and found.generation == generation
