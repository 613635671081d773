"""Whether a checkpoint fits a graph, and which of its parts each subtask of that graph gets.

State belongs to operators, found again by uid; in-flight records belong to channels. `check_fits` refuses what would
lose or misplace either, `plan_restore` deals the parts out by their kind:

- `KEYED`: to every subtask that owns at least one of the part's key groups (none given: any), whoever wrote it;
- `LIST`: to the subtask of the same index; `UNION`: to all; `BROADCAST`: one copy to each;
- `INPUT_CHANNEL`, `OUTPUT_CHANNEL`: to the receiving or sending end of the channel.

Operators may move between chains and new operators may appear; they start empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.core.handles import KeyGroupRange, PartHandle, PartKind
from penstock.core.ids import ChainId, CheckpointId, SubtaskId, Uid
from penstock.core.keygroups import range_of
from penstock.core.record import ChainRecord, CheckpointRecord, EdgeRecord, GraphRecord, SubtaskRecord

_CHANNELS = (PartKind.INPUT_CHANNEL, PartKind.OUTPUT_CHANNEL)


class DoesNotFit(Exception):
    """The checkpoint cannot be restored into this graph; the message says what differs and what to do."""


@dataclass(frozen=True, slots=True)
class SubtaskRestore:
    checkpoint: CheckpointId
    handles: tuple[tuple[int, PartHandle], ...]
    """With the index of the subtask that wrote each."""
    finished: bool
    """The subtask had ended for good: it has no handles and only ends its channels."""


class _Stored:
    """The checkpoint, by operator and subtask."""

    def __init__(self, record: CheckpointRecord) -> None:
        self.subtasks: dict[SubtaskId, SubtaskRecord] = {entry.subtask: entry for entry in record.subtasks}
        self.chains: dict[Uid, ChainRecord] = {
            operator.uid: chain for chain in record.graph.chains for operator in chain.operators
        }
        self.parts: dict[Uid, list[tuple[int, PartHandle]]] = {}
        self.in_flight: list[tuple[int, PartHandle]] = []
        for entry in record.subtasks:
            for handle in entry.handles:
                written = (entry.subtask.index, handle)
                if handle.kind in _CHANNELS:
                    self.in_flight.append(written)
                else:
                    self.parts.setdefault(handle.uid, []).append(written)


# ---- does it fit? ----
def check_fits(record: CheckpointRecord, graph: GraphRecord) -> None:
    """Raises `DoesNotFit` unless `plan_restore` can give every part of the checkpoint to its owner."""
    where = f"checkpoint {record.checkpoint}"
    stored = _Stored(record)
    if record.graph.job != graph.job:
        raise DoesNotFit(
            f"{where} belongs to job {record.graph.job!r}, this is job {graph.job!r}. "
            "Give this job a checkpoint directory of its own, or its old name back."
        )
    if record.graph.key_groups != graph.key_groups:
        raise DoesNotFit(
            f"{where} was taken with key_groups={record.graph.key_groups}, the job has key_groups={graph.key_groups}. "
            f"Key groups are fixed for a job's life: set key_groups={record.graph.key_groups}."
        )
    _check_whole(where, record, stored)
    _check_no_state_is_lost(where, stored, graph)
    _check_parallelism(where, stored, graph)
    _check_finished(where, stored, graph)
    _check_in_flight(where, record, stored, graph)


def _check_whole(where: str, record: CheckpointRecord, stored: _Stored) -> None:
    for chain in record.graph.chains:
        for index in range(chain.parallelism):
            if SubtaskId(chain.id, index) not in stored.subtasks:
                raise DoesNotFit(
                    f"{where} has no entry of subtask {SubtaskId(chain.id, index)}, which its own graph contains: it "
                    "is incomplete and was not restored. Restore another checkpoint."
                )


def _check_no_state_is_lost(where: str, stored: _Stored, graph: GraphRecord) -> None:
    present = {operator.uid for chain in graph.chains for operator in chain.operators}
    for uid, chain in stored.chains.items():
        operator = next(operator for operator in chain.operators if operator.uid == uid)
        if operator.stateful and uid in stored.parts and uid not in present:
            raise DoesNotFit(
                f"{where} holds state of operator {uid!r} ({operator.name}), which the job no longer has. Give the "
                f"operator that should take it over uid={uid!r}, or start without the old state in another "
                "checkpoint directory."
            )


def _check_parallelism(where: str, stored: _Stored, graph: GraphRecord) -> None:
    for chain in graph.chains:
        for operator in chain.operators:
            old = stored.chains.get(operator.uid)
            if old is not None and old.parallelism != chain.parallelism:
                raise DoesNotFit(
                    f"{where} was taken with parallelism {old.parallelism} of chain {old.id!r}, the job runs chain "
                    f"{chain.id!r} (operator {operator.uid!r}) with parallelism {chain.parallelism}. "
                    f"Set the parallelism to {old.parallelism}."
                )


def _check_finished(where: str, stored: _Stored, graph: GraphRecord) -> None:
    for chain in graph.chains:
        for index in range(chain.parallelism):
            if len({entry.finished for entry in _predecessors(stored, chain, index)}) > 1:
                raise DoesNotFit(
                    f"in {where} some operators of what is now subtask {SubtaskId(chain.id, index)} had finished and "
                    "others had not. Build the chain as it was when the checkpoint was taken, or restore an "
                    "earlier checkpoint."
                )


def _check_in_flight(where: str, record: CheckpointRecord, stored: _Stored, graph: GraphRecord) -> None:
    """Channels are named by the edge's place in the graph and its subtasks, so those must be the same on both sides."""
    known = stored.subtasks.keys() & set(_subtasks(graph))
    for _, handle in stored.in_flight:
        if handle.channel is None:
            raise DoesNotFit(
                f"{where} holds in-flight records {handle.name!r} that name no channel. Restore another one."
            )
        place = handle.channel.edge
        old = record.graph.edges[place] if place < len(record.graph.edges) else None
        new = graph.edges[place] if place < len(graph.edges) else None
        if old is None or old != new:
            was = _described(old) if old else "unknown to its own graph"
            now = _described(new) if new else "gone"
            raise DoesNotFit(
                f"{where} holds records in flight on edge {place}, which was {was} and is {now}. Run the job once more "
                "as it was and take an aligned checkpoint (mode='aligned'), which holds none; then change the graph."
            )
        for chain, index in ((old.source, handle.channel.source), (old.target, handle.channel.target)):
            if SubtaskId(chain, index) not in known:
                raise DoesNotFit(
                    f"{where} holds records in flight on {handle.channel}, but there is no subtask "
                    f"{SubtaskId(chain, index)}. Restore another checkpoint."
                )


