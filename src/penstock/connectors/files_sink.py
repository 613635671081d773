"""Files as a sink, with two-phase commit: whoever reads the target directory sees each committed record exactly once.

Theory of operation. Writers write *pending* files into an area beside the target that no reader of the target looks
into (`orders/` has its pending files in `_orders.pending/`: Polars, given a directory, reads hidden names below it
too). At a barrier a writer closes its file and names it, with the final name, in a committable; the file is finished
and synced off the task's thread, before the checkpoint is acknowledged. When the checkpoint is complete, the committer
moves every file to its final name, which is atomic, so that a reader sees all of a file or nothing.

A pending file's name tells who wrote it (generation, attempt, subtask), so that leftovers of a dead attempt are known;
a final name carries the checkpoint that first named it, for order, and a token of the writer, so that no two runs ever
choose the same.

Before its first move a commit notes the final names in the area's `committed.json`. So it can tell three cases apart
when it is repeated and a pending file is gone: the final file is there (moved), it is noted (moved, and since then
taken away by somebody who consumes the target), or neither: output is lost, and that is an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa

from penstock.connectors.base import Committer, SinkWriter
from penstock.connectors.encoders import FORMATS, check_schema
from penstock.connectors.outfile import OutputFile
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.operators.base import OperatorContext
from penstock.state.parts import Buffer, CapturedPart, PartKind
from penstock.store import files as store_files

_COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "brotli", "none")
_NOTED = 1000
"""How many final names `committed.json` remembers at least: more than the retained checkpoints will ever name."""


class LostOutput(OSError):
    """A complete checkpoint names output that is neither pending nor in the target."""


class _Prepared(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A committable. Paths are relative to the target's parent directory."""

    pending: str
    final: str
    rows: int


class _Committed(msgspec.Struct, frozen=True):
    """What `committed.json` holds."""

    format: int
    files: list[str]


class Files:
    """`Files("out/orders", format="parquet")`: committed files `part-<checkpoint>-<subtask>-...` in the directory.

    `roll_bytes`: a file that has grown to this size is followed by the next one, also between two checkpoints.
    `compression`: of Parquet's pages.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str = "parquet",
        *,
        roll_bytes: int = 128 << 20,
        compression: str = "zstd",
        files: store_files.Files | None = None,
    ):
        if format not in FORMATS:
            raise ValueError(f"sinks.Files: format must be one of {', '.join(FORMATS)}, not {format!r}")
        if roll_bytes < 1:
            raise ValueError(f"sinks.Files: roll_bytes must be above 0, not {roll_bytes}")
        if compression not in _COMPRESSIONS:
            raise ValueError(f"sinks.Files: compression must be one of {', '.join(_COMPRESSIONS)}, not {compression!r}")
        target = _absolute(os.fspath(path))
        self._root, _, self._name = target.rpartition("/")
        if not self._name or self._root.endswith(":/"):
            raise ValueError(f"sinks.Files: {path} is no directory that has a parent; write to a directory below it")
        self._format, self._roll_bytes, self._compression = format, roll_bytes, compression
        self._files = files
        self._area = f"_{self._name}.pending"
        if files is None and _is_confined(target):
            self._area = f"{self._name}/_pending"

    def writer(self) -> SinkWriter:
        return _FilesWriter(self)

    def committer(self, uid: Uid, job: str) -> Committer:
        return _FilesCommitter(self.open(), self._name, self.area(job, uid))

    def check(self, schema: pa.Schema) -> None:
        check_schema(self._format, schema)
        target = f"{self._root}/{self._name}"
        if self._files is None and "://" not in target and os.path.exists(target) and not os.path.isdir(target):
            raise ValueError(f"sinks.Files: {target} is a file; the target has to be a directory")

    def open(self) -> store_files.Files:
        """The file system, opened on the target's parent."""
        if self._files is not None:
            return self._files
        from penstock.store.opening import open_files

        return open_files(self._root or "/")

    def area(self, job: str, uid: Uid) -> str:
        """Where the pending files of one sink of one job are."""
        return f"{self._area}/{quote(job, safe='')}/{quote(uid, safe='')}"

    def new_file(self, files: store_files.Files, path: str, schema: pa.Schema) -> OutputFile:
        return OutputFile(files, path, schema, self._format, self._compression)

    @property
    def suffix(self) -> str:
        return f".{self._format}"

    @property
    def roll_bytes(self) -> int:
        return self._roll_bytes


