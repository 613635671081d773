"""Whether a checkpoint fits a graph, and who gets what of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.barrier import Mode, Purpose
from penstock.core.handles import KeyGroupRange, PartHandle, PartKind
from penstock.core.ids import Attempt, ChainId, ChannelId, CheckpointId, EdgeId, Generation, SubtaskId, Uid
from penstock.core.keygroups import range_of
from penstock.core.record import (
    ChainRecord,
    CheckpointRecord,
    EdgeRecord,
    GraphRecord,
    OperatorRecord,
    SubtaskRecord,
)
from penstock.core.restore import DoesNotFit, SubtaskRestore, _dealt, check_fits, plan_restore

READ, TOTAL = ChainId("read"), ChainId("total")


def operator(uid: str, stateful: bool = True) -> OperatorRecord:
    return OperatorRecord(Uid(uid), f"the {uid}", stateful)


def graph(
    *chains: tuple[str, int, list[OperatorRecord]], edges: list[EdgeRecord] | None = None, key_groups: int = 128
) -> GraphRecord:
    made = tuple(ChainRecord(ChainId(name), parallelism, tuple(ops)) for name, parallelism, ops in chains)
    return GraphRecord("orders", key_groups, made, tuple(edges or ()))


HASH = EdgeRecord(READ, TOTAL, "hash")
GRAPH = graph(
    ("read", 2, [operator("read"), operator("clean", stateful=False)]),
    ("total", 2, [operator("total"), operator("out", stateful=False)]),
    edges=[HASH],
)


def handle(
    uid: str,
    kind: PartKind,
    name: str = "state",
    groups: KeyGroupRange | None = None,
    channel: tuple[int, int, int] | None = None,
) -> PartHandle:
    at = None if channel is None else ChannelId(EdgeId(channel[0]), channel[1], channel[2])
    return PartHandle(Uid(uid), name, kind, "f", 0, 0, 0, groups, at)


def record(handles: dict[tuple[str, int], list[PartHandle]], taken_by: GraphRecord = GRAPH) -> CheckpointRecord:
    subtasks = tuple(
        SubtaskRecord(SubtaskId(chain.id, index), tuple(handles.get((chain.id, index), ())))
        for chain in taken_by.chains
        for index in range(chain.parallelism)
    )
    return CheckpointRecord(
        CheckpointId(7), Generation(1), Attempt(1), Mode.UNALIGNED, Purpose.CHECKPOINT, 0, 1, taken_by, subtasks
    )


def finishing(taken: CheckpointRecord, *subtasks: SubtaskId) -> CheckpointRecord:
    def ended(entry: SubtaskRecord) -> SubtaskRecord:
        return SubtaskRecord(entry.subtask, finished=True) if entry.subtask in subtasks else entry

    return replace(taken, subtasks=tuple(ended(entry) for entry in taken.subtasks))


def given_to(plan: dict[SubtaskId, SubtaskRestore], chain: str, index: int) -> list[tuple[int, PartHandle]]:
    return list(plan[SubtaskId(ChainId(chain), index)].handles)


# ---- who gets what ----
def test_every_subtask_of_the_graph_is_in_the_plan() -> None:
    plan = plan_restore(record({}), GRAPH)
    assert set(plan) == {SubtaskId(chain, index) for chain in (READ, TOTAL) for index in (0, 1)}
    assert set(plan.values()) == {SubtaskRestore(CheckpointId(7), (), False)}


def test_list_parts_go_back_to_their_writer() -> None:
    parts = [handle("read", PartKind.LIST, f"of {index}") for index in (0, 1)]
    plan = plan_restore(record({("read", 0): [parts[0]], ("read", 1): [parts[1]]}), GRAPH)
    assert given_to(plan, "read", 0) == [(0, parts[0])]
    assert given_to(plan, "read", 1) == [(1, parts[1])]


def test_union_parts_go_to_everybody() -> None:
    parts = [handle("read", PartKind.UNION, f"of {index}") for index in (0, 1)]
    plan = plan_restore(record({("read", 0): [parts[0]], ("read", 1): [parts[1]]}), GRAPH)
    for index in (0, 1):
        assert given_to(plan, "read", index) == [(0, parts[0]), (1, parts[1])]
        assert given_to(plan, "total", index) == []


def test_one_copy_of_broadcast_state_goes_to_each_preferably_its_own() -> None:
    parts = [handle("total", PartKind.BROADCAST, "rules") for _ in (0, 1)]
    both = plan_restore(record({("total", 0): [parts[0]], ("total", 1): [parts[1]]}), GRAPH)
    assert [given_to(both, "total", index) for index in (0, 1)] == [[(0, parts[0])], [(1, parts[1])]]
    one = plan_restore(record({("total", 0): [parts[0]]}), GRAPH)
    assert [given_to(one, "total", index) for index in (0, 1)] == [[(0, parts[0])], [(0, parts[0])]]


def test_keyed_parts_go_to_the_owners_of_their_key_groups() -> None:
    parts = [handle("total", PartKind.KEYED, groups=range_of(128, 2, index)) for index in (0, 1)]
    straddling = handle("total", PartKind.KEYED, "wide", KeyGroupRange(60, 70))
    plan = plan_restore(record({("total", 0): [parts[0], straddling], ("total", 1): [parts[1]]}), GRAPH)
    assert given_to(plan, "total", 0) == [(0, parts[0]), (0, straddling)]
    assert given_to(plan, "total", 1) == [(0, straddling), (1, parts[1])]


def test_records_in_flight_go_to_their_end_of_the_channel() -> None:
    incoming = handle("total", PartKind.INPUT_CHANNEL, channel=(0, 1, 0))
    outgoing = handle("read", PartKind.OUTPUT_CHANNEL, channel=(0, 1, 0))
    plan = plan_restore(record({("total", 0): [incoming], ("read", 1): [outgoing]}), GRAPH)
    assert given_to(plan, "total", 0) == [(0, incoming)]
    assert given_to(plan, "read", 1) == [(1, outgoing)]
    assert given_to(plan, "total", 1) == given_to(plan, "read", 0) == []


def test_a_finished_subtask_restores_as_finished() -> None:
    taken = finishing(record({("read", 0): [handle("read", PartKind.UNION)]}), SubtaskId(READ, 1))
    plan = plan_restore(taken, GRAPH)
    assert plan[SubtaskId(READ, 1)] == SubtaskRestore(CheckpointId(7), (), True, drained=True)
    assert not plan[SubtaskId(READ, 0)].finished


def test_an_operator_finds_its_state_in_another_chain() -> None:
    part = handle("total", PartKind.LIST)
    split = graph(
        ("read", 2, [operator("read")]),
        ("clean", 2, [operator("clean", False), operator("total"), operator("out", False)]),
    )
    assert given_to(plan_restore(record({("total", 1): [part]}), split), "clean", 1) == [(1, part)]


def test_a_new_operator_starts_empty() -> None:
    wider = graph(*[(c.id, c.parallelism, list(c.operators)) for c in GRAPH.chains], ("new", 3, [operator("new")]))
    assert given_to(plan_restore(record({}), wider), "new", 2) == []


# ---- what does not fit ----
def refused(taken: CheckpointRecord, into: GraphRecord, match: str) -> None:
    with pytest.raises(DoesNotFit, match=match):
        check_fits(taken, into)
    with pytest.raises(DoesNotFit, match=match):
        plan_restore(taken, into)


def test_another_job_is_refused() -> None:
    refused(record({}), replace(GRAPH, job="payments"), "belongs to job 'orders', this is job 'payments'")


def test_other_key_groups_are_refused() -> None:
    refused(record({}), replace(GRAPH, key_groups=256), r"key_groups=128, the job has key_groups=256")


def test_state_of_an_operator_that_is_gone_is_refused() -> None:
    taken = record({("total", 0): [handle("total", PartKind.KEYED, groups=KeyGroupRange(0, 64))]})
    smaller = graph(("read", 2, [operator("read")]))
    refused(taken, smaller, r"state of operator 'total' \(the total\).*uid='total'")


def test_an_operator_that_left_no_state_may_go() -> None:
    check_fits(record({}), graph(("read", 2, [operator("read")])))


def test_another_edge_is_refused_while_records_are_in_flight() -> None:
    taken = record({("total", 0): [handle("total", PartKind.INPUT_CHANNEL, channel=(0, 0, 0))]})
    rewired = replace(GRAPH, edges=(replace(HASH, partitioning="rebalance"),))
    refused(taken, rewired, r"edge 0, which was 'read' -> 'total' \(hash\) .*and is .* \(rebalance\).*aligned")
    refused(taken, replace(GRAPH, edges=()), "and is gone")
    check_fits(record({}), rewired)


def test_a_channel_of_a_subtask_that_does_not_exist_is_refused() -> None:
    taken = record({("total", 0): [handle("total", PartKind.INPUT_CHANNEL, channel=(0, 9, 0))]})
    refused(taken, GRAPH, r"no subtask read\[9\]")


def test_in_flight_records_without_a_channel_are_refused() -> None:
    refused(record({("total", 0): [handle("total", PartKind.INPUT_CHANNEL)]}), GRAPH, "name no channel")


def test_a_record_that_lacks_a_subtask_is_refused() -> None:
    taken = record({})
    refused(replace(taken, subtasks=taken.subtasks[:-1]), GRAPH, r"no entry of subtask total\[1\]")


def test_a_chain_of_which_only_some_operators_had_finished_is_refused() -> None:
    merged = graph(("read", 2, [o for chain in GRAPH.chains for o in chain.operators]))
    taken = finishing(record({}), SubtaskId(READ, 1))
    refused(taken, merged, r"subtask read\[1\] had finished and others had not")


# ---- any graph ----
@given(st.integers(1, 7), st.integers(1, 7), st.sampled_from([8, 128]))
def test_every_key_group_reaches_its_owner_at_any_parallelism(writers: int, readers: int, total: int) -> None:
    parts = [(i, handle("total", PartKind.KEYED, groups=range_of(total, writers, i))) for i in range(writers)]
    for index in range(readers):
        own = range_of(total, readers, index)
        got = list(_dealt(parts, index, own))
        covered = {group for _, part in got if part.key_groups for group in range(total) if group in part.key_groups}
        assert covered >= {group for group in range(total) if group in own}
        assert all(part.key_groups is not None and part.key_groups.overlaps(own) for _, part in got)


@given(st.data())
def test_at_the_same_parallelism_every_part_finds_exactly_its_owners(data: st.DataObject) -> None:
    parallelism = data.draw(st.integers(1, 4))
    shape = graph(("read", parallelism, [operator("read")]), ("total", parallelism, [operator("total")]), edges=[HASH])
    kinds = [PartKind.LIST, PartKind.UNION, PartKind.KEYED, PartKind.INPUT_CHANNEL]
    handles: dict[tuple[str, int], list[PartHandle]] = {}
    for index in range(parallelism):
        for number, kind in enumerate(data.draw(st.lists(st.sampled_from(kinds), max_size=4))):
            groups = range_of(128, parallelism, index) if kind is PartKind.KEYED else None
            channel = (0, number % parallelism, index) if kind is PartKind.INPUT_CHANNEL else None
            part = handle("total", kind, f"{index}.{number}", groups, channel)
            handles.setdefault(("total", index), []).append(part)
    plan = plan_restore(record(handles, shape), shape)
    for (_, writer), parts in handles.items():
        for part in parts:
            got = [index for index in range(parallelism) if (writer, part) in given_to(plan, "total", index)]
            assert got == (list(range(parallelism)) if part.kind is PartKind.UNION else [writer])
    dealt = sum(len(given_to(plan, "total", index)) for index in range(parallelism))
    unions = sum(part.kind is PartKind.UNION for parts in handles.values() for part in parts)
    assert dealt == sum(map(len, handles.values())) + unions * (parallelism - 1)


def test_records_in_flight_are_not_read_with_other_columns() -> None:
    in_flight = {("total", 0): [handle("total", PartKind.INPUT_CHANNEL, channel=(0, 1, 0))]}
    old, new = (replace(HASH, columns=(f"amount: {of}",)) for of in ("int64", "double"))
    taken = record(in_flight, replace(GRAPH, edges=(old,)))
    plan_restore(taken, replace(GRAPH, edges=(old,)))
    with pytest.raises(DoesNotFit, match=r"amount: int64.*amount: double.*mode='aligned'"):
        plan_restore(taken, replace(GRAPH, edges=(new,)))


def test_a_job_without_keyed_state_may_be_wider_than_its_key_groups() -> None:
    wide = graph(("read", 5, [operator("read")]), edges=[], key_groups=4)
    assert len(plan_restore(record({}, wide), wide)) == 5
