"""The functions of simulated jobs: each passes its records on and keeps state that says the same in different ways, so
that what is lost, repeated, mixed up or misread shows where it happens."""

from __future__ import annotations

import struct
from typing import Any, BinaryIO, Final, NamedTuple

from penstock.operators.keyed import KeyedContext, KeyedFunction, Timer
from penstock.operators.stream_function import StreamContext, StreamFunction
from penstock.simulation.records import (
    AFTER_ALL,
    BUCKET_MS,
    SEQ_BASE,
    held_identity,
    next_path,
    place_of,
    timer_identity,
)
from penstock.simulation.topology import Kind, Node
from penstock.simulation.versions import COUNTS, IDS, KEPT, PASTS, Place
from penstock.simulation.witness import Witness
from penstock.state import declare
from penstock.state.operator_state import operator_broadcast, operator_list, operator_union, raw


def _add_square(accumulator: tuple[int, int], value: int) -> tuple[int, int]:
    return accumulator[0] + 1, accumulator[1] + value % 1000


class Tally(KeyedFunction):
    """Passes every record on with its number and the sum of its key so far, and puts out one row for every bucket of
    event time in which the key had records. All of its states say the same in different ways: they must agree. Of the
    states whose types differ from version to version (see `TALLIES`), this is the oldest."""

    count = declare.value(int, default=0)
    total = declare.value(int, default=0)
    ids: Any = declare.list(IDS[0])
    buckets: Any = declare.map(int, COUNTS[0])
    past: Any = declare.value(PASTS[0][0])
    past_type = PASTS[0][0]
    fired = declare.list(int)
    highest = declare.reducing(int, max)
    squares = declare.aggregating(tuple[int, int], create=lambda: (0, 0), add=_add_square)

    def __init__(self, node: int, witness: Witness) -> None:
        self._node, self._witness = node, witness

    def __deepcopy__(self, memo: object) -> Tally:
        return type(self)(self._node, self._witness)

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
        past = self.past_type.begin(row.id) if self.past.value is None else self.past.value
        self.past.value = past.after(row.id, row.value)
        self._check(ctx)
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

    def _check(self, ctx: KeyedContext) -> None:
        expected = (max(self.ids), self.count.value)
        if (self.highest.get(), self.squares.get()[0]) != expected:
            self._witness.object(f"node {self._node}, key {ctx.key}: folded state disagrees with {expected}")
        if len(self.ids) != self.count.value:
            self._witness.object(
                f"node {self._node}, key {ctx.key}: {self.count.value} counted, {len(self.ids)} remembered"
            )
        if self.past.value.figures != (self.count.value, self.total.value):
            self._witness.object(
                f"node {self._node}, key {ctx.key}: {self.past.value} instead of {self.count.value, self.total.value}"
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


def _later_tally(version: int) -> type[Tally]:
    kind, options = PASTS[version]

    class Later(Tally):
        ids = declare.list(IDS[version])
        buckets = declare.map(int, COUNTS[version])
        past = declare.value(kind, **options)
        past_type = kind

    return Later


TALLIES: Final[tuple[type[Tally], ...]] = (Tally, *(_later_tally(version) for version in range(1, len(PASTS))))
"""By the version of the program."""


# ---- state that expires ----
LIFETIME_MS: Final = 64


class Recall(KeyedFunction):
    """Passes every record on. Knows of what expires when it was written, and so what must be left of it."""

    recent = declare.map(int, int, ttl=LIFETIME_MS / 1000)
    streak = declare.value(int, default=0, ttl=LIFETIME_MS / 1000)
    written = declare.map(int, int)
    """When each entry of `recent` was written last."""
    last = declare.value(tuple[int, int], default=(0, 0))
    """What `streak` was set to last, and when."""

    def __init__(self, node: int, witness: Witness) -> None:
        self._node, self._witness = node, witness

    def __deepcopy__(self, memo: object) -> Recall:
        return Recall(self._node, self._witness)

    def process(self, row: Any, ctx: KeyedContext) -> None:
        now, slot = ctx.now, row.id % 5
        alive = {slot for slot, time in self.written.value.items() if now < time + LIFETIME_MS}
        if set(self.recent.keys()) != alive:
            self._witness.object(f"node {self._node}, key {ctx.key}: {self.recent.keys()} live at {now}, not {alive}")
        count, since = self.last.value
        expected = count if now < since + LIFETIME_MS else 0
        if self.streak.value != expected:
            self._witness.object(f"node {self._node}, key {ctx.key}: {self.streak.value} at {now}, not {expected}")
        self.recent[slot] = self.written[slot] = now
        self.streak.value = expected + 1
        self.last.value = (expected + 1, now)
        ctx.emit(**{**dict(row), "route": next_path(row.route, 1000 + row.key)})


# ---- state of instances ----
_NOTED = struct.Struct("<qqqq")


class _Noted(NamedTuple):
    """As it is in raw state."""

    id: int
    key: int
    value: int
    path: int


class Keeper(StreamFunction):
    """Passes every record on and keeps a copy of it: in a list, in a list that everybody gets back, or in raw state. At
    the end of its input it puts the copies out: whatever became of the job's size meanwhile, each must be there once.

    Records that are broadcast to it are *rules*: they go into broadcast state and nowhere else. Those of one split must
    come one after another, none twice and none missing, on every instance."""

    held: Any = operator_list(KEPT[0][0])
    shared: Any = operator_union(KEPT[0][0])
    noted = raw()
    rules = operator_broadcast(int, int)
    """Split of the rules' source to how many came."""
    kept_type = KEPT[0][0]

    def __init__(self, node: Node, rules: Node | None, witness: Witness) -> None:
        self._node, self._rules, self._witness = node, rules, witness
        self._noted: list[_Noted] = []
        self._rule_path = next_path(0, node.number)

    def __deepcopy__(self, memo: object) -> Keeper:
        return type(self)(self._node, self._rules, self._witness)

    @noted.write
    def write_noted(self, stream: BinaryIO) -> None:
        stream.writelines(_NOTED.pack(*one) for one in self._noted)

    @noted.read
    def read_noted(self, stream: BinaryIO) -> None:
        self._noted += [_Noted(*fields) for fields in _NOTED.iter_unpack(stream.read())]

    def open(self, ctx: StreamContext) -> None:
        """Of the shared items an instance keeps its own; at another parallelism all are dealt out anew."""
        self._where = f"{self._node.uid}[{ctx.subtask}]"
        self._place: Place = (ctx.subtask, ctx.parallelism)
        states = {"list": self.held, "union": self.shared, "raw": self._noted, "broadcast": self.rules}
        self._witness.took_up.update(name for name, state in states.items() if len(state))
        shared = self.shared.value
        if all(item.place[1] == ctx.parallelism for item in shared):
            own = [item for item in shared if item.place[0] == ctx.subtask]
        else:
            own = [item.at(self._place) for item in shared[ctx.subtask :: ctx.parallelism]]
        self.shared.set(own)

    def process(self, row: Any, ctx: StreamContext) -> None:
        if self._rules is not None and row.path == self._rule_path and place_of(row.id)[0] == self._rules.number:
            self._obey(row)
            return
        if row.id >= 0:
            self._keep(row)
        ctx.emit(**dict(row))

    def _obey(self, row: Any) -> None:
        _, split, index = place_of(row.id)
        known = self.rules.get(split, 0)
        if index != known and self._witness.exactly_once:
            self._witness.object(f"{self._where} knows {known} rules of split {split}, now came number {index}")
        self.rules[split] = index + 1

    def _keep(self, row: Any) -> None:
        if row.id % 3 == 2:
            self._noted.append(_Noted(row.id, row.key, row.value, row.path))
        else:
            state = self.shared if row.id % 3 else self.held
            state.append(self.kept_type(row.id, row.key, row.value, row.path, self._place))

    def finish(self, ctx: StreamContext) -> None:
        if self._rules is not None and self._witness.exactly_once:
            self._check_rules(self._rules)
        for item in (*self.held, *self.shared, *self._noted):
            ctx.emit(
                id=held_identity(self._node.number, item.id),
                key=item.key,
                value=item.value,
                time=AFTER_ALL,
                path=item.path,
                route=ctx.subtask,
                seq=0,
                total=0,
            )
        # What is put out must not be there any more when this is called again, in a job of another size.
        self.held.clear()
        self.shared.clear()
        self._noted.clear()

    def _check_rules(self, source: Node) -> None:
        for split, rows in enumerate(source.rows):
            read = self._witness.rows_read(source.number, split) if source.kind is Kind.SOURCE else rows
            if self.rules.get(split, 0) != read:
                self._witness.object(f"{self._where} knows {self.rules.get(split, 0)} of {read} rules of split {split}")


def _later_keeper(version: int) -> type[Keeper]:
    kept, options = KEPT[version]

    class Later(Keeper):
        held = operator_list(kept, **options)
        shared = operator_union(kept, **options)
        kept_type = kept

    return Later


KEEPERS: Final[tuple[type[Keeper], ...]] = (Keeper, *(_later_keeper(version) for version in range(1, len(KEPT))))
"""By the version of the program."""