def _absolute(path: str) -> str:
    """Workers may have another working directory than the driver."""
    if path.startswith("file://"):
        path = unquote(path.removeprefix("file://").removeprefix("localhost"))
    if "://" in path:
        return path.rstrip("/")
    return os.path.abspath(path) if path else ""


def _is_confined(target: str) -> bool:
    """Whether the pending files have to be below the target: a move to another device is no move, and not everybody who
    may write into the target may write beside it."""
    if "://" in target or not os.path.isdir(target):
        return False
    return os.path.ismount(target) or not os.access(os.path.dirname(target), os.W_OK)


class _FilesWriter(SinkWriter):
    """One file is open at a time; what was rolled waits for the barrier, what was named waits to be sealed."""

    def __init__(self, sink: Files):
        self._sink = sink
        self._open: OutputFile | None = None
        self._rolled: list[OutputFile] = []
        self._named: list[OutputFile] = []
        self._number = 0

    def open(self, context: OperatorContext) -> None:
        self._files = self._sink.open()
        area = self._sink.area(context.job, context.uid)
        who = f"{context.job}/{context.uid}/{context.generation}/{context.attempt}/{context.subtask}"
        self._token = blake2b(f"{who}/{context.clock.wall_ms()}".encode(), digest_size=6).hexdigest()
        self._subtask = context.subtask
        self._prefix = f"{area}/g{context.generation}-a{context.attempt}-s{context.subtask}"

    def write(self, batch: pa.RecordBatch) -> None:
        self._check_sealed()
        if self._open is None:
            self._number += 1
            path = f"{self._prefix}-{self._number:06d}-{self._token}{self._sink.suffix}.pending"
            self._open = self._sink.new_file(self._files, path, batch.schema)
        self._open.write(batch)
        if self._open.bytes >= self._sink.roll_bytes:
            self._roll()

    def prepare(self, checkpoint: CheckpointId) -> Sequence[bytes]:
        self._check_sealed()
        self._roll()
        prepared = [
            _Prepared(file.path, self._final_name(checkpoint, number), file.rows)
            for number, file in enumerate(self._rolled)
        ]
        self._named = [file for file in self._named if not file.sealed] + self._rolled
        self._rolled = []
        return [msgspec.msgpack.encode(each) for each in prepared]

    def capture(self) -> Sequence[CapturedPart]:
        if not self._named:
            return ()
        named = tuple(self._named)

        def encode() -> Sequence[Buffer]:
            for file in named:
                file.seal()
            report = [{"file": file.path, "rows": file.rows, "bytes": file.bytes} for file in named]
            return (msgspec.json.encode(report),)

        return (CapturedPart("files", PartKind.LIST, encode),)

    def finish(self) -> None:
        self._roll()
        for file in (*self._named, *self._rolled):
            file.seal()

    def close(self) -> None:
        unnamed = [*self._rolled, *([self._open] if self._open is not None else [])]
        for file in unnamed:
            file.abandon()

    def _roll(self) -> None:
        if self._open is not None:
            self._rolled.append(self._open)
            self._open = None

    def _check_sealed(self) -> None:
        """A file that could not be sealed can never be committed: only a restart from the last checkpoint helps."""
        for file in self._named:
            file.raise_failure()

    def _final_name(self, checkpoint: CheckpointId, number: int) -> str:
        return f"part-{checkpoint:08d}-{self._subtask:04d}-{number:04d}-{self._token}{self._sink.suffix}"


