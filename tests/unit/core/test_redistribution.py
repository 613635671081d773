"""At another parallelism: who gets which state, and who replays which records in flight."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core.test_restore import GRAPH, HASH, READ, TOTAL, finishing, given_to, graph, handle, operator, record

from penstock.core.handles import PartHandle, PartKind
from penstock.core.ids import RECOVERED, ChainId, ChannelId, EdgeId, SubtaskId
from penstock.core.keygroups import range_of
from penstock.core.record import CheckpointRecord, EdgeRecord, GraphRecord
from penstock.core.restore import TASK_PART, as_restored, plan_restore

PAIRS = [(1, 2), (2, 3), (3, 7), (7, 2), (4, 1), (2, 1), (3, 2), (7, 3), (2, 7), (1, 4)]


def wide(read: int, total: int, partitioning: str = "hash") -> GraphRecord:
    return graph(
        ("read", read, [operator("read")]),
        ("total", total, [operator("total")]),
        edges=[EdgeRecord(READ, TOTAL, partitioning)],
    )


def in_flight(taken_by: GraphRecord) -> CheckpointRecord:
    """Every channel has records at both ends."""
    handles: dict[tuple[str, int], list[PartHandle]] = {}
    for source in range(taken_by.chains[0].parallelism):
        for target in range(taken_by.chains[1].parallelism):
            name, channel = f"{source}-{target}", (0, source, target)
            incoming = handle("total", PartKind.INPUT_CHANNEL, name, channel=channel)
            outgoing = handle("read", PartKind.OUTPUT_CHANNEL, name, channel=channel)
            handles.setdefault(("total", target), []).append(incoming)
            handles.setdefault(("read", source), []).append(outgoing)
    return record(handles, taken_by)


def replays(taken: CheckpointRecord, into: GraphRecord, index: int) -> list[tuple[str, PartKind]]:
    return [(part.name, part.kind) for _, part in plan_restore(taken, into)[SubtaskId(TOTAL, index)].replays]


# ---- state ----
@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_list_parts_are_dealt_out_whole_and_each_once(old: int, new: int) -> None:
    parts = {("total", writer): [handle("total", PartKind.LIST, f"of {writer}")] for writer in range(old)}
    plan = plan_restore(record(parts, wide(2, old)), wide(2, new))
    dealt = [part for index in range(new) for _, part in given_to(plan, "total", index)]
    assert sorted(part.name for part in dealt) == [f"of {writer}" for writer in range(old)]


def test_every_subtask_hears_what_all_former_tasks_remembered() -> None:
    parts = {("total", writer): [handle("total", PartKind.LIST, TASK_PART)] for writer in range(3)}
    plan = plan_restore(record(parts, wide(2, 3)), wide(2, 2))
    for index in range(2):
        assert [writer for writer, _ in given_to(plan, "total", index)] == [0, 1, 2]
        assert plan[SubtaskId(TOTAL, index)].former == 3
    assert plan[SubtaskId(READ, 0)].former == 0


def test_broadcast_state_comes_from_one_writer_with_all_its_layers() -> None:
    parts = {("total", writer): [handle("total", PartKind.BROADCAST, "rules")] * 2 for writer in range(2)}
    plan = plan_restore(record(parts, wide(2, 2)), wide(2, 3))
    assert [[writer for writer, _ in given_to(plan, "total", index)] for index in range(3)] == [[0, 0], [1, 1], [0, 0]]


# ---- ends ----
def test_a_chain_has_finished_only_if_all_of_it_had() -> None:
    some = finishing(record({}, wide(3, 2)), SubtaskId(READ, 0), SubtaskId(READ, 2))
    plan = plan_restore(some, wide(2, 2))
    assert not any(plan[SubtaskId(READ, index)].finished for index in range(2))
    assert {plan[SubtaskId(READ, index)].former for index in range(2)} == {1}
    every = finishing(some, SubtaskId(READ, 1))
    assert all(plan_restore(every, wide(2, 2))[SubtaskId(READ, index)].finished for index in range(2))


def test_a_chain_has_drained_only_if_all_of_it_had() -> None:
    taken = record({}, wide(2, 2))
    first = taken.subtasks[0]
    one = replace(taken, subtasks=(replace(first, drained=True), *taken.subtasks[1:]))
    assert not plan_restore(one, wide(3, 2))[SubtaskId(READ, 2)].drained
    both = replace(one, subtasks=tuple(replace(entry, drained=entry.subtask.chain == READ) for entry in one.subtasks))
    plan = plan_restore(both, wide(3, 2))
    assert plan[SubtaskId(READ, 2)].drained
    seen = {entry.subtask: entry.drained for entry in as_restored(both, plan).subtasks}
    assert seen == {subtask: subtask.chain == READ for subtask in plan}


# ---- records in flight ----
@pytest.mark.parametrize(("old", "new"), PAIRS)
@pytest.mark.parametrize("way", ["rebalance", "forward"])
def test_whole_channels_are_dealt_out_each_once(way: str, old: int, new: int) -> None:
    taken, into = in_flight(wide(2, old, way)), wide(2, new, way)
    got = [entry for index in range(new) for entry in replays(taken, into, index)]
    assert len(got) == len(set(got)) == 2 * 2 * old


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_hashed_records_go_to_every_receiver_that_owns_some_of_their_keys(old: int, new: int) -> None:
    taken, into = in_flight(wide(2, old)), wide(2, new)
    for group in range(128):
        former, owner = group * old // 128, group * new // 128
        got = {name for name, _ in replays(taken, into, owner)}
        assert {f"0-{former}", f"1-{former}"} <= got


def test_a_receiver_goes_on_where_one_former_receiver_of_a_broadcast_was() -> None:
    taken, into = in_flight(wide(2, 2, "broadcast")), wide(2, 3, "broadcast")
    assert [{name for name, _ in replays(taken, into, index)} for index in range(3)] == [
        {"0-0", "1-0"},
        {"0-1", "1-1"},
        {"0-0", "1-0"},
    ]


def behind_broadcast(width: int, *, with_others: bool = False) -> GraphRecord:
    """Rules are broadcast to `read`, which forwards them; unless it also gets other records."""
    edges = [EdgeRecord(READ, TOTAL, "forward"), EdgeRecord(ChainId("rules"), READ, "broadcast")]
    if with_others:
        edges.append(EdgeRecord(ChainId("others"), READ, "rebalance"))
    return graph(
        ("rules", 1, [operator("rules")]),
        ("others", 1, [operator("others")]),
        ("read", width, [operator("read")]),
        ("total", width, [operator("total")]),
        edges=edges,
    )


def forwarded(taken_by: GraphRecord) -> CheckpointRecord:
    width = taken_by.chains[-1].parallelism
    parts = {
        ("total", index): [handle("total", PartKind.INPUT_CHANNEL, f"to {index}", channel=(0, index, index))]
        for index in range(width)
    }
    return record(parts, taken_by)


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_what_was_broadcast_and_then_forwarded_is_replayed_once_by_every_receiver(old: int, new: int) -> None:
    taken, into = forwarded(behind_broadcast(old)), behind_broadcast(new)
    for index in range(new):
        former = index if index < old else 0
        assert replays(taken, into, index) == [(f"to {former}", PartKind.INPUT_CHANNEL)]


def test_where_other_records_are_forwarded_too_none_of_them_is_lost() -> None:
    taken, into = forwarded(behind_broadcast(3, with_others=True)), behind_broadcast(1, with_others=True)
    assert [name for name, _ in replays(taken, into, 0)] == ["to 0", "to 1", "to 2"]


def test_of_a_channel_recovered_records_come_first_then_input_then_output() -> None:
    taken = in_flight(wide(1, 1))
    recovered = handle("total", PartKind.INPUT_CHANNEL, "again", channel=(0, RECOVERED, 0))
    receiver = replace(taken.subtasks[1], handles=(*taken.subtasks[1].handles, recovered))
    taken = replace(taken, subtasks=(taken.subtasks[0], receiver))
    assert replays(taken, wide(1, 2), 1) == [
        ("again", PartKind.INPUT_CHANNEL),
        ("0-0", PartKind.INPUT_CHANNEL),
        ("0-0", PartKind.OUTPUT_CHANNEL),
    ]
    same = plan_restore(taken, wide(1, 1))[SubtaskId(TOTAL, 0)]
    assert not same.replays and [part.name for _, part in same.handles] == ["0-0", "again"]


def test_other_senders_reshape_an_edge_too() -> None:
    taken, into = in_flight(wide(2, 2)), wide(3, 2)
    plan = plan_restore(taken, into)
    assert plan[SubtaskId(TOTAL, 0)].reshaped == (EdgeId(0),)
    assert not any(part.channel for subtask in plan for _, part in plan[subtask].handles)
    assert [name for name, _ in replays(taken, into, 0)] == ["0-0", "0-0", "1-0", "1-0"]
    assert plan[SubtaskId(TOTAL, 0)].former == 0


def test_an_edge_is_found_again_at_another_place() -> None:
    other = EdgeRecord(READ, TOTAL, "hash", key=("user",))
    taken = in_flight(replace(wide(1, 1), edges=(HASH,)))
    moved = replace(wide(1, 1), edges=(other, HASH))
    plan = plan_restore(taken, moved)
    channels = [part.channel for _, part in plan[SubtaskId(TOTAL, 0)].replays]
    assert channels == [ChannelId(EdgeId(1), 0, 0)] * 2


def test_a_forward_way_may_become_a_rebalance() -> None:
    taken = in_flight(wide(2, 2, "forward"))
    assert len(replays(taken, wide(2, 3, "rebalance"), 0)) == 4


def test_the_same_graph_is_not_reshaped() -> None:
    plan = plan_restore(record({}), GRAPH)
    assert all(restore.reshaped == () and restore.former == 0 for restore in plan.values())


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 7), st.integers(1, 7))
def test_no_key_group_in_flight_is_forgotten(senders: int, old: int, new_senders: int, new: int) -> None:
    taken, into = in_flight(wide(senders, old)), wide(new_senders, new)
    plan = plan_restore(taken, into)
    for group in range(128):
        former, owner = group * old // 128, group * new // 128
        got = plan[SubtaskId(TOTAL, owner)]
        parts = [part for _, part in (*got.replays, *got.handles) if part.channel and part.channel.target == former]
        kept = [part for s in range(new_senders) for _, part in plan[SubtaskId(READ, s)].handles]
        outputs = [part for part in kept if part.channel and part.channel.target == former]
        assert len(parts) + len(outputs) == 2 * senders


# ---- more key groups ----
def raised(taken: CheckpointRecord, key_groups: int) -> CheckpointRecord:
    """The checkpoint after `penstock rehash`."""
    graph = replace(taken.graph, key_groups=key_groups, dealt_groups=taken.graph.key_groups)
    return replace(taken, graph=graph)


@given(former=st.integers(0, 7), more=st.integers(1, 8), parallelism=st.integers(1, 130))
def test_raised_groups_move_keys_exactly_where_the_ranges_of_subtasks_differ(
    former: int, more: int, parallelism: int
) -> None:
    graph = GraphRecord("job", 1 << former + more, (), (), dealt_groups=1 << former)
    now = [range_of(graph.key_groups, parallelism, index) for index in range(parallelism)]
    written = [graph.written_range(parallelism, index) for index in range(parallelism)]
    assert graph.moves_keys(parallelism) == (written != now)
    assert (written[0].start, written[-1].end) == (0, graph.key_groups)


def test_at_the_same_size_subtasks_that_keep_their_keys_keep_their_channels() -> None:
    taken = raised(in_flight(replace(wide(2, 4), key_groups=16)), 128)
    plan = plan_restore(taken, replace(wide(2, 4), key_groups=128))
    assert not plan[SubtaskId(TOTAL, 0)].reshaped and not plan[SubtaskId(TOTAL, 0)].former


def test_at_the_same_size_subtasks_whose_keys_move_replay_what_others_had_in_flight() -> None:
    """Of 16 groups the three had 6, 5 and 5; of 128 they have 43, 43 and 42, so that [43, 48) of the first move on."""
    taken = raised(in_flight(replace(wide(3, 3), key_groups=16)), 128)
    into = replace(wide(3, 3), key_groups=128)
    plan = plan_restore(taken, into)
    assert plan[SubtaskId(TOTAL, 1)].reshaped == (EdgeId(0),) and plan[SubtaskId(TOTAL, 1)].former == 3
    targets = {index: {name.partition("-")[2] for name, _ in replays(taken, into, index)} for index in range(3)}
    assert targets == {0: {"0"}, 1: {"0", "1"}, 2: {"1", "2"}}
