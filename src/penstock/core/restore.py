"""Whether a checkpoint fits a graph, and which of its parts each subtask of that graph gets.

State belongs to operators, found again by uid; in-flight records belong to channels. `check_fits` refuses what would
lose or misplace either, `plan_restore` deals the parts out by their kind:

- `KEYED`: to every subtask that owns at least one of the part's key groups (none given: any), whoever wrote it;
- `LIST`: to the subtask of the same index; at another parallelism what each writer wrote is dealt out whole, in turn;
- `UNION`: to all; `BROADCAST`: one copy to each;
- `INPUT_CHANNEL`, `OUTPUT_CHANNEL`: to the receiving or sending end of the channel; where the edge has other channels
  now, see `core.redistribution`.

Operators may move between chains and new operators may appear; they start empty. A chain may have another parallelism:
it has finished if all of its former subtasks had; if only some had, all of it runs, and what had finished has left
nothing behind that could be processed again. The same goes for a chain of the same parallelism whose subtasks own other
keys now, because the key groups were raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.core.handles import KeyGroupRange, PartHandle, PartKind
from penstock.core.ids import RECOVERED, ChannelId, CheckpointId, EdgeId, SubtaskId, Uid
from penstock.core.keygroups import range_of
from penstock.core.record import ChainRecord, CheckpointRecord, EdgeRecord, GraphRecord, SubtaskRecord
from penstock.core.redistribution import Redistribution, described, matching_edges

TASK_PART = "#task"
"""The part in which a task itself, not one of its operators, remembers something: at another parallelism every subtask
gets those of all."""

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
    drained: bool = False
    """All of its input had ended and its operators had finished, or it had ended for good."""
    replays: tuple[tuple[int, PartHandle], ...] = ()
    """Records in flight of edges that have other channels now: what the subtask replays before any new input, in this
    order, as far as the keys are its own. Their channels name the edges by their present places."""
    former: int = 0
    """At another parallelism: how many subtasks that had not finished the state comes from. 0: it is the same
    subtask's."""
    reshaped: tuple[EdgeId, ...] = ()
    """Edges of the graph whose channels are not those of the checkpoint."""


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
            f"Set key_groups={record.graph.key_groups}, or raise those of a savepoint with `penstock rehash`."
        )
    _check_whole(where, record, stored)
    _check_no_state_is_lost(where, stored, graph)
    _check_finished(where, stored, record.graph, graph)
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


def _check_finished(where: str, stored: _Stored, old: GraphRecord, graph: GraphRecord) -> None:
    for chain in graph.chains:
        for index in range(chain.parallelism):
            if len({_all_finished(group) for group in _former(stored, old, chain, index)}) > 1:
                raise DoesNotFit(
                    f"in {where} some operators of what is now subtask {SubtaskId(chain.id, index)} had finished and "
                    "others had not. Build the chain as it was when the checkpoint was taken, or restore an "
                    "earlier checkpoint."
                )


def _check_in_flight(where: str, record: CheckpointRecord, stored: _Stored, graph: GraphRecord) -> None:
    """Every edge with records in flight must still be there, though it may have other channels."""
    matching = matching_edges(record.graph, graph)
    for _, handle in stored.in_flight:
        if handle.channel is None:
            raise DoesNotFit(
                f"{where} holds in-flight records {handle.name!r} that name no channel. Restore another one."
            )
        place = handle.channel.edge
        if place >= len(record.graph.edges):
            raise DoesNotFit(
                f"{where} holds records in flight on edge {place}, which is unknown to its own graph. Restore another "
                "checkpoint."
            )
        if place not in matching:
            was = described(record.graph.edges[place])
            now = described(graph.edges[place]) if place < len(graph.edges) else "gone"
            raise DoesNotFit(
                f"{where} holds records in flight on edge {place}, which was {was} and is {now}. "
                "Run the job once more as it was and take an aligned checkpoint or savepoint "
                "(mode='aligned'), which holds none; then change the graph."
            )
        _check_ends(where, handle.channel, record.graph.edges[place], stored)


def _check_ends(where: str, channel: ChannelId, edge: EdgeRecord, stored: _Stored) -> None:
    for chain, index in ((edge.source, channel.source), (edge.target, channel.target)):
        if index != RECOVERED and SubtaskId(chain, index) not in stored.subtasks:
            raise DoesNotFit(
                f"{where} holds records in flight on {channel}, but there is no subtask {SubtaskId(chain, index)}. "
                "Restore another checkpoint."
            )


