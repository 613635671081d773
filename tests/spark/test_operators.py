"""Operator cases in real processes: a worker is killed in the middle of each job, and the output is what Polars says.
(Every case, at every size and under every fault, is in the simulation: `penstock verify --operators`.)"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.spark.support.jobs import PATIENCE, kill_worker, wait_for_checkpoints

import penstock as ps
from penstock.core.lifecycle import JobState
from penstock.simulation.cases.case import plain
from penstock.simulation.cases.catalogue import CASES
from penstock.simulation.cases.inputs import random_input, source_of

RECORDS = 400
RATE = 200.0


@pytest.mark.parametrize(
    ("name", "parallelism"),
    [
        ("changelog of values", 2),
        ("late in sliding windows", 3),
        ("full join", 2),
        ("left interval join", 3),
    ],
)
def test_an_operator_puts_out_what_polars_says_though_a_worker_is_killed(
    name: str, parallelism: int, start: Callable[..., Any], tmp_path: Path
) -> None:
    case, random = CASES[name], Random(name)
    input = random_input(random, case, RECORDS)
    pipeline = ps.Pipeline(
        "operators", parallelism=parallelism, checkpoints=ps.Checkpoints(tmp_path / "checkpoints", every="100ms")
    )
    records = pipeline.source(source_of(input, RATE), uid="records")
    stream = records.with_watermark("ts", delay=input.delay / 1_000, uid="time")
    sinks = {}
    for output, made in case.build(stream, input).items():
        sinks[output] = ps.sinks.Collect()
        made.sink(sinks[output], uid=output)
    job = start(pipeline)
    wait_for_checkpoints(job, 2)
    kill_worker(job, random)
    assert job.wait(PATIENCE).state is JobState.FINISHED
    assert job.incidents()
    case.check(input, {output: plain(sink.result()) for output, sink in sinks.items()})
