"""A checkpoint as a whole: what the coordinator gathers, the store writes and a restore reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.core.barrier import Mode, Purpose
from penstock.core.handles import KeyGroupRange, PartHandle, SnapshotFigures
from penstock.core.ids import Attempt, ChainId, CheckpointId, Generation, SubtaskId, Uid
from penstock.core.keygroups import range_of


@dataclass(frozen=True)
class StateRecord:
    """A state that an operator declares."""

    name: str
    kind: str
    description: Mapping[str, Any]
    """Of the type of what is stored, see the format of keyed state."""


@dataclass(frozen=True)
class OperatorRecord:
    uid: Uid
    name: str
    stateful: bool
    states: Sequence[StateRecord] = ()
    """Those whose type the program declares; operators may store more."""
    key: Sequence[str] = ()
    """Of an operator with state per key: name and type of every column of the key, as `user: string`."""


@dataclass(frozen=True)
class ChainRecord:
    id: ChainId
    parallelism: int
    operators: Sequence[OperatorRecord]


@dataclass(frozen=True)
class EdgeRecord:
    source: ChainId
    target: ChainId
    partitioning: str
    target_input: int = 0
    key: Sequence[str] = ()
    columns: Sequence[str] = ()
    """Name and type of every column, as `amount: int64`: records in flight are stored without them."""


@dataclass(frozen=True)
class GraphRecord:
    """The shape of the job that took the checkpoint: enough to say whether another graph can restore from it."""

    job: str
    key_groups: int
    chains: Sequence[ChainRecord]
    edges: Sequence[EdgeRecord]
    dealt_groups: int = 0
    """By how many key groups the subtasks had shared the keys when they wrote their parts; 0: by `key_groups`. Others
    only where the groups were raised afterwards."""

    def written_range(self, parallelism: int, index: int) -> KeyGroupRange:
        """The key groups, as they are numbered now, that subtask `index` of `parallelism` owned when it wrote."""
        dealt = range_of(self.dealt_groups or self.key_groups, parallelism, index)
        factor = self.key_groups // (self.dealt_groups or self.key_groups)
        return KeyGroupRange(dealt.start * factor, dealt.end * factor)

    def moves_keys(self, parallelism: int) -> bool:
        """Whether, even at the parallelism that it had, an operator's subtasks own other keys than when they wrote:
        raised groups are dealt more evenly, unless the former ones were even already."""
        return bool(self.dealt_groups) and self.dealt_groups % parallelism != 0


@dataclass(frozen=True)
class SubtaskRecord:
    subtask: SubtaskId
    handles: Sequence[PartHandle] = ()
    figures: SnapshotFigures = field(default_factory=SnapshotFigures)
    drained: bool = False
    """The snapshot was taken after its input had ended."""
    finished: bool = False
    """The subtask had ended for good before the checkpoint: it has no handles and restores as finished."""


@dataclass(frozen=True)
class CheckpointRecord:
    checkpoint: CheckpointId
    generation: Generation
    attempt: Attempt
    mode: Mode
    purpose: Purpose
    triggered_ms: int
    """Wall clock, milliseconds since the epoch."""
    completed_ms: int
    graph: GraphRecord
    subtasks: Sequence[SubtaskRecord]
    """Every subtask of the graph."""
    committables: Mapping[Uid, Sequence[bytes]] = field(default_factory=dict)
    """Of the sinks: committed after the checkpoint is complete, and again after a restore from it."""
