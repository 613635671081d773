"""Keyed operators in the real chain: event time passes only as far as timers have fired; kernels load on demand."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.state.harness import KEY_GROUPS, Captured, ManualClock, captured, written

from penstock.core.ids import Attempt, Generation, Uid
from penstock.core.keygroups import range_of
from penstock.graph.job import OperatorSpec
from penstock.operators import process as process_module
from penstock.operators.base import OperatorContext, OperatorError
from penstock.operators.keyed import KeyedContext, KeyedFunction, Timer
from penstock.operators.process import ProcessOperator
from penstock.runtime.chain import OperatorChain
from penstock.runtime.elements import MAX_WATERMARK
from penstock.state.parts import RestoredPart

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.int64())])


class Echo(KeyedFunction):
    """Sends every row on when event time has reached it."""

    def process(self, row: Any, ctx: KeyedContext) -> None:
        if row.at < 0:
            raise ValueError("before the beginning")
        ctx.timer_at(row.at)

    def on_timer(self, timer: Timer, ctx: KeyedContext) -> None:
        ctx.emit(user=timer.key, at=timer.time)


class Chain:
    """Two such operators one after another; notes what leaves the chain, rows and watermarks in order."""

    def __init__(self, restored: dict[Uid, list[RestoredPart]] | None = None) -> None:
        self.left: list[object] = []
        specs = [
            OperatorSpec(
                Uid(uid), "process(Echo)", lambda: ProcessOperator(Echo, ("user",), SCHEMA, SCHEMA), SCHEMA, True
            )
            for uid in ("first", "second")
        ]
        self.chain = OperatorChain(
            specs, 0, lambda batch, _: self.left.extend(batch.column("at").to_pylist()), self._watermark
        )
        self.chain.open(lambda spec: self._context(spec, (restored or {}).get(spec.uid, [])))

    def _watermark(self, time: int) -> None:
        self.left.append(f"watermark {time}")

    def _context(self, spec: OperatorSpec, restored: list[RestoredPart]) -> OperatorContext:
        return OperatorContext(
            uid=spec.uid,
            name=spec.name,
            subtask=0,
            parallelism=1,
            key_groups=range_of(KEY_GROUPS, 1, 0),
            total_key_groups=KEY_GROUPS,
            attempt=Attempt(1),
            generation=Generation(1),
            clock=ManualClock(),
            restored=restored,
        )

    def feed(self, *times: int) -> None:
        self.chain.process(pa.record_batch([[f"k{time}" for time in times], list(times)], schema=SCHEMA), 0)

    def run_due(self) -> None:
        while self.chain.next_timer() == 0:
            self.chain.fire_timers(0)

    def stored(self) -> dict[Uid, list[RestoredPart]]:
        stored: dict[Uid, list[RestoredPart]] = {}
        for spec, operator in zip(self.chain._specs, self.chain.operators, strict=True):
            stored[spec.uid] = written([Captured(0, captured(operator))])
        return stored


def test_a_watermark_leaves_the_chain_after_everything_that_it_set_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "PORTION", 2)
    chain = Chain()
    chain.feed(5, 1, 3, 4, 2)
    chain.chain.advance(10)
    chain.run_due()
    rows = [entry for entry in chain.left if isinstance(entry, int)]
    assert rows == [1, 2, 3, 4, 5]
    for place, entry in enumerate(chain.left):
        if isinstance(entry, str):
            reached = int(entry.removeprefix("watermark "))
            assert all(row > reached for row in chain.left[place:] if isinstance(row, int))
    assert chain.left[-1] == "watermark 10"


def test_a_snapshot_between_two_portions_resumes_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "PORTION", 2)
    chain = Chain()
    chain.feed(*range(9))
    chain.chain.advance(100)
    before = [entry for entry in chain.left if isinstance(entry, int)]
    resumed = Chain(chain.stored())
    resumed.run_due()
    after = [entry for entry in resumed.left if isinstance(entry, int)]
    assert 0 < len(before) < 9
    assert before + after == list(range(9))
    assert resumed.left[-1] == "watermark 100"


def test_the_end_of_input_fires_everything_before_it_goes_on() -> None:
    chain = Chain()
    chain.feed(7, 3)
    chain.chain.finish()
    assert chain.left == [3, 7, f"watermark {MAX_WATERMARK}"]


def test_an_error_of_the_function_reaches_the_user_with_operator_and_row() -> None:
    with pytest.raises(OperatorError, match=r"'first'.*ValueError.*before the beginning") as caught:
        Chain().feed(1, -4)
    assert "Row(user='k-4', at=-4)" in caught.value.traceback


def test_small_keyed_pipelines_load_neither_numba_nor_polars() -> None:
    program = (
        "import sys, pyarrow as pa; from tests.unit.operators.test_keyed_chain import Chain; "
        "from penstock.operators.reduce import ReduceOperator; "
        "from penstock.operators.aggregation.declare import count; "
        "chain = Chain(); chain.feed(1, 2, 3); chain.stored(); chain.chain.finish(); "
        "loaded = {'numba', 'polars', 'pyspark'} & set(sys.modules); assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_after_the_warm_up_large_batches_need_no_further_variant_of_a_kernel() -> None:
    program = """
import numpy as np, pyarrow as pa
from tests.unit.state.harness import Job, ManualClock
import penstock as ps
from penstock.operators.aggregation.declare import count, sum
from penstock.operators.process import ProcessOperator
from penstock.operators.reduce import ReduceOperator
from penstock.operators.warmup import warm_up

warm_up(ManualClock())
from penstock.kernels import compiled, table

def variants():
    kernels = {**vars(compiled), **vars(table)}
    return {name: len(kernel.signatures) for name, kernel in kernels.items() if hasattr(kernel, "signatures")}

before = variants()
assert before["find_slots"] > 0
numbers = np.arange(1000)
batch = pa.record_batch({"k": numbers, "w": pa.array(numbers.astype(str)), "v": pa.array(numbers / 4)})
received = pa.ipc.read_record_batch(batch.serialize(), batch.schema)  # as from a connection: read-only memory
for key in ("k", "w"):
    job = Job(lambda: ReduceOperator((key,), {"n": count(), "total": sum("v")}, batch.schema), (key,), 2)
    job.feed(batch, received, received.slice(3))

class Sums(ps.KeyedFunction):
    total = ps.value(tuple[int, float, bool], default=(0, 0.0, False))

    def process(self, row, ctx):
        count, total, odd = self.total.value
        self.total.value = (count + 1, total + row.v, not odd)

for key in ("k", "w"):
    job = Job(lambda: ProcessOperator(Sums, (key,), batch.schema, batch.schema), (key,), 2)
    job.feed(batch, received, received.slice(3)).snapshot()
assert variants() == before, (before, variants())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=110)
