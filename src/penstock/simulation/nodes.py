"""The user code of simulated jobs: a source that can be replayed, and a stamp at the head of every other node that
records the way of the records, filters if it must, and checks on the spot what must hold inside the job.

Small batches of integers only: thousands of runs a minute leave no room for more.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec
import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.core.ids import Attempt, CheckpointId, Generation
from penstock.operators.base import Collector, Operator, OperatorContext, Polled, SourceOperator
from penstock.runtime.elements import MIN_WATERMARK
from penstock.simulation.faults import SIMULATED
from penstock.simulation.records import COLUMNS, STEP_MS, kept, next_paths, origin_of
from penstock.simulation.topology import Kind, Node
from penstock.simulation.witness import Witness
from penstock.state.parts import CapturedPart, OperatorSnapshot, PartKind

_ID, _TIME, _PATH, _ROUTE = (COLUMNS.index(name) for name in ("id", "time", "path", "route"))


class UserError(RuntimeError):
    """What simulated user code raises when the plan of faults says so."""


class ScriptedSource(SourceOperator):
    """Reads split i of its node on subtask i: slices of one prepared batch, with pauses in between."""

    def __init__(
        self, node: Node, splits: Sequence[pa.RecordBatch], random: Random, idle: bool, witness: Witness
    ) -> None:
        self._node, self._splits, self._random, self._idle, self._witness = node, splits, random, idle, witness
        self._split, self._position = 0, 0
        self._run = (Generation(0), Attempt(0))

    def open(self, context: OperatorContext) -> None:
        self._split, self._run = context.subtask, (context.generation, context.attempt)
        for part in context.restored:
            split, position = msgspec.json.decode(part.read(), type=tuple[int, int])
            if split == self._split:
                self._position = position

    def poll(self, max_rows: int) -> Polled:
        rows = self._splits[self._split]
        left = rows.num_rows - self._position
        if left and self._random.random() < self._node.pause:
            return Polled(idle_for=0.002, idle=self._idle)
        count = min(left, max_rows, self._random.randint(1, self._node.batch))
        batch = rows.slice(self._position, count) if count else None
        self._position += count
        last = (self._position - 1) * STEP_MS if self._position else None
        return Polled(batch=batch, watermark=last, done=self._position == rows.num_rows)

    def finish(self, out: Collector) -> None:
        self._witness.source_ended(self._node.number, self._split, self._run, self._position)

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        position = (self._split, self._position)
        self._witness.source_cut(self._node.number, self._split, self._run, barrier, self._position)
        return OperatorSnapshot((CapturedPart("splits", PartKind.UNION, lambda: [msgspec.json.encode(position)]),))


class Stamp(Operator):
    """Head of every node that has input."""

    def __init__(self, node: Node, witness: Witness) -> None:
        self._node, self._witness = node, witness
        self._subtask = 0
        self._last: dict[tuple[int, int], int] = {}
        """By origin and route so far: the id that came last."""
        self._watermark = MIN_WATERMARK
        self._completed: set[CheckpointId] = set()
        self._where = ""

    def open(self, context: OperatorContext) -> None:
        self._subtask = context.subtask
        self._where = f"{self._node.uid}[{context.subtask}] of attempt {context.attempt}"
        for part in context.restored:
            self._watermark, seen = msgspec.json.decode(part.read(), type=tuple[int, list[tuple[int, int, int]]])
            self._last = {(origin, route): id for origin, route, id in seen}

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        if self._witness.raise_in_process:
            self._witness.raise_in_process = False
            raise UserError(f"{SIMULATED} this row cannot be processed")
        if self._witness.exactly_once:
            self._check(batch)
        columns = batch.columns
        step = self._node.number * 8 + self._subtask
        columns[_PATH] = pa.array(next_paths(columns[_PATH].to_numpy(), self._node.number))
        columns[_ROUTE] = pa.array(next_paths(columns[_ROUTE].to_numpy(), step))
        stamped = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        if self._node.kind is Kind.FILTER:
            number = self._node.number
            stamped = stamped.filter(pa.array([kept(id, number) for id in columns[_ID].to_pylist()]))
        if stamped.num_rows:
            out.emit(stamped)

    def _check(self, batch: pa.RecordBatch) -> None:
        ids, routes = batch.column(_ID).to_pylist(), batch.column(_ROUTE).to_pylist()
        for id, route in zip(ids, routes, strict=True):
            if id < 0:
                continue
            way = (origin_of(id), route)
            last = self._last.get(way, -1)
            if id <= last:
                what = "twice" if id == last else f"after record {last:#x} of the same origin and route"
                self._witness.object(f"record {id:#x} came to {self._where} {what}")
            self._last[way] = id
        if self._witness.in_time:
            earliest = int(batch.column(_TIME).to_numpy().min())
            if earliest <= self._watermark:
                self._witness.object(
                    f"{self._where} got a record of time {earliest} behind the watermark {self._watermark}"
                )

    def on_watermark(self, time: int, out: Collector) -> None:
        if time < self._watermark and self._witness.exactly_once:
            self._witness.object(f"the watermark of {self._where} went back from {self._watermark} to {time}")
        self._watermark = time

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        if self._witness.raise_in_snapshot:
            self._witness.raise_in_snapshot = False
            raise UserError(f"{SIMULATED} this state cannot be captured")
        seen = [(origin, route, id) for (origin, route), id in self._last.items()]
        watermark = self._watermark
        return OperatorSnapshot(
            (CapturedPart("seen", PartKind.LIST, lambda: [msgspec.json.encode((watermark, seen))]),)
        )

    def on_complete(self, checkpoint: CheckpointId) -> None:
        if checkpoint in self._completed:
            self._witness.object(f"{self._where} was told twice that checkpoint {checkpoint} is complete")
        if checkpoint not in self._witness.completed:
            self._witness.object(f"{self._where} was told that checkpoint {checkpoint} is complete, but it is not")
        self._completed.add(checkpoint)