# ---- who gets what? ----
def plan_restore(record: CheckpointRecord, graph: GraphRecord) -> dict[SubtaskId, SubtaskRestore]:
    """For every subtask of the graph what it starts from. Raises `DoesNotFit` as `check_fits` does."""
    check_fits(record, graph)
    stored = _Stored(record)
    channels = Redistribution(record, graph, stored.in_flight)
    plan = {}
    for chain in graph.chains:
        for index in range(chain.parallelism):
            plan[SubtaskId(chain.id, index)] = _restore(record, graph, stored, channels, chain, index)
    return plan


def _restore(
    record: CheckpointRecord,
    graph: GraphRecord,
    stored: _Stored,
    channels: Redistribution,
    chain: ChainRecord,
    index: int,
) -> SubtaskRestore:
    groups = _former(stored, record.graph, chain, index)
    before = [entry for group in groups for entry in group]
    if before and _all_finished(before):
        return SubtaskRestore(record.checkpoint, (), True, drained=True)
    own = range_of(graph.key_groups, chain.parallelism, index)
    handles: list[tuple[int, PartHandle]] = []
    for operator in chain.operators:
        parts = stored.parts.get(operator.uid, ())
        rescaled = _rescaled(stored, record.graph, operator.uid, chain)
        handles += _dealt(parts, index, own, chain.parallelism if rescaled else None)
    head = chain.operators[0].uid
    return SubtaskRestore(
        record.checkpoint,
        (*handles, *channels.kept(SubtaskId(chain.id, index))),
        False,
        drained=bool(before) and all(entry.drained or entry.finished for entry in before),
        replays=tuple(channels.replays(chain.id, index)),
        former=sum(not entry.finished for entry in groups[0]) if _rescaled(stored, record.graph, head, chain) else 0,
        reshaped=channels.reshaped,
    )


def _dealt(
    parts: Sequence[tuple[int, PartHandle]], index: int, own: KeyGroupRange, rescaled_to: int | None = None
) -> Iterator[tuple[int, PartHandle]]:
    """Of all parts of one operator those for the subtask `index`, which owns the key groups `own`."""
    copies: dict[str, int] = {}
    for writer, handle in parts:
        if handle.kind is PartKind.BROADCAST and (writer == index or handle.name not in copies):
            copies[handle.name] = writer
    for writer, handle in parts:
        match handle.kind:
            case PartKind.UNION:
                mine = True
            case PartKind.KEYED:
                mine = handle.key_groups is None or handle.key_groups.overlaps(own)
            case PartKind.BROADCAST:
                mine = copies[handle.name] == writer
            case _ if rescaled_to is None:
                mine = writer == index
            case _:
                mine = handle.name == TASK_PART or writer % rescaled_to == index
        if mine:
            yield writer, handle


def _rescaled(stored: _Stored, old: GraphRecord, uid: Uid, chain: ChainRecord) -> bool:
    return uid in stored.chains and not _same_shares(old, stored.chains[uid], chain)


def _same_shares(old: GraphRecord, former: ChainRecord, chain: ChainRecord) -> bool:
    """Whether each subtask goes on with what the one of the same index had."""
    return former.parallelism == chain.parallelism and not old.moves_keys(chain.parallelism)


def _former(stored: _Stored, graph: GraphRecord, chain: ChainRecord, index: int) -> list[list[SubtaskRecord]]:
    """What the operators of this subtask were part of in the checkpoint: for each of their former chains the same
    subtask, or at another parallelism all."""
    chains = {stored.chains[o.uid].id: stored.chains[o.uid] for o in chain.operators if o.uid in stored.chains}
    return [
        [
            stored.subtasks[SubtaskId(old.id, former)]
            for former in ([index] if _same_shares(graph, old, chain) else range(old.parallelism))
        ]
        for old in chains.values()
    ]


def _all_finished(entries: Sequence[SubtaskRecord]) -> bool:
    return all(entry.finished for entry in entries)


def as_restored(record: CheckpointRecord, plan: Mapping[SubtaskId, SubtaskRestore]) -> CheckpointRecord:
    """The checkpoint with the subtasks of the graph that was restored from it, and how far each of them had come."""
    entries = (
        SubtaskRecord(subtask, drained=restore.drained and not restore.finished, finished=restore.finished)
        for subtask, restore in plan.items()
    )
    return replace(record, subtasks=tuple(entries))
