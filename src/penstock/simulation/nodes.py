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

_ID, _KEY, _TIME, _PATH, _ROUTE = (COLUMNS.index(name) for name in ("id", "key", "time", "path", "route"))


class _Seen(msgspec.Struct, frozen=True):
    """What one subtask of a stamp remembers."""

    width: int
    watermark: int
    last: list[tuple[int, int, int, int]]


class UserError(RuntimeError):
    """What simulated user code raises when the plan of faults says so."""


class ScriptedSource(SourceOperator):
    """Reads split i of its node on subtask i % parallelism: slices of one prepared batch, with pauses in between."""

    def __init__(
        self, node: Node, splits: Sequence[pa.RecordBatch], random: Random, idle: bool, witness: Witness
    ) -> None:
        self._node, self._splits, self._random, self._idle, self._witness = node, splits, random, idle, witness
        self._positions: dict[int, int] = {}
        """Of the splits that this subtask reads."""
        self._run = (Generation(0), Attempt(0))

    def open(self, context: OperatorContext) -> None:
        self._run = (context.generation, context.attempt)
        own = range(context.subtask, len(self._splits), context.parallelism)
        if not context.restored:
            self._positions = dict.fromkeys(own, 0)
        for part in context.restored:
            # Splits that nobody wrote were read by subtasks that had finished.
            for split, position in msgspec.json.decode(part.read(), type=list[tuple[int, int]]):
                if split in own:
                    self._positions[split] = position

    def poll(self, max_rows: int) -> Polled:
        left = [split for split, position in self._positions.items() if position < self._splits[split].num_rows]
        if left and self._random.random() < self._node.pause:
            return Polled(idle_for=0.002, idle=self._idle)
        batch = None
        if left:
            split = left[0] if len(left) == 1 else self._random.choice(left)
            rows, position = self._splits[split], self._positions[split]
            count = min(rows.num_rows - position, max_rows, self._random.randint(1, self._node.batch))
            batch = rows.slice(position, count)
            self._positions[split] += count
            left = [split for split in left if self._positions[split] < self._splits[split].num_rows]
        return Polled(batch=batch, watermark=self._watermark(left), done=not left)

    def _watermark(self, left: list[int]) -> int | None:
        """The lowest of the splits that go on; of the last one, when it has ended, its own."""
        behind = min(self._positions[split] for split in left) if left else max(self._positions.values(), default=0)
        return (behind - 1) * STEP_MS if behind else None

    def finish(self, out: Collector) -> None:
        for split, position in self._positions.items():
            self._witness.source_ended(self._node.number, split, self._run, position)

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        positions = list(self._positions.items())
        for split, position in positions:
            self._witness.source_cut(self._node.number, split, self._run, barrier, position)
        return OperatorSnapshot((CapturedPart("splits", PartKind.UNION, lambda: [msgspec.json.encode(positions)]),))


class Stamp(Operator):
    """Head of every node that has input."""

    def __init__(self, node: Node, witness: Witness, ordered: bool, by_key: bool) -> None:
        self._node, self._witness, self._ordered, self._by_key = node, witness, ordered, by_key
        self._subtask, self._width = 0, 1
        self._last: dict[tuple[int, int, int], int] = {}
        """By origin, route so far, and key where each key is a way of its own: the id that came last."""
        self._watermark = MIN_WATERMARK
        self._completed: set[CheckpointId] = set()
        self._where = ""

    def open(self, context: OperatorContext) -> None:
        self._subtask, self._width = context.subtask, context.parallelism
        self._where = f"{self._node.uid}[{context.subtask}] of attempt {context.attempt}"
        stored = {part.subtask: msgspec.json.decode(part.read(), type=_Seen) for part in context.restored}
        own = stored.get(context.subtask)
        if own is not None and own.width == self._width and context.same_share:
            self._watermark = own.watermark
            self._last = {(origin, route, key): id for origin, route, key, id in own.last}
        elif stored:
            self._watermark = min(seen.watermark for seen in stored.values())

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        if self._witness.raise_in_process:
            self._witness.raise_in_process = False
            raise UserError(f"{SIMULATED} this row cannot be processed")
        if self._witness.exactly_once:
            self._check(batch)
        columns = batch.columns
        step = (self._node.number * 8 + self._subtask) * 8 + self._width
        columns[_PATH] = pa.array(next_paths(columns[_PATH].to_numpy(), self._node.number))
        columns[_ROUTE] = pa.array(next_paths(columns[_ROUTE].to_numpy(), step))
        stamped = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        if self._node.kind is Kind.FILTER:
            number = self._node.number
            stamped = stamped.filter(pa.array([kept(id, number) for id in columns[_ID].to_pylist()]))
        if stamped.num_rows:
            out.emit(stamped)

    def _check(self, batch: pa.RecordBatch) -> None:
        ids, routes, keys = (batch.column(place).to_pylist() for place in (_ID, _ROUTE, _KEY))
        for id, route, key in zip(ids, routes, keys, strict=True):
            if id < 0 or not self._ordered:
                continue
            way = (origin_of(id), route, key if self._by_key else 0)
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
        seen = _Seen(self._width, self._watermark, [(*way, id) for way, id in self._last.items()])
        return OperatorSnapshot((CapturedPart("seen", PartKind.UNION, lambda: [msgspec.json.encode(seen)]),))

    def on_complete(self, checkpoint: CheckpointId) -> None:
        if checkpoint in self._completed:
            self._witness.object(f"{self._where} was told twice that checkpoint {checkpoint} is complete")
        if checkpoint not in self._witness.completed:
            self._witness.object(f"{self._where} was told that checkpoint {checkpoint} is complete, but it is not")
        self._completed.add(checkpoint)
