"""Operator cases as whole jobs in the simulation: `penstock verify --operators`.

A run is one case with one seed: random records, a random scenario (faults, sizes, layers, changelog), the production
graph of the case's pipeline. The guarantees are those of exactly-once modes, or of a job without checkpoints.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from random import Random
from typing import Final

import polars as pl
import pyarrow as pa

from penstock.api.stream import Stream
from penstock.connectors.collect import Collect
from penstock.core.barrier import Mode
from penstock.core.ids import CheckpointId, Uid
from penstock.core.settings import RocksDBSettings
from penstock.graph import nodes
from penstock.graph.build import build
from penstock.graph.job import JobGraph
from penstock.graph.plan import Node, Plan, Route
from penstock.operators.base import Collector, Operator
from penstock.operators.windows import sessions, timed
from penstock.simulation.build import JOB
from penstock.simulation.cases.case import Input, plain
from penstock.simulation.cases.catalogue import CASES
from penstock.simulation.cases.inputs import random_input, source_of
from penstock.simulation.checks import collected_rows
from penstock.simulation.faults import SIMULATED, Action, Fault, Point
from penstock.simulation.ledger import WatchedSink
from penstock.simulation.nodes import UserError
from penstock.simulation.run import Outcome, observed, outcomes
from penstock.simulation.scenario import Scenario, random_scenario
from penstock.simulation.topology import Topology
from penstock.simulation.witness import Witness
from penstock.simulation.world import MAX_STEPS, World

_NO_TOPOLOGY: Final = Topology((), 0)
_PORTION: Final = 2
"""Rows of a window that are put out in one step: barriers come in between."""
_ROCKSDB_MEMORY: Final = 16 << 20
_SIZES: Final = (1, 2, 3)


@dataclass(frozen=True)
class OperatorRun:
    case: str
    seed: int
    faults: bool = True
    """Without, nothing goes wrong."""
    parallelism: int | None = None
    """To begin with; None: the seed decides."""

    def __str__(self) -> str:
        return f"{self.case}, seed {self.seed}"

    def scenario(self) -> Scenario:
        base = random_scenario(self.seed)
        random = Random(f"operators {self.seed}")
        settings = base.checkpoints
        if settings is not None:
            mode = settings.mode if settings.mode.exactly_once else Mode.ADAPTIVE
            settings = replace(settings, mode=mode, every=base.tick * random.choice((15, 40, 100)))
        runtime = base.runtime
        if CASES[self.case].rocksdb:
            runtime = replace(runtime, rocksdb=RocksDBSettings(memory=_ROCKSDB_MEMORY))
        # No operator here raises when it is captured. A loss late in the job is what there is state for.
        faults = tuple(fault for fault in base.faults if fault.action is not Action.SNAPSHOT_ERROR)
        faults += (Fault(Point.STEP, random.randint(1, 300), Action.KILL_WORKER, random.randint(0, 4)),)
        return replace(
            base,
            topology=_NO_TOPOLOGY,
            checkpoints=settings,
            runtime=runtime,
            faults=faults if self.faults else (),
            idle=False,
            drain_at=None,
            rescaling=base.rescaling and self.faults,
            evolving=False,
        )


class _Fragile(Operator):
    """User code, which a fault makes raise."""

    def __init__(self, witness: Witness) -> None:
        self._witness = witness

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        if self._witness.raise_in_process:
            self._witness.raise_in_process = False
            raise UserError(f"{SIMULATED} this batch cannot be processed")
        out.emit(batch)


class OperatorWorld(World):
    max_steps = 5 * MAX_STEPS

    def __init__(self, run: OperatorRun, input: Input | None = None) -> None:
        """`input`: other records than the seed's."""
        self._run, self._case = run, CASES[run.case]
        random = Random(f"operators {run.case} {run.seed}")
        self.input = random_input(random, self._case) if input is None else input
        self._size = run.parallelism or random.choice(_SIZES)
        self._outputs: dict[str, pa.Schema] = {}
        super().__init__(run.scenario())
        self.story.tell(f"{run}: {self.input.table.num_rows} records, key {self.input.key}")

    def _next_graph(self, number: int) -> JobGraph:
        if self.drivers and self.scenario.rescaling and self.random.random() < 0.7:
            self._size = self.random.choice(_SIZES)
            self.story.tell(f"at parallelism {self._size}")
        plan = Plan(JOB, self._size, self.key_groups)
        routes = nodes.add_source(plan, source_of(self.input), "records", None)
        fragile = Node(nodes.site_of("fragile", "fragile"), partial(_Fragile, self.witness), self.input.schema, routes)
        records = Stream(plan, (Route(plan.add(fragile)),))
        stream = records.with_watermark("ts", delay=self.input.delay / 1_000, uid="time")
        for name, output in self._case.build(stream, self.input).items():
            self._outputs[name] = output.schema
            output.sink(WatchedSink(Collect(), self.ledger, number), uid=name)
        return build(plan)

    def check_commit(self, uid: Uid, checkpoint: CheckpointId) -> None:
        """What is right in the middle of a job is not known here."""

    def found(self) -> dict[str, pl.DataFrame]:
        """What was committed."""
        return {name: plain(collected_rows(self, Uid(name), schema)) for name, schema in self._outputs.items()}

    def check_output(self) -> None:
        self._case.check(self.input, self.found())

    def figures(self) -> dict[str, int]:
        return {**super().figures(), "records": self.input.table.num_rows}


