"""From a checkpoint's handles to what a subtask starts from, and to the records that it replays before any new input.

At another parallelism a subtask replays what was in flight on former channels, as far as the keys are its own now:
`core.redistribution` says which parts, and in which order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from penstock.core.handles import PartHandle
from penstock.core.ids import RECOVERED, EdgeId, SubtaskId, Uid
from penstock.graph.job import Edge, JobGraph, Partitioning
from penstock.runtime import channel_state
from penstock.runtime.control.messages import Restore
from penstock.runtime.restored import RestoredSubtask
from penstock.state.parts import RestoredPart
from penstock.store.files import Files
from penstock.store.parts import Copies
from penstock.store.parts import restored as restored_part


def read_restored(files: Files, restore: Restore, copies: Copies | None = None) -> RestoredSubtask:
    """What the subtask starts from; nothing is read before it is asked for."""

    def parts(written: Iterable[tuple[int, PartHandle]]) -> Iterator[tuple[Uid, RestoredPart]]:
        return (restored_part(files, restore.directory, writer, handle, copies) for writer, handle in written)

    return replace(
        RestoredSubtask.of(restore.checkpoint, parts(restore.handles), restore.finished),
        replays=[part for _, part in parts(restore.replays)],
        former=restore.former,
        reshaped=frozenset(restore.reshaped),
    )


def replayed(graph: JobGraph, subtask: SubtaskId, restored: RestoredSubtask) -> dict[EdgeId, list[pa.RecordBatch]]:
    """What the subtask replays, for each edge in the order of replay."""
    batches: dict[EdgeId, list[pa.RecordBatch]] = {}
    again = [part for part in restored.channels if part.channel is not None and part.channel.source == RECOVERED]
    for part in [*again, *restored.replays]:
        assert part.channel is not None, f"part {part.name} of {subtask} names no channel"
        edge = graph.edges[part.channel.edge]
        rows = channel_state.rows_of(part, edge.schema)
        batches.setdefault(edge.id, []).extend(_own_rows(graph, edge, subtask, rows))
    return batches


def _own_rows(graph: JobGraph, edge: Edge, subtask: SubtaskId, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if edge.partitioning is not Partitioning.HASH:
        return batches
    from penstock.kernels.partition import partition  # the kernels take long to load: only for those who need them

    width = graph.chain(subtask.chain).parallelism
    shares = (partition(batch, edge.key, graph.key_groups, width)[subtask.index] for batch in batches)
    return [share for share in shares if share is not None]
