"""reduce: a running aggregate per key, in columns.

For every batch, the key index gives each row its slot, every aggregate adds the batch to its array, and the updated row
of each key in the batch is put out, in the order in which the keys first occur in it. A snapshot copies nothing (see
`state/frozen.py`); it becomes one table, laid out by key group, with the results as plain columns: of all keys, or of
those that the index has found since the checkpoint that it is built upon.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.core.ids import CheckpointId
from penstock.kernels.gathering import taken
from penstock.operators.aggregates import Accumulator, Aggregate
from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.state.chain import Chain
from penstock.state.frozen import FrozenArrays
from penstock.state.index import DictIndex, Found, KeyIndex, Slots, suited_index
from penstock.state.keys import KeyColumns
from penstock.state.parts import Buffer, CapturedPart, OperatorSnapshot, PartKind, UnchangedPart
from penstock.state.tables import Rows, StateMismatch, encode_rows, key_columns_of, read_table

_PART = "aggregates"
_KIND = "aggregates"


def reduced_schema(input_schema: pa.Schema, key: Sequence[str], aggregates: Mapping[str, Aggregate]) -> pa.Schema:
    """Of the output: the key's columns, then one for each aggregate. Raises what is wrong with them."""
    if not aggregates:
        raise ValueError('reduce needs at least one aggregate: reduce(n=ps.count(), total=ps.sum("amount"))')
    fields = [input_schema.field(name) for name in key]
    for name, aggregate in aggregates.items():
        if name in key:
            raise ValueError(f"the aggregate {name!r} has the name of a key column: give it another")
        fields.append(pa.field(name, aggregate.type_in(input_schema)))
    return pa.schema(fields)


class ReduceOperator(Operator):
    def __init__(self, key: Sequence[str], aggregates: Mapping[str, Aggregate], input_schema: pa.Schema) -> None:
        self._schema = reduced_schema(input_schema, key, aggregates)
        self._columns = KeyColumns(input_schema, key)
        self._aggregates = dict(aggregates)
        self._accumulators = {name: Accumulator(item, input_schema) for name, item in aggregates.items()}
        self._index: KeyIndex = DictIndex(self._columns)
        self._marks: list[tuple[CheckpointId, Slots]] = []
        """When the snapshots of these checkpoints were taken; none before the newest complete one."""
        self._frozen: list[weakref.ref[FrozenArrays]] = []
        """Snapshots that may still be read."""

    def open(self, context: OperatorContext) -> None:
        self._own, self._total = context.key_groups, context.total_key_groups
        self._chain = Chain(context.layers)
        changes = 0
        for part in context.restored:
            header, batches = read_table(part, self._columns, context.key_groups)
            if header.kind != _KIND or dict(header.description) != self._description():
                raise StateMismatch(
                    f"operator {context.uid!r}: stored are the aggregates {_shown(header.description)}, but declared "
                    f"are {_shown(self._description())}: declare them as they were, or give the operator another uid"
                )
            expected = len(self._index) + sum(batch.num_rows for batch in batches)
            for batch in batches:
                self._take_up(batch, expected)
                changes += batch.num_rows if part.layer else 0
        if context.base is not None and context.restored:
            self._marks.append((context.base, self._index.take_touched()))
            self._chain.restored(context.base, len(context.restored), changes)

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        key_columns = [batch.column(name) for name in self._columns.names]
        self._index = suited_index(self._index, self._columns, key_columns)
        found = self._index.find(key_columns)
        self._keep(found)
        columns = [taken(column, found.first_rows) for column in key_columns]
        keys = len(self._index)
        columns += [accumulator.add_and_tell(batch, found, keys) for accumulator in self._accumulators.values()]
        out.emit(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _keep(self, found: Found) -> None:
        """Snapshots that are still being written keep what is about to change."""
        if self._frozen:
            slots = found.slots[found.first_rows]
            living = [(reference, frozen) for reference in self._frozen if (frozen := reference()) is not None]
            self._frozen = [reference for reference, _ in living]
            for _, frozen in living:
                frozen.keep(slots)

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        slots = self._changed_since(barrier)
        base = self._chain.grow(barrier, None if slots is None else len(slots), len(self._index))
        if base is not None and slots is not None and not len(slots):
            return OperatorSnapshot(unchanged=(UnchangedPart(_PART, base),))
        encode = partial(self._encode, self._index.captured(), self._freeze(), slots if base is not None else None)
        return OperatorSnapshot((CapturedPart(_PART, PartKind.KEYED, encode, key_groups=self._own, base=base),))

    def _changed_since(self, barrier: Barrier) -> Slots | None:
        known = barrier.base is not None and any(c == barrier.base for c, _ in self._marks)
        self._marks.append((barrier.checkpoint, self._index.take_touched()))
        if barrier.base is not None:
            self._marks = [(c, slots) for c, slots in self._marks if c >= barrier.base]
        if not known or not self._chain.may_extend(barrier):
            return None
        mask = np.zeros(len(self._index), np.bool_)
        for c, slots in self._marks:
            if c > barrier.base:
                mask[slots] = True
        return np.flatnonzero(mask)

    def _freeze(self) -> tuple[FrozenArrays, dict[str, int]]:
        """The arrays of all aggregates, one after another, and how many each of them has."""
        arrays = {name: accumulator.arrays for name, accumulator in self._accumulators.items()}
        frozen = FrozenArrays([array for own in arrays.values() for array in own], len(self._index))
        self._frozen.append(weakref.ref(frozen))
        return frozen, {name: len(own) for name, own in arrays.items()}

    def _encode(
        self,
        key_columns: Callable[[Slots | None], list[pa.Array]],
        captured: tuple[FrozenArrays, dict[str, int]],
        slots: Slots | None,
    ) -> Iterable[Buffer]:
        """On any thread: touches nothing that changes."""
        frozen, counts = captured
        accumulators = self._accumulators

        def of_rows(rows: Rows) -> list[pa.Array]:
            place, wanted = 0, rows if slots is None else slots[rows]
            columns = []
            for name, count in counts.items():
                values, *seen = (frozen.values(place + number, wanted) for number in range(count))
                columns.append(accumulators[name].frozen_results(values, seen[0] if seen else None))
                place += count
            return columns

        types = {name: accumulator.type for name, accumulator in accumulators.items()}
        keys = key_columns(slots)
        return encode_rows(_KIND, _PART, self._description(), self._columns, self._total, keys, types, of_rows)

    def _take_up(self, batch: pa.RecordBatch, expected: int) -> None:
        key_columns = key_columns_of(batch, self._columns)
        self._index = suited_index(self._index, self._columns, key_columns)
        self._index.expect(expected)
        slots = self._index.find(key_columns).slots
        for name, accumulator in self._accumulators.items():
            accumulator.expect(expected)
            accumulator.put(slots, batch.column(name), len(self._index))

    def _description(self) -> dict[str, Any]:
        return {
            "type": "aggregates",
            "columns": [
                {"name": name, "is": str(aggregate), "of": str(self._accumulators[name].type)}
                for name, aggregate in self._aggregates.items()
            ],
        }


def _shown(description: Mapping[str, Any]) -> str:
    return ", ".join(f"{item['name']}={item['is']}: {item['of']}" for item in description.get("columns", ()))