@contextmanager
def _small_portions() -> Iterator[None]:
    before = timed.PORTION, sessions.PORTION
    timed.PORTION = sessions.PORTION = _PORTION  # type: ignore[misc]
    try:
        yield
    finally:
        timed.PORTION, sessions.PORTION = before  # type: ignore[misc]


def operate(run: OperatorRun, input: Input | None = None) -> Outcome:
    """The same at every call, in every process."""
    with _small_portions():
        return observed(OperatorWorld(run, input), run.seed)


# ---- many of them ----
@dataclass(frozen=True)
class CaseSummary:
    case: str
    runs: int
    violations: int
    records: int
    checkpoints: int
    restores: int
    rescaled: int


@dataclass(frozen=True)
class FailedOperator:
    case: str
    seed: int
    message: str

    @property
    def replay(self) -> str:
        return f"penstock verify --operators --case {self.case!r} --seed {self.seed}"


@dataclass(frozen=True)
class OperatorSummary:
    runs: int
    violations: int
    crashes: int
    faults: int
    steps: int
    seconds: float
    cases: list[CaseSummary]
    failures: list[FailedOperator]

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def operator_runs(seeds: Iterable[int], cases: Sequence[str] = tuple(CASES)) -> list[OperatorRun]:
    """Seed by seed all cases."""
    return [OperatorRun(case, seed) for seed in seeds for case in cases]


def verify_operators(
    runs: Sequence[OperatorRun],
    processes: int = 2,
    each: Callable[[OperatorRun, Outcome], None] = lambda run, outcome: None,
) -> OperatorSummary:
    """Runs all of them, in several processes. `each` hears of every run in turn."""
    began = time.perf_counter()
    by_case: dict[str, list[Outcome]] = {}
    failures: list[FailedOperator] = []
    for run, outcome in zip(runs, outcomes(operate, runs, processes), strict=True):
        each(run, outcome)
        by_case.setdefault(run.case, []).append(outcome)
        if outcome.violation is not None:
            failures.append(FailedOperator(run.case, run.seed, outcome.violation))
    cases = [_summary_of(case, found) for case, found in by_case.items()]
    every = [outcome for found in by_case.values() for outcome in found]
    return OperatorSummary(
        runs=len(every),
        violations=len(failures),
        crashes=_total(every)["crashes"],
        faults=_total(every)["faults"],
        steps=sum(outcome.steps for outcome in every),
        seconds=round(time.perf_counter() - began, 3),
        cases=cases,
        failures=failures,
    )


def _total(found: Sequence[Outcome]) -> Counter[str]:
    total: Counter[str] = Counter()
    for outcome in found:
        total.update(outcome.figures)
    return total


def _summary_of(case: str, found: Sequence[Outcome]) -> CaseSummary:
    total = _total(found)
    return CaseSummary(
        case,
        runs=len(found),
        violations=sum(outcome.violation is not None for outcome in found),
        records=total["records"],
        checkpoints=total["checkpoints"],
        restores=total["restores"],
        rescaled=total["rescaled"],
    )
