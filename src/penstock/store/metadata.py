"""The metadata of checkpoints as documents, put together from what is known of the checkpoint before.

Metadata names all layers of all parts, of which there may be hundreds, though from one checkpoint to the next only a
few are new. A writer remembers of every handle how it is written and which file it needs, as long as checkpoints name
it, and of the graph how it is written.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from penstock.core.handles import PartHandle
from penstock.core.record import CheckpointRecord, GraphRecord, SubtaskRecord
from penstock.core.store import Completed, References
from penstock.store import layout
from penstock.store.documents import CommittablesFile, Metadata, enclose

_BETWEEN = b",\n   "


class _Known(NamedTuple):
    handle: PartHandle
    """Holding it keeps its identity, by which it is known, from being used again."""
    text: bytes
    path: str
    """Of the file that it needs; empty: it needs none."""
    end: int


class MetadataWriter:
    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._graph: tuple[GraphRecord, msgspec.Raw] | None = None

    def document(self, record: CheckpointRecord, committables: CommittablesFile | None) -> tuple[bytes, References]:
        """The document, and what the checkpoint needs beside its metadata."""
        directory = layout.checkpoint_directory(record.checkpoint)
        known: dict[int, _Known] = {}
        needs: dict[str, int] = {}
        subtasks = [self._subtask(subtask, directory, known, needs) for subtask in record.subtasks]
        # What this checkpoint does not name, hardly any later one will.
        self._known = {place: one for place, one in known.items() if one.handle.origin is not None}
        if committables is not None and committables.path:
            needs[f"{directory}/{committables.path}"] = committables.length
        body = {
            "checkpoint": record.checkpoint,
            "generation": record.generation,
            "attempt": record.attempt,
            "mode": record.mode,
            "purpose": record.purpose,
            "triggered_ms": record.triggered_ms,
            "completed_ms": record.completed_ms,
            "graph": self._graph_text(record.graph),
            "subtasks": subtasks,
            "committables": committables,
        }
        return enclose(msgspec.json.encode(body)), needs

    def _subtask(
        self, subtask: SubtaskRecord, directory: str, known: dict[int, _Known], needs: dict[str, int]
    ) -> dict[str, object]:
        texts = []
        for handle in subtask.handles:
            one = self._known.get(id(handle)) or _look_at(handle, directory)
            known[id(handle)] = one
            texts.append(one.text)
            if one.path and needs.get(one.path, 0) < one.end:
                needs[one.path] = one.end
        return {
            "subtask": subtask.subtask,
            "handles": msgspec.Raw(b"[" + _BETWEEN.join(texts) + b"]"),
            "figures": subtask.figures,
            "drained": subtask.drained,
            "finished": subtask.finished,
        }

    def _graph_text(self, graph: GraphRecord) -> msgspec.Raw:
        if self._graph is None or self._graph[0] is not graph:
            self._graph = (graph, msgspec.Raw(msgspec.json.encode(graph)))
        return self._graph[1]


def _look_at(handle: PartHandle, directory: str) -> _Known:
    path, end = _needed(handle, directory)
    return _Known(handle, msgspec.json.encode(handle), path, end)


def _needed(handle: PartHandle, directory: str) -> tuple[str, int]:
    return (
        ("", 0) if handle.inline is not None else (layout.part_path(directory, handle), handle.offset + handle.length)
    )


def needed_by(entry: Completed, metadata: Metadata) -> References:
    """Every file that a checkpoint needs, in the length that it must have at least."""
    directory = layout.checkpoint_directory(entry.checkpoint)
    needs = {entry.metadata: 0}
    for subtask in metadata.subtasks:
        for handle in subtask.handles:
            path, end = _needed(handle, directory)
            if path and needs.get(path, 0) < end:
                needs[path] = end
    if metadata.committables is not None and metadata.committables.path:
        needs[f"{directory}/{metadata.committables.path}"] = metadata.committables.length
    return needs
