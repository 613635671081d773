"""Side outputs and idleness of one task: who gets which rows, and who is told that there is nothing to wait for."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from tests.unit.runtime.task.harness import Job, Numbers, Pass, Seen, chain, graph, rows, subtask
from tests.unit.runtime.task.lone import IN, Lone

from penstock.graph.job import JobGraph, Partitioning
from penstock.operators.base import Collector, Operator
from penstock.operators.watermark import WatermarkOperator
from penstock.runtime.elements import Idle, Watermark
from penstock.runtime.ports import Align

A, B = IN


class Odd(Operator):
    """Puts odd numbers aside."""

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        odd = pa.array([number % 2 == 1 for number in batch.column(1).to_pylist()])
        out.emit_side("odd", batch.filter(odd))
        out.emit(batch.filter(pa.array([not each for each in odd.to_pylist()])))


def split(*, consumed: bool) -> JobGraph:
    chains = [chain("source", [lambda: Numbers(6), Odd, Pass]), chain("even", [Seen]), chain("odd", [Seen])]
    edges = [("source", "even", Partitioning.FORWARD), ("source", "odd", Partitioning.FORWARD)]
    made = graph(chains if consumed else chains[:2], edges if consumed else edges[:1])
    return replace(made, edges=(made.edges[0], *(replace(edge, output="odd") for edge in made.edges[1:])))


def ended(made: JobGraph) -> Job:
    job = Job(made, checkpointing=False)
    job.run()
    job.clock.advance(1.0)
    job.run()
    assert all(reports.events == ["drained", "finished"] for reports in job.reports.values())
    return job


def seen(job: Job, name: str) -> list[int]:
    return sorted(number for _, number in job.operator(name).state)  # type: ignore[attr-defined]


def test_rows_for_a_side_output_go_to_its_edges_alone_past_the_rest_of_the_chain() -> None:
    job = ended(split(consumed=True))
    assert seen(job, "even") == [0, 2, 4]
    assert seen(job, "odd") == [1, 3, 5]


def test_a_side_output_that_nobody_takes_is_let_go() -> None:
    job = ended(split(consumed=False))
    assert seen(job, "even") == [0, 2, 4]


class Sleepy(Pass):
    """Says that it is idle a second after its last rows."""

    passes_watermarks = False

    def __init__(self) -> None:
        self._time: int | None = None
        self._idle_at: int | None = None
        self._idle = False

    def open(self, context) -> None:  # type: ignore[no-untyped-def]
        self._clock = context.clock

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        self._idle, self._idle_at = False, self._clock.wall_ms() + 1_000
        out.emit(batch)

    def on_watermark(self, time: int, out: Collector) -> None:
        self._time = time

    def emitted_watermark(self) -> int | None:
        return self._time

    def is_idle(self, input_idle: bool) -> bool:
        return input_idle or self._idle

    def next_timer(self) -> int | None:
        return self._idle_at

    def on_timer(self, now_ms: int, out: Collector) -> None:
        self._idle, self._idle_at = True, None


def test_an_operator_with_its_own_time_says_when_it_is_idle_and_rows_end_that_before_they_go_out() -> None:
    lone = Lone(Sleepy)
    lone.arrives(A, rows(0, [1])).run()
    lone.sent()
    lone.step(2.0)
    lone.run()
    assert lone.sent() == [Idle(active=False)]
    lone.arrives(A, rows(0, [2]), Watermark(5)).arrives(B, Watermark(5)).run()
    lone.step(1.5)
    sent = lone.run().sent()
    assert sent == [Idle(active=True), [(0, 2)], Watermark(5), Idle(active=False)]


def test_a_source_that_is_ahead_is_not_polled_until_the_slowest_has_come_closer() -> None:
    made = graph(
        [
            chain("source", [lambda: Numbers(100, watermarks=False), lambda: WatermarkOperator("n", 0, None, 10)]),
            chain("sink", [Seen]),
        ],
        [("source", "sink", Partitioning.FORWARD)],
    )
    job = Job(made, checkpointing=False)
    source = job.tasks[subtask("source")]
    source.put(Align(0))
    job.run()
    assert source.aligned_time is not None
    assert 10 < source.aligned_time < 20
    before = source.rows_in
    job.clock.advance(60.0)
    job.run()
    assert source.rows_in == before
    source.put(Align(5))
    job.run()
    assert source.rows_in > before
