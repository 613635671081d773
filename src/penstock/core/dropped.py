"""State in a checkpoint that a program no longer has, and the checkpoint without it.

State is never dropped silently: a program that lacks an operator or a state of the checkpoint is refused, unless its
user allows it. Then the checkpoint is restored as if that state had never been in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.core.handles import PartHandle, PartKind
from penstock.core.ids import Uid
from penstock.core.record import CheckpointRecord, GraphRecord, OperatorRecord

_CHANNELS = (PartKind.INPUT_CHANNEL, PartKind.OUTPUT_CHANNEL)


@dataclass(frozen=True)
class DroppedState:
    uid: Uid
    operator: str
    """What the operator was, for people."""
    state: str | None
    """None: all state of an operator that is gone."""

    def __str__(self) -> str:
        what = "all state" if self.state is None else f"the state {self.state!r}"
        return f"{what} of operator {self.uid!r} ({self.operator})"


def operators_of(graph: GraphRecord) -> dict[Uid, OperatorRecord]:
    return {operator.uid: operator for chain in graph.chains for operator in chain.operators}


def dropped_state(record: CheckpointRecord, graph: GraphRecord) -> list[DroppedState]:
    """What the checkpoint holds and the graph has no place for."""
    held = {handle.uid for entry in record.subtasks for handle in entry.handles if handle.kind not in _CHANNELS}
    now = operators_of(graph)
    dropped = []
    for uid, operator in operators_of(record.graph).items():
        if uid not in now:
            if operator.stateful and uid in held:
                dropped.append(DroppedState(uid, operator.name, None))
            continue
        kept = {state.name for state in now[uid].states}
        dropped += [DroppedState(uid, operator.name, s.name) for s in operator.states if s.name not in kept]
    return dropped


def without(record: CheckpointRecord, dropped: Sequence[DroppedState]) -> CheckpointRecord:
    """The checkpoint as if the dropped state had never been in it."""
    gone = {(one.uid, one.state) for one in dropped}

    def stays(handle: PartHandle) -> bool:
        lost = (handle.uid, None) in gone or (handle.uid, handle.name) in gone
        return handle.kind in _CHANNELS or not lost

    subtasks = tuple(
        replace(entry, handles=tuple(handle for handle in entry.handles if stays(handle))) for entry in record.subtasks
    )
    return replace(record, subtasks=subtasks)
