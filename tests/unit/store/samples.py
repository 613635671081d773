"""A small job and what it writes, for the tests of the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.core.barrier import Mode, Purpose
from penstock.core.handles import PartKind
from penstock.core.ids import Attempt, ChainId, CheckpointId, Generation, SubtaskId, Uid
from penstock.core.record import (
    ChainRecord,
    CheckpointRecord,
    EdgeRecord,
    GraphRecord,
    OperatorRecord,
    SubtaskRecord,
)
from penstock.simulation.files import MemoryFiles
from penstock.state.parts import CapturedPart
from penstock.store import layout
from penstock.store.checkpoints import CheckpointStore
from penstock.store.files import Files
from penstock.store.parts import reader, write_parts

JOB = "orders"
SOURCE, SINK = ChainId("read"), ChainId("total")
GRAPH = GraphRecord(
    JOB,
    128,
    (
        ChainRecord(SOURCE, 2, (OperatorRecord(Uid("read"), "source", True),)),
        ChainRecord(SINK, 1, (OperatorRecord(Uid("total"), "reduce", True), OperatorRecord(Uid("out"), "sink", False))),
    ),
    (EdgeRecord(SOURCE, SINK, "hash"),),
)
SUBTASKS = (SubtaskId(SOURCE, 0), SubtaskId(SOURCE, 1), SubtaskId(SINK, 0))


class Crash(BaseException):
    """The driver's process dies: nothing may catch this."""


def part(name: str, content: bytes, kind: PartKind = PartKind.LIST) -> CapturedPart:
    return CapturedPart(name, kind, lambda: [content])


def write_data(files: Files, checkpoint: int, generation: int, attempt: int = 1) -> list[SubtaskRecord]:
    """What the workers do for a checkpoint: a data file for every subtask."""
    subtasks = []
    for subtask in SUBTASKS:
        path = layout.data_path(CheckpointId(checkpoint), Generation(generation), Attempt(attempt), subtask, 0)
        parts = {Uid(subtask.chain): [part("state", content_of(checkpoint, subtask))]}
        subtasks.append(SubtaskRecord(subtask, tuple(write_parts(files, path, parts))))
    return subtasks


def content_of(checkpoint: int, subtask: SubtaskId) -> bytes:
    return f"{checkpoint} of {subtask}".encode() * 3


def record_of(
    checkpoint: int,
    generation: int,
    subtasks: Sequence[SubtaskRecord],
    committables: Mapping[Uid, Sequence[bytes]] | None = None,
) -> CheckpointRecord:
    return CheckpointRecord(
        CheckpointId(checkpoint),
        Generation(generation),
        Attempt(1),
        Mode.ALIGNED,
        Purpose.CHECKPOINT,
        1_000,
        1_010,
        GRAPH,
        tuple(subtasks),
        committables or {Uid("out"): (b"one \x00\xff", f"{checkpoint}".encode())},
    )


def take(store: CheckpointStore, files: Files, checkpoint: int, generation: int) -> CheckpointRecord:
    """A checkpoint from the first data file to completion."""
    record = record_of(checkpoint, generation, write_data(files, checkpoint, generation))
    store.complete(record)
    return record


def read_all(files: Files, record: CheckpointRecord) -> dict[SubtaskId, bytes]:
    """The state of every subtask, read and verified as a restore does it."""
    directory = CheckpointStore.directory_of(record.checkpoint)
    return {
        entry.subtask: bytes(reader(files, directory, handle)())
        for entry in record.subtasks
        for handle in entry.handles
    }


def expected(checkpoint: int) -> dict[SubtaskId, bytes]:
    return {subtask: content_of(checkpoint, subtask) for subtask in SUBTASKS}


def paths(files: Files, directory: str = "") -> list[str]:
    return [file.path for file in files.list(directory)]


def operations(action: Callable[[MemoryFiles], object], files: MemoryFiles) -> int:
    """How many operations the action takes."""
    seen = 0

    def count(operation: str, path: str) -> None:
        nonlocal seen
        seen += 1

    files.before = count
    action(files)
    return seen


def crash_at(number: int, error: BaseException | None = None) -> Callable[[str, str], None]:
    """A hook that lets operation `number` (from 0) die before it has any effect, and all after it."""
    seen = 0

    def hook(operation: str, path: str) -> None:
        nonlocal seen
        seen += 1
        if seen > number:
            raise error or Crash(f"{operation} {path}")

    return hook
