"""What a subtask starts from, and the little that a task itself (not its operators) has to remember.

A task remembers two things, in a part beside those of its first operator. The watermarks of its input channels, so
that event time does not go back after a restore. And whether its input had ended, so that its operators do not
finish twice. At another parallelism a task begins with the lowest time of all former ones, and has ended if all had;
of the channels that are others now it knows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.core.handles import KeyGroupRange, PartHandle, PartKind
from penstock.core.ids import Attempt, ChannelId, CheckpointId, EdgeId, Generation, SubtaskId, Uid
from penstock.core.keygroups import range_of
from penstock.core.restore import TASK_PART
from penstock.core.settings import RuntimeSettings
from penstock.core.watermarks import END_OF_TIME, NO_TIME
from penstock.graph.job import JobGraph, OperatorSpec
from penstock.operators.base import Clock, OperatorContext
from penstock.state.parts import CapturedPart, RestoredPart

MEMORY_PART = TASK_PART
"""No operator's part is named so: names of states are Python identifiers."""

_CHANNEL_KINDS = (PartKind.INPUT_CHANNEL, PartKind.OUTPUT_CHANNEL)


@dataclass(frozen=True)
class RestoredSubtask:
    """The parts of one checkpoint that belong to one subtask."""

    checkpoint: CheckpointId
    parts: Mapping[Uid, Sequence[RestoredPart]] = field(default_factory=dict)
    """Of the operators (and of the task itself, under its first operator), without the channels'."""
    channels: Sequence[RestoredPart] = ()
    """Records in flight, of input and output channels."""
    finished: bool = False
    """The subtask had ended for good: it only ends its channels."""
    replays: Sequence[RestoredPart] = ()
    """Records in flight of reshaped edges, in the order in which the subtask replays those of its own keys."""
    former: int = 0
    """At another parallelism: from how many subtasks the state comes. 0: it is the same subtask's."""
    reshaped: frozenset[EdgeId] = frozenset()
    """Edges whose channels are not those of the checkpoint."""

    @classmethod
    def of(
        cls, checkpoint: CheckpointId, parts: Iterable[tuple[Uid, RestoredPart]], finished: bool = False
    ) -> RestoredSubtask:
        """Sorts the parts as they come from a checkpoint: by owner, and lower layers first."""
        channels: list[RestoredPart] = []
        by_uid: dict[Uid, list[RestoredPart]] = {}
        for uid, part in sorted(parts, key=lambda entry: entry[1].layer):
            (channels if part.kind in _CHANNEL_KINDS else by_uid.setdefault(uid, [])).append(part)
        return cls(checkpoint, by_uid, channels, finished)

    def operator_parts(self, uid: Uid) -> list[RestoredPart]:
        return [part for part in self.parts.get(uid, ()) if part.name != MEMORY_PART]

    def layers(self, uid: Uid, name: str, subtask: int, own: KeyGroupRange) -> list[PartHandle]:
        """The layers of a keyed state, if the subtask may go on from them with changes: all of the operator's were
        written by this subtask, for the same key groups, and are the job's own."""
        if self.former:
            return []
        keyed = [part for part in self.parts.get(uid, ()) if part.kind is PartKind.KEYED]
        if any(part.handle is None or part.subtask != subtask or part.key_groups != own for part in keyed):
            return []
        named = (part.handle for part in keyed if part.name == name and part.handle is not None)
        return [handle.seen_from_later(self.checkpoint) for handle in named]

    def memory(self, head: Uid, subtask: int) -> TaskMemory:
        parts = [part for part in self.parts.get(head, ()) if part.name == MEMORY_PART]
        if not self.former:
            parts = [part for part in parts if part.subtask == subtask]
        memories = [msgspec.json.decode(part.read(), type=TaskMemory) for part in parts]
        if not memories or len(memories) < self.former:
            return TaskMemory()  # one that had nothing to remember knew of no time
        channels = [] if self.former else [known for known in memories[0].channels if known[0] not in self.reshaped]
        # Operators of a task that has drained were at the end of time, whatever its channels had said.
        times = [END_OF_TIME if memory.drained and self.former else memory.time for memory in memories]
        return TaskMemory(all(memory.drained for memory in memories), min(times), channels)


class TaskMemory(msgspec.Struct, frozen=True):
    drained: bool = False
    time: int = NO_TIME
    channels: list[tuple[int, int, int, int, bool]] = []
    """Edge, source, target, watermark, idle."""

    def capture(self) -> list[CapturedPart]:
        if self == _NOTHING:
            return []
        return [CapturedPart(MEMORY_PART, PartKind.LIST, lambda: [msgspec.json.encode(self)], small=True)]

    @classmethod
    def of(cls, drained: bool, time: int, channels: Mapping[ChannelId, tuple[int, bool]]) -> TaskMemory:
        rows = [(int(c.edge), c.source, c.target, at, idle) for c, (at, idle) in channels.items()]
        return cls(drained, time, rows)

    def watermarks(self) -> dict[ChannelId, tuple[int, bool]]:
        return {ChannelId(EdgeId(edge), s, t): (time, idle) for edge, s, t, time, idle in self.channels}


_NOTHING = TaskMemory()


def operator_context(
    graph: JobGraph,
    subtask: SubtaskId,
    spec: OperatorSpec,
    restored: RestoredSubtask | None,
    clock: Clock,
    attempt: Attempt,
    generation: Generation,
    settings: RuntimeSettings,
    deployed_ms: int,
) -> OperatorContext:
    parallelism, total = graph.chain(subtask.chain).parallelism, graph.key_groups
    # A chain without keyed input may be wider than there are key groups; then it owns none.
    owned = range_of(total, parallelism, subtask.index)
    return OperatorContext(
        uid=spec.uid,
        name=spec.name,
        subtask=subtask.index,
        parallelism=parallelism,
        key_groups=owned,
        total_key_groups=total,
        attempt=attempt,
        generation=generation,
        clock=clock,
        restored=() if restored is None else restored.operator_parts(spec.uid),
        restored_checkpoint=None if restored is None else restored.checkpoint,
        rocksdb=settings.rocksdb,
        job=graph.name,
        same_share=restored is None or not restored.former,
        deployed_ms=deployed_ms,
    )
