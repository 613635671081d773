"""The metadata of checkpoints as documents, put together from what is known of the checkpoint before.

Metadata names all layers of all parts, of which there may be hundreds, though from one checkpoint to the next only a
few are new. A writer remembers of every subtask the *run* of layers that its last record began with, how these are
written and which files they need: mostly the next record begins with the same ones. It also remembers how the graph is
written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.core.handles import PartHandle
from penstock.core.ids import SubtaskId
from penstock.core.record import CheckpointRecord, GraphRecord, SubtaskRecord
from penstock.core.store import Completed, References
from penstock.store import layout
from penstock.store.documents import CommittablesFile, Metadata, enclose

_BETWEEN = b",\n   "


@dataclass(slots=True)
class _Run:
    """Handles that follow each other, how they are written, and the files that they need in which length."""

    handles: list[PartHandle] = field(default_factory=list)
    text: bytearray = field(default_factory=bytearray)
    needs: dict[str, int] = field(default_factory=dict)

    def add(self, handles: Sequence[PartHandle], directory: str) -> None:
        for handle in handles:
            self.text += (_BETWEEN if self.handles else b"") + msgspec.json.encode(handle)
            self.handles.append(handle)
            path, end = _needed(handle, directory)
            if path and self.needs.get(path, 0) < end:
                self.needs[path] = end


class MetadataWriter:
    def __init__(self) -> None:
        self._runs: dict[SubtaskId, _Run] = {}
        self._graph: tuple[GraphRecord, msgspec.Raw] | None = None

    def document(self, record: CheckpointRecord, committables: CommittablesFile | None) -> tuple[bytes, References]:
        """The document, and what the checkpoint needs beside its metadata."""
        directory = layout.checkpoint_directory(record.checkpoint)
        needs: dict[str, int] = {}
        subtasks = [self._subtask(subtask, directory, needs) for subtask in record.subtasks]
        named = {subtask.subtask for subtask in record.subtasks}
        self._runs = {subtask: run for subtask, run in self._runs.items() if subtask in named}
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

    def _subtask(self, subtask: SubtaskRecord, directory: str, needs: dict[str, int]) -> dict[str, object]:
        run, rest = self._run(subtask, directory), _Run()
        rest.add(subtask.handles[len(run.handles) :], directory)
        between = _BETWEEN if run.handles and rest.handles else b""
        for own in (run.needs, rest.needs):
            shared = {path: max(end, needs[path]) for path, end in own.items() if path in needs}
            needs.update(own)
            needs.update(shared)
        return {
            "subtask": subtask.subtask,
            "handles": msgspec.Raw(b"".join((b"[", run.text, between, rest.text, b"]"))),
            "figures": subtask.figures,
            "drained": subtask.drained,
            "finished": subtask.finished,
        }

    def _run(self, subtask: SubtaskRecord, directory: str) -> _Run:
        """The layers that the record begins with. They are written the same way whichever checkpoint names them."""
        handles = subtask.handles
        run = self._runs.get(subtask.subtask)
        if run is None or list(handles[: len(run.handles)]) != run.handles:
            run = self._runs[subtask.subtask] = _Run()
        begin = end = len(run.handles)
        while end < len(handles) and handles[end].origin is not None:
            end += 1
        run.add(handles[begin:end], directory)
        return run

    def _graph_text(self, graph: GraphRecord) -> msgspec.Raw:
        if self._graph is None or self._graph[0] is not graph:
            self._graph = (graph, msgspec.Raw(msgspec.json.encode(graph)))
        return self._graph[1]


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
