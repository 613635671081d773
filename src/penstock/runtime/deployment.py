"""Who gets which subtasks with which state: the `Deploy` message of every worker of an attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.core.ids import Attempt, Generation, SubtaskId, WorkerId
from penstock.core.restore import SubtaskRestore
from penstock.graph.job import JobGraph
from penstock.runtime.control.messages import Address, Assignment, Deploy, Restore
from penstock.store.layout import checkpoint_directory


def deploy_messages(
    graph: JobGraph,
    attempt: Attempt,
    generation: Generation,
    workers: Sequence[WorkerId],
    addresses: Mapping[WorkerId, Address],
    restores: Mapping[SubtaskId, SubtaskRestore],
    parallelism: int | None = None,
    deployed_ms: int = 0,
) -> dict[WorkerId, Deploy]:
    """`workers` by slot: the worker of slot i runs subtask i of every chain. `restores` is empty on a fresh start."""
    locations = [(subtask, workers[subtask.index]) for subtask in graph.subtasks()]
    messages = {}
    for worker in workers:
        own = [subtask for subtask, location in locations if location == worker]
        assignments = [Assignment(subtask, _restore(restores.get(subtask))) for subtask in own]
        messages[worker] = Deploy(
            attempt, generation, assignments, dict(addresses), locations, parallelism, deployed_ms
        )
    return messages


def _restore(plan: SubtaskRestore | None) -> Restore | None:
    if plan is None:
        return None
    return Restore(
        plan.checkpoint,
        checkpoint_directory(plan.checkpoint),
        list(plan.handles),
        plan.finished,
        list(plan.replays),
        plan.former,
        list(plan.reshaped),
    )
