"""Loads the compiled kernels before the first record needs them.

The first large batch would otherwise wait for it: some tenths of a second for what is cached on disk, some seconds on a
machine where nothing is yet. It is done by running the production code on a made-up batch, so that exactly those
variants are compiled that it uses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.handles import KeyGroupRange
from penstock.core.ids import Attempt, Cut, Generation, Uid
from penstock.kernels.loading import COMPILED_FROM_ROWS
from penstock.kernels.partition import partition
from penstock.operators.aggregation.declare import count, max, min, sum
from penstock.operators.base import Clock, Emitted, Operator, OperatorContext
from penstock.operators.combining import AggregatesCombiner, Combine
from penstock.operators.keyed import KeyedContext, KeyedFunction
from penstock.operators.process import ProcessOperator
from penstock.operators.reduce import ReduceOperator
from penstock.operators.windows.times import EventTime
from penstock.state.declare import value

_KEY_GROUPS = 128
_ROWS = 8 * COMPILED_FROM_ROWS
"""Enough keys for an index to grow."""


class _Kept(KeyedFunction):
    """Keeps something of every usual type in columns."""

    kept = value(tuple[int, bool], default=(0, False))

    def process(self, row: Any, ctx: KeyedContext) -> None:
        self.kept.value = (self.kept.value[0] + 1, True)


def warm_up(clock: Clock) -> None:
    """Compiles or loads what keyed exchanges, aggregates of the usual types, functions and their snapshots need."""
    numbers = np.arange(_ROWS)
    words = numbers.astype(str)
    columns = {"number": numbers, "fraction": numbers / 2, "word": words, "text": np.char.add("some long text ", words)}
    batch = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
    for key in (("number",), ("word",), ("number", "text")):
        partition(batch, key, _KEY_GROUPS, 2)
    aggregates = {
        f"{make.__name__}_{column}": make(column)
        for make in (count, sum, min, max)
        for column in ("number", "fraction")
    }
    context = _context(clock)
    for column in ("number", "word", "text"):
        for operator in (
            ReduceOperator((column,), aggregates, batch.schema),
            ProcessOperator(_Kept, (column,), batch.schema, batch.schema),
        ):
            operator.open(context)
            operator.process(batch, 0, Emitted())
            _write(operator, changed=partial(operator.process, batch, 0, Emitted()))
        AggregatesCombiner((column,), aggregates, batch.schema, Combine.ALWAYS)(batch)


def warm_up_joins(clock: Clock) -> None:
    """Besides, what joins of two keyed streams need."""
    from penstock.operators.joins.interval import IntervalJoinOperator
    from penstock.operators.joins.running import RunningJoinOperator
    from penstock.operators.joins.shape import How, JoinSide
    from penstock.operators.joins.temporal import TemporalJoinOperator

    kinds = pa.repeat("insert", _ROWS), pa.repeat("delete", _ROWS)
    numbers = pa.array(np.arange(_ROWS))
    added, taken = (pa.record_batch({"op": kind, "key": numbers, "time": numbers}) for kind in kinds)
    plain, marked = (JoinSide(added.schema, ("key",), changelog) for changelog in (False, True))
    times = EventTime("time"), EventTime("time")
    for operator in (
        RunningJoinOperator(marked, marked, How.INNER),
        IntervalJoinOperator(plain, plain, times, 0, 1, How.INNER),
        TemporalJoinOperator(plain, plain, times, How.INNER),
    ):
        operator.open(_context(clock))
        for batch in (added, taken):
            for input in (0, 1):
                operator.process(batch, input, Emitted())
        operator.on_watermark(2 * _ROWS, Emitted())


def _context(clock: Clock) -> OperatorContext:
    return OperatorContext(
        uid=Uid("warm-up"),
        name="warm-up",
        subtask=0,
        parallelism=1,
        key_groups=KeyGroupRange(0, _KEY_GROUPS),
        total_key_groups=_KEY_GROUPS,
        attempt=Attempt(0),
        generation=Generation(0),
        clock=clock,
    )


def _write(operator: Operator, changed: Callable[[], None]) -> None:
    """All of its state, and what `changed` changes in it."""
    for state in operator.logged():
        state.mark(Cut(1), Cut(1))
        for piece in state.whole(portable=False):
            deque(piece.encode(), maxlen=0)
    changed()
    for state in operator.logged():
        state.mark(Cut(2), Cut(1))
        if state.changed_since(Cut(1)):
            deque(state.changes(Cut(1))(), maxlen=0)