class _FilesCommitter:
    def __init__(self, files: store_files.Files, target: str, area: str):
        self._files = files
        self._target = target
        self._area = area
        self._log = f"{area}/committed.json"
        self._attempt = (0, 0)

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        prepared = [msgspec.msgpack.decode(committable, type=_Prepared) for committable in committables]
        if not prepared:
            return
        pending = {info.path for info in self._files.list(self._area)}
        noted = self._noted()
        self._check_found(checkpoint, prepared, pending, set(noted))
        to_move = [each for each in prepared if each.pending in pending]
        if to_move:
            self._note(noted, prepared)
            for each in to_move:
                self._move(checkpoint, each)
        self._remove_leftovers(pending - {each.pending for each in prepared}, self._attempt)

    def recover(
        self,
        checkpoint: CheckpointId | None,
        committables: Sequence[bytes],
        generation: Generation,
        attempt: Attempt,
    ) -> None:
        if checkpoint is not None:
            self.commit(checkpoint, committables)
        # The attempt has not started: even what bears its own number is a leftover, of a run that counted the same.
        self._remove_leftovers((info.path for info in self._files.list(self._area)), (generation, attempt + 1))
        self._attempt = (generation, attempt)

    def close(self) -> None:
        try:
            self._remove_leftovers((info.path for info in self._files.list(self._area)), self._attempt)
        except OSError:
            # What is left is invisible to readers and goes with the next start of the job.
            return

    def _check_found(
        self, checkpoint: CheckpointId, prepared: Sequence[_Prepared], pending: set[str], noted: set[str]
    ) -> None:
        unknown = [each for each in prepared if each.final not in noted]
        there = {each.final: self._files.exists(f"{self._target}/{each.final}") for each in unknown}
        for each in unknown:
            if each.pending in pending and there[each.final]:
                raise FileExistsError(
                    f"checkpoint {checkpoint} is to commit {each.pending} as {self._target}/{each.final}, but a file of"
                    " that name is there and was not written by this job: it is not replaced. Move it away and restart"
                    " the job"
                )
        lost = [each for each in unknown if each.pending not in pending and not there[each.final]]
        if lost:
            raise _lost(checkpoint, lost, self._target)

    def _move(self, checkpoint: CheckpointId, each: _Prepared) -> None:
        final = f"{self._target}/{each.final}"
        try:
            self._files.move(each.pending, final)
        except FileNotFoundError:
            # Another driver that recovers from the same checkpoint may have been faster.
            if not self._files.exists(final):
                raise _lost(checkpoint, [each], self._target) from None

    def _noted(self) -> list[str]:
        if not self._files.exists(self._log):
            return []
        return msgspec.json.decode(self._files.read(self._log), type=_Committed).files

    def _note(self, noted: Sequence[str], prepared: Sequence[_Prepared]) -> None:
        names = list(dict.fromkeys([*noted, *(each.final for each in prepared)]))
        content = _Committed(1, names[-max(_NOTED, len(prepared)) :])
        self._files.write(self._log, [msgspec.json.encode(content)])

    def _remove_leftovers(self, paths: Iterable[str], before: tuple[int, int]) -> None:
        for path in paths:
            writer = _writer_of(path)
            if writer is not None and writer < before:
                self._files.delete(path)


def _writer_of(path: str) -> tuple[int, int] | None:
    """The generation and attempt in a pending file's name; None for other files."""
    fields = path.rpartition("/")[2].split("-")
    try:
        if path.endswith(".pending") and fields[0][0] == "g" and fields[1][0] == "a":
            return int(fields[0][1:]), int(fields[1][1:])
    except (IndexError, ValueError):
        return None
    return None


def _lost(checkpoint: CheckpointId, lost: Sequence[_Prepared], target: str) -> LostOutput:
    names = ", ".join(f"{each.pending} ({each.rows} rows, to be {target}/{each.final})" for each in lost[:5])
    more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
    return LostOutput(
        f"checkpoint {checkpoint} is complete, but output that it names is neither pending nor in the target:"
        f" {names}{more}. Something outside of the job removed it. Restore those files, or start from an older"
        " checkpoint or from scratch"
    )
