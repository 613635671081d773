"""Which subtasks take part in a checkpoint once some have finished."""

from penstock.core.ids import ChainId, SubtaskId
from penstock.core.plan import Topology, plan_checkpoint


def subtask(chain: str, index: int = 0) -> SubtaskId:
    return SubtaskId(ChainId(chain), index)


A0, A1, B, MAP0, MAP1, SINK = (
    subtask("a", 0),
    subtask("a", 1),
    subtask("b"),
    subtask("map", 0),
    subtask("map", 1),
    subtask("sink"),
)
# a[i] -> map[i], b -> both maps, both maps -> sink
TOPOLOGY = Topology(
    (A0, A1, B, MAP0, MAP1, SINK),
    {
        A0: frozenset(),
        A1: frozenset(),
        B: frozenset(),
        MAP0: frozenset({A0, B}),
        MAP1: frozenset({A1, B}),
        SINK: frozenset({MAP0, MAP1}),
    },
)


def test_at_the_start_barriers_begin_at_the_sources_and_everybody_acknowledges():
    plan = plan_checkpoint(TOPOLOGY, set())
    assert plan.trigger == (A0, A1, B)
    assert plan.acknowledge == TOPOLOGY.subtasks and plan.finished == ()


def test_a_subtask_with_one_running_predecessor_gets_the_barrier_from_it():
    plan = plan_checkpoint(TOPOLOGY, {A0})
    assert plan.trigger == (A1, B) and MAP0 in plan.acknowledge and plan.finished == (A0,)


def test_a_subtask_all_of_whose_predecessors_finished_is_triggered_itself():
    assert plan_checkpoint(TOPOLOGY, {A0, B}).trigger == (A1, MAP0)


def test_when_only_the_last_one_runs_the_barrier_begins_and_ends_there():
    plan = plan_checkpoint(TOPOLOGY, {A0, A1, B, MAP0, MAP1})
    assert plan.trigger == plan.acknowledge == (SINK,)


def test_when_all_have_finished_nobody_takes_part():
    plan = plan_checkpoint(TOPOLOGY, set(TOPOLOGY.subtasks))
    assert plan.trigger == plan.acknowledge == () and plan.finished == TOPOLOGY.subtasks
