"""The parallelism of a running job changes, step by step as the master sees it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.runtime.master_harness import Harness

from penstock.core.ids import WorkerId
from penstock.core.settings import RuntimeSettings
from penstock.graph.job import JobGraph
from penstock.runtime.control import messages as wire
from penstock.runtime.rescaling import RescaleOutcome


def scalable(**runtime: float) -> tuple[Harness, list[RescaleOutcome]]:
    """A running job of two workers that can have any parallelism."""
    job = Harness(runtime=RuntimeSettings(**runtime))  # type: ignore[arg-type]
    graph = job.master._graph

    def scaled(parallelism: int) -> JobGraph:
        return replace(graph, chains=tuple(replace(chain, parallelism=parallelism) for chain in graph.chains))

    object.__setattr__(graph, "scaled", scaled)
    return job.start(), []


def test_workers_come_and_a_checkpoint_is_taken_while_the_job_runs_then_it_begins_again():
    job, heard = scalable()
    job.master.rescale(3, heard.append)
    assert job.needed[-1] == 3 and not job.of(wire.TriggerCheckpoint)
    job.register("c")
    job.settle()
    assert job.of(wire.TriggerCheckpoint) and not job.of(wire.Reset)
    job.acknowledge_all(job.barrier().checkpoint)
    job.settle()
    assert set(job.to(wire.Reset)) == {"a", "b"} and not heard
    job.idle("a", "b")
    job.settle()
    job.pass_time(0.5)
    for worker in ("a", "b", "c"):
        job.say(worker, wire.Ready(job.attempt))
    (outcome,) = heard
    assert (outcome.parallelism, outcome.reason) == (3, "") and outcome.checkpoint is not None
    assert outcome.outage == pytest.approx(0.5)
    assert job.master.lifecycle.holders == (WorkerId("a"), WorkerId("b"), WorkerId("c"))


def test_without_enough_workers_in_time_the_job_goes_on_as_it_was():
    job, heard = scalable(registration_timeout=20.0)
    job.master.rescale(4, heard.append)
    job.register("c")
    job.pass_time(21.0)
    (outcome,) = heard
    assert "goes on as it was: it needs 4 workers, and only 3 have registered" in outcome.reason
    assert job.to(wire.Shutdown) == ["c"] and not job.of(wire.Reset)


def test_one_change_at_a_time():
    job, heard = scalable()
    job.master.rescale(3, heard.append)
    with pytest.raises(ValueError, match="being rescaled to 3 already"):
        job.master.rescale(4, heard.append)


def test_the_end_of_the_job_answers_before_and_after():
    job, heard = scalable()
    job.master.rescale(3, heard.append)
    job.master.cancel()
    job.master.rescale(4, heard.append)
    assert [outcome.parallelism for outcome in heard] == [3, 4]
    assert all("the job has ended: the job was cancelled" in outcome.reason for outcome in heard)
