"""A source whose records are a pure function of their index: replayable by construction, at any rate and parallelism.

Theory of operation. The indices 0, 1, 2, ... are dealt to a fixed number of *splits*: split `s` of `S` holds `s`, `s +
S`, `s + 2S`, ... A subtask reads the splits `s` with `s % parallelism == subtask`; its positions are one *round* per
split (round `r` of split `s` is index `r * S + s`). All splits of a subtask advance together, so that it emits its
indices in rising order; the number of splits is part of the job, not of the parallelism, so that any other parallelism
picks the positions up. Splits that come together from different subtasks after a restore are at different rounds: the
ones behind go first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.operators.base import Clock, OperatorContext, Polled, SourceOperator
from penstock.state.parts import Buffer, CapturedPart, OperatorSnapshot, PartKind, RestoredPart

Index = npt.NDArray[np.int64]
Column = Callable[[Index], Any]
"""From indices to as many values: a NumPy or Arrow array."""
Table = Callable[[Index], Any]
"""From indices to a record batch of as many rows, or a mapping of column names to arrays."""

DEFAULT_SPLITS = 128
_MAX_SPLITS = 1 << 16
_PART = "splits"
_BEAT = 0.003
"""Seconds between two batches of a rate-limited source: at high rates a batch per beat, not a batch per row. All
subtasks on a machine keep the same beat, so that none is ahead of the others in event time: windows wait for the
slowest."""
_BURST = 1.0
"""Seconds of its rate that a source which was held up may catch up at once."""


class Generator:
    """`Generator(1_000_000, {"id": lambda i: i, "amount": lambda i: i % 100})`

    `count`: how many records in all; None for an endless stream.
    `columns`: a function per column, or one function for all: each gets an int64 array of indices and answers with as
    many values. It must depend on the indices alone, for the same records have to come again after a failure.
    `rate`: records per second, all subtasks together; None for as fast as they are taken.
    `splits`: in how many shares the indices are dealt; the most subtasks that can have work. Fixed for a job's life.
    """

    def __init__(
        self,
        count: int | None,
        columns: Mapping[str, Column] | Table,
        *,
        rate: float | None = None,
        splits: int = DEFAULT_SPLITS,
    ):
        if count is not None and count < 0:
            raise ValueError(f"Generator: count must be 0 or more, or None for an endless stream, not {count}")
        if rate is not None and not rate > 0:
            raise ValueError(f"Generator: rate must be above 0 records per second, or None for no limit, not {rate}")
        if not 1 <= splits <= _MAX_SPLITS:
            raise ValueError(f"Generator: splits must be from 1 to {_MAX_SPLITS}, not {splits}")
        self.count, self.rate, self.splits = count, rate, splits
        self._columns = columns
        self._schema = self._infer()

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def bounded(self) -> bool:
        return self.count is not None

    def operator(self) -> SourceOperator:
        return _GeneratorOperator(self)

    def generate(self, index: Index) -> pa.RecordBatch:
        """The records of these indices."""
        return self._checked(self._call(index), len(index))

    def _call(self, index: Index) -> pa.RecordBatch:
        if isinstance(self._columns, Mapping):
            made: Any = {name: function(index) for name, function in self._columns.items()}
        else:
            made = self._columns(index)
        if isinstance(made, pa.RecordBatch):
            return made
        if not isinstance(made, Mapping):
            raise TypeError(f"Generator: the function must return a pyarrow.RecordBatch or a mapping, not {type(made)}")
        return pa.record_batch({name: _array(name, values) for name, values in made.items()})

    def _infer(self) -> pa.Schema:
        schema = self._call(np.zeros(1, np.int64)).schema
        if not len(schema):
            raise ValueError("Generator: there must be at least one column")
        for field in schema:
            if pa.types.is_null(field.type):
                raise ValueError(
                    f"Generator: the type of column {field.name!r} cannot be told from its first value, which is null."
                    " Return a pyarrow array of the type that you mean"
                )
        return schema

    def _checked(self, batch: pa.RecordBatch, rows: int) -> pa.RecordBatch:
        if batch.schema.names != self._schema.names:
            raise ValueError(
                f"Generator: columns were {self._schema.names} for index 0, now they are {batch.schema.names}"
            )
        for field in self._schema:
            column = batch.column(field.name)
            if len(column) != rows:
                raise ValueError(f"Generator: column {field.name!r} has {len(column)} values for {rows} indices")
            if column.type != field.type:
                raise ValueError(
                    f"Generator: column {field.name!r} was {field.type} for index 0, now it is {column.type}"
                )
        return batch


def _array(name: str, values: Any) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    if np.ndim(values) != 1:
        raise ValueError(
            f"Generator: column {name!r} must be an array with a value per index, not {type(values).__name__} of shape"
            f" {np.shape(values)}"
        )
    return pa.array(values)


class _Positions(msgspec.Struct, frozen=True, array_like=True):
    splits: int
    rounds: dict[int, int]
    """Of every split of one subtask: the round that comes next."""


class _GeneratorOperator(SourceOperator):
    def __init__(self, source: Generator):
        self._source = source

    def open(self, context: OperatorContext) -> None:
        own = np.arange(context.subtask, self._source.splits, context.parallelism, dtype=np.int64)
        self._splits, self._rounds = _restored(self._source, own, context.restored)
        count = self._source.count
        # Round r of split s exists if r * splits + s < count.
        self._ends: Index | None = (
            None if count is None else np.maximum(0, -((self._splits - count) // self._source.splits))
        )
        rate = self._source.rate
        share = len(own) / self._source.splits
        if rate is None or not share:
            self._allowance = None
        else:
            self._allowance = _Allowance(rate * share, context.clock, context.deployed_ms)

    def poll(self, max_rows: int) -> Polled:
        if self._finished():
            return Polled(done=True)
        if not len(self._splits):
            return Polled(idle=True, idle_for=60.0)
        if self._allowance is not None:
            max_rows = min(max_rows, self._allowance.rows())
            if max_rows < 1:
                return Polled(idle_for=self._allowance.pause())
        batch = self._source.generate(self._advance(max_rows))
        if self._allowance is not None:
            self._allowance.spend(batch.num_rows)
            return Polled(batch, done=self._finished(), idle_for=self._allowance.pause())
        return Polled(batch, done=self._finished())

    def _finished(self) -> bool:
        return self._ends is not None and bool((self._rounds >= self._ends).all())

    def _advance(self, max_rows: int) -> Index:
        """The next indices in order, moving the positions past them."""
        rounds = self._rounds
        if self._ends is not None:
            rounds = np.where(rounds < self._ends, rounds, np.iinfo(np.int64).max)
        first = int(rounds.min())
        members = np.flatnonzero(rounds == first)[:max_rows]
        stop = first + max(1, max_rows // len(members))
        behind = rounds[rounds > first]
        if len(behind):
            stop = min(stop, int(behind.min()))
        if self._ends is not None:
            stop = min(stop, int(self._ends[members].min()))
        self._rounds[members] = stop
        steps = np.arange(first, stop, dtype=np.int64) * self._source.splits
        indices: Index = (steps[:, None] + self._splits[members][None, :]).ravel()
        return indices

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        positions = _Positions(
            self._source.splits, dict(zip(self._splits.tolist(), self._rounds.tolist(), strict=True))
        )

        def encode() -> Sequence[Buffer]:
            return (msgspec.msgpack.encode(positions),)

        return OperatorSnapshot((CapturedPart(_PART, PartKind.UNION, encode, small=True),))


def _restored(source: Generator, own: Index, parts: Sequence[RestoredPart]) -> tuple[Index, Index]:
    """The splits that are left to read, and the round that comes next in each."""
    written = [msgspec.msgpack.decode(part.read(), type=_Positions) for part in parts if part.name == _PART]
    if not written:
        return own, np.zeros(len(own), np.int64)
    found: dict[int, int] = {}
    for positions in written:
        if positions.splits != source.splits:
            raise ValueError(
                f"the checkpoint was taken with Generator(splits={positions.splits}), the program has"
                f" splits={source.splits}: the positions do not fit. Set splits={positions.splits}"
            )
        found.update(positions.rounds)
    # A split that nobody wrote, while others were, belonged to a subtask that had finished.
    left = np.array([split for split in own.tolist() if split in found], dtype=np.int64)
    return left, np.array([found[split] for split in left.tolist()], dtype=np.int64)


class _Allowance:
    """How many rows a rate allows by now: a bucket that fills with time and holds `_BURST` seconds at most. It begins
    to with the deployment, which is the same moment for all subtasks: they begin to poll one after another, and a
    difference would stay for good, as one of event time for which all windows wait. What took long before the first
    poll is made up for only as far as the bucket holds it, and equally by all."""

    def __init__(self, rate: float, clock: Clock, deployed_ms: int):
        self._rate = rate
        self._clock = clock
        self._deployed_ms = deployed_ms
        self._filled: float | None = None
        self._tokens = 0.0

    def rows(self) -> int:
        now = self._clock.now()
        most = max(1.0, self._rate * _BURST)
        if self._filled is None:
            self._filled = now - self._begun_for()
        self._tokens = min(most, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        return int(self._tokens)

    def _begun_for(self) -> float:
        """Seconds from the deployment to now, less whole bursts."""
        if not self._deployed_ms:
            return 0.0
        return max(0.0, (self._clock.wall_ms() - self._deployed_ms) / 1000.0) % _BURST

    def spend(self, rows: int) -> None:
        self._tokens -= rows

    def pause(self) -> float:
        """Until the next beat at which there is at least one row; none while it is behind."""
        if self._tokens > self._rate * _BEAT:
            return 0.0
        now = self._clock.now()
        due = now + max(0.0, (1.0 - self._tokens) / self._rate)
        return math.floor(due / _BEAT + 1.0) * _BEAT - now
