from __future__ import annotations

import pytest
from tests.unit.runtime.task.harness import Job, Numbers, Seen, chain, graph, in_flight

from penstock.core.barrier import Mode
from penstock.graph.job import Partitioning


def pipeline(count: int = 20, width: int = 2):  # type: ignore[no-untyped-def]
    return graph(
        [
            chain("source", [lambda: Numbers(count)], width),
            chain("middle", [Seen], width),
            chain("sink", [Seen], 1),
        ],
        [("source", "middle", Partitioning.HASH), ("middle", "sink", Partitioning.REBALANCE)],
    )


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("capacity", [1, 4, 1000])
def test_every_row_arrives_once_and_a_final_checkpoint_ends_the_job(mode: Mode, capacity: int) -> None:
    job = Job(pipeline(), settings=in_flight(capacity))
    job.trigger(1, mode)
    job.run()
    job.clock.advance(1.0)
    job.run()
    assert job.fully_acknowledged(1)
    job.complete(1)
    job.run()
    assert all("drained" in r.events for r in job.reports.values())
    job.trigger(2, mode)
    job.run()
    assert job.fully_acknowledged(2)
    job.complete(2)
    job.run()
    assert all(r.events == ["drained", "finished"] for r in job.reports.values())
    assert sorted(job.operator("sink").state) == sorted([s, n] for s in range(2) for n in range(20))  # type: ignore[attr-defined]