def _described(edge: EdgeRecord) -> str:
    by = f" by {', '.join(edge.key)}" if edge.key else ""
    return f"{edge.source!r} -> {edge.target!r} ({edge.partitioning}{by}) with columns ({', '.join(edge.columns)})"


# ---- who gets what? ----
def plan_restore(record: CheckpointRecord, graph: GraphRecord) -> dict[SubtaskId, SubtaskRestore]:
    """For every subtask of the graph what it starts from. Raises `DoesNotFit` as `check_fits` does."""
    check_fits(record, graph)
    stored = _Stored(record)
    flights = _in_flight_by_subtask(stored, graph)
    plan = {}
    for chain in graph.chains:
        for index in range(chain.parallelism):
            subtask = SubtaskId(chain.id, index)
            before = _predecessors(stored, chain, index)
            if before and all(entry.finished for entry in before):
                plan[subtask] = SubtaskRestore(record.checkpoint, (), True)
                continue
            own = range_of(graph.key_groups, chain.parallelism, index)
            handles = [
                h for operator in chain.operators for h in _dealt(stored.parts.get(operator.uid, ()), index, own)
            ]
            plan[subtask] = SubtaskRestore(record.checkpoint, (*handles, *flights.get(subtask, ())), False)
    return plan


def _dealt(parts: Sequence[tuple[int, PartHandle]], index: int, own: KeyGroupRange) -> Iterator[tuple[int, PartHandle]]:
    """Of all parts of one operator those for the subtask `index`, which owns the key groups `own`."""
    broadcast: dict[str, tuple[int, PartHandle]] = {}
    for writer, handle in parts:
        if handle.kind is PartKind.BROADCAST:
            if writer == index or handle.name not in broadcast:
                broadcast[handle.name] = (writer, handle)
        elif (
            handle.kind is PartKind.UNION
            or (handle.kind is PartKind.LIST and writer == index)
            or (handle.kind is PartKind.KEYED and (handle.key_groups is None or handle.key_groups.overlaps(own)))
        ):
            yield writer, handle
    yield from broadcast.values()


def _in_flight_by_subtask(stored: _Stored, graph: GraphRecord) -> dict[SubtaskId, list[tuple[int, PartHandle]]]:
    dealt: dict[SubtaskId, list[tuple[int, PartHandle]]] = {}
    for writer, handle in stored.in_flight:
        assert handle.channel is not None  # check_fits
        edge = graph.edges[handle.channel.edge]
        if handle.kind is PartKind.INPUT_CHANNEL:
            end = SubtaskId(edge.target, handle.channel.target)
        else:
            end = SubtaskId(edge.source, handle.channel.source)
        dealt.setdefault(end, []).append((writer, handle))
    return dealt


def _predecessors(stored: _Stored, chain: ChainRecord, index: int) -> list[SubtaskRecord]:
    """What the operators of this subtask were part of in the checkpoint."""
    chains = dict.fromkeys(stored.chains[o.uid].id for o in chain.operators if o.uid in stored.chains)
    return [stored.subtasks[SubtaskId(ChainId(old), index)] for old in chains]


def _subtasks(graph: GraphRecord) -> Iterator[SubtaskId]:
    for chain in graph.chains:
        yield from (SubtaskId(chain.id, index) for index in range(chain.parallelism))
