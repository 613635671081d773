"""The keyed function of simulated jobs: counts and adds up per key in every kind of state, with event-time timers."""

from __future__ import annotations

from typing import Any

from penstock.operators.keyed import KeyedContext, KeyedFunction, Timer
from penstock.simulation.records import BUCKET_MS, SEQ_BASE, next_path, timer_identity
from penstock.simulation.witness import Witness
from penstock.state import declare


def _add_square(accumulator: tuple[int, int], value: int) -> tuple[int, int]:
    return accumulator[0] + 1, accumulator[1] + value % 1000


class Tally(KeyedFunction):
    """Passes every record on with its number and the sum of its key so far, and puts out one row for every bucket of
    event time in which the key had records. All of its states say the same in different ways: they must agree."""

    count = declare.value(int, default=0)
    total = declare.value(int, default=0)
    ids = declare.list(int)
    buckets = declare.map(int, int)
    fired = declare.list(int)
    highest = declare.reducing(int, max)
    squares = declare.aggregating(tuple[int, int], create=lambda: (0, 0), add=_add_square)

    def __init__(self, node: int, witness: Witness) -> None:
        self._node, self._witness = node, witness

    def __deepcopy__(self, memo: object) -> Tally:
        return Tally(self._node, self._witness)

    def process(self, row: Any, ctx: KeyedContext) -> None:
        self.count.value += 1
        self.total.value += row.value
        self.ids.append(row.id)
        if row.id >= 0:
            bucket = row.time // BUCKET_MS
            if bucket not in self.buckets:
                ctx.timer_at((bucket + 1) * BUCKET_MS)
            self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.highest.add(row.id)
        self.squares.add(row.value)
        expected = (max(self.ids), self.count.value)
        if (self.highest.get(), self.squares.get()[0]) != expected:
            self._witness.object(f"node {self._node}, key {ctx.key}: folded state disagrees with {expected}")
        if len(self.ids) != self.count.value:
            self._witness.object(
                f"node {self._node}, key {ctx.key}: {self.count.value} counted, {len(self.ids)} remembered"
            )
        ctx.emit(
            id=row.id,
            key=row.key,
            value=row.value,
            time=row.time,
            path=row.path,
            # Only the records of one key keep their order here: from here on each key is a way of its own.
            route=next_path(row.route, 1000 + row.key),
            seq=self._node * SEQ_BASE + self.count.value,
            total=self.total.value,
        )

    def on_timer(self, timer: Timer, ctx: KeyedContext) -> None:
        bucket = timer.time // BUCKET_MS - 1
        if bucket not in self.buckets or bucket in self.fired.value:
            self._witness.object(f"node {self._node}, key {timer.key}: timer {timer.time} fired that was not set")
        self.fired.append(bucket)
        ctx.emit(
            id=timer_identity(self._node, timer.key, bucket),
            key=timer.key,
            value=0,
            time=timer.time,
            path=next_path(0, self._node),
            route=ctx.subtask,
            seq=0,
            total=0,
        )
