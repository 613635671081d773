"""Which subtasks take part in a checkpoint, and how, when some have already finished.

Theory of operation
-------------------
While all subtasks run, barriers start at the sources. A subtask with bounded input finishes earlier than others, and
no barrier can start at or pass through one that has ended. So barriers start at every *running* subtask none of whose
predecessors along the channels still runs: at the start these are the sources, later also subtasks whose inputs have
all ended. Every running subtask acknowledges; a finished one is recorded as finished, and a restore starts it as
finished.

The plan can be outdated when it arrives: a subtask may have ended after the coordinator last heard of it. It then
declines with `SUBTASK_FINISHED`; the coordinator aborts the checkpoint and plans it again at once with what it knows
now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.core.ids import SubtaskId


@dataclass(frozen=True)
class Topology:
    """The subtasks of a job and how channels connect them."""

    subtasks: tuple[SubtaskId, ...]
    predecessors: Mapping[SubtaskId, frozenset[SubtaskId]]
    """The senders of each subtask's input channels; a source has none."""


@dataclass(frozen=True)
class Plan:
    trigger: tuple[SubtaskId, ...]
    """Where barriers start."""
    acknowledge: tuple[SubtaskId, ...]
    """All that run."""
    finished: tuple[SubtaskId, ...]


def plan_checkpoint(topology: Topology, finished: Collection[SubtaskId]) -> Plan:
    running = tuple(subtask for subtask in topology.subtasks if subtask not in finished)
    return Plan(
        trigger=tuple(subtask for subtask in running if topology.predecessors[subtask].issubset(finished)),
        acknowledge=running,
        finished=tuple(subtask for subtask in topology.subtasks if subtask in finished),
    )
