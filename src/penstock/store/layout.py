"""The names of everything in a job's checkpoint directory. No other module builds or takes apart such a name.

    penstock.json                                                   whose directory this is
    log/0000000001.json                                             the log of claims and completions
    checkpoints/<id>/g<generation>-a<attempt>-<chain>-<index>-<ticket>.data
    checkpoints/<id>/g<generation>-a<attempt>.w<slot>-<ticket>-<number>.data   shared by the subtasks of a worker
    checkpoints/<id>/g<generation>-adopted-<number>.data            of one that began elsewhere (see savepoints)
    checkpoints/<id>/g<generation>.committables                     if there are many
    checkpoints/<id>/g<generation>.json                             the metadata
    statistics/g<generation>-<number>.jsonl

Data files carry generation, attempt and ticket, so that what a dead run still writes never meets a file of a living
one.
"""

from __future__ import annotations

import hashlib
import re

from penstock.core.handles import PartHandle
from penstock.core.ids import Attempt, CheckpointId, Generation, SubtaskId

IDENTITY = "penstock.json"
LOG = "log"
CHECKPOINTS = "checkpoints"
STATISTICS = "statistics"

_LOG_ENTRY = re.compile(r"log/(\d{10,})\.json")
_CHECKPOINT_FILE = re.compile(r"checkpoints/(\d+)/g(\d+)(?:-a(\d+)[-.].+|[-.].+)")
_STATISTICS_FILE = re.compile(r"statistics/g(\d+)-(\d+)\.jsonl")
_LONGEST_CHAIN = 100


def log_path(number: int) -> str:
    return f"{LOG}/{number:010d}.json"


def log_number(path: str) -> int | None:
    """The entry's number; None for a file that is no log entry."""
    match = _LOG_ENTRY.fullmatch(path)
    return int(match[1]) if match else None


def checkpoint_directory(checkpoint: CheckpointId) -> str:
    return f"{CHECKPOINTS}/{checkpoint}"


def checkpoint_file(path: str) -> tuple[CheckpointId, Generation, Attempt | None] | None:
    """Whose file it is, with the attempt where a subtask wrote it; None for a file that Penstock did not write."""
    match = _CHECKPOINT_FILE.fullmatch(path)
    if match is None:
        return None
    attempt = None if match[3] is None else Attempt(int(match[3]))
    return CheckpointId(int(match[1])), Generation(int(match[2])), attempt


def data_path(
    checkpoint: CheckpointId, generation: Generation, attempt: Attempt, subtask: SubtaskId, ticket: int
) -> str:
    name = f"g{generation}-a{attempt}-{_safe(subtask.chain)}-{subtask.index}-{ticket}.data"
    return f"{checkpoint_directory(checkpoint)}/{name}"


def shared_path(
    checkpoint: CheckpointId, generation: Generation, attempt: Attempt, slot: int, ticket: int, number: int
) -> str:
    """Of the n-th file that the subtasks of the worker in a slot share. No `data_path` has a dot there."""
    return f"{checkpoint_directory(checkpoint)}/g{generation}-a{attempt}.w{slot}-{ticket}-{number}.data"


def part_path(directory: str, handle: PartHandle) -> str:
    """Of the file that holds a part. `directory` is that of the checkpoint that names it."""
    home = directory if handle.origin is None else checkpoint_directory(handle.origin)
    return f"{home}/{handle.path}" if home else handle.path


def adopted_path(checkpoint: CheckpointId, generation: Generation, number: int) -> str:
    """Of the n-th data file of a checkpoint that was copied in from elsewhere."""
    return f"{checkpoint_directory(checkpoint)}/g{generation}-adopted-{number}.data"


def committables_path(checkpoint: CheckpointId, generation: Generation) -> str:
    return f"{checkpoint_directory(checkpoint)}/g{generation}.committables"


def metadata_path(checkpoint: CheckpointId, generation: Generation) -> str:
    return f"{checkpoint_directory(checkpoint)}/g{generation}.json"


def statistics_path(generation: Generation, number: int) -> str:
    return f"{STATISTICS}/g{generation}-{number:06d}.jsonl"


def statistics_order(path: str) -> tuple[int, int] | None:
    """Sorts statistics files by age; None for a file that is none."""
    match = _STATISTICS_FILE.fullmatch(path)
    return (int(match[1]), int(match[2])) if match else None


def _safe(chain: str) -> str:
    """A chain's id as part of a file name. What had to be replaced or cut is told apart by a digest of the whole."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", chain)[:_LONGEST_CHAIN]
    return plain if plain == chain else f"{plain}~{hashlib.sha256(chain.encode()).hexdigest()[:12]}"
