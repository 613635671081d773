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

import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.core.ids import CheckpointId
from penstock.operators.aggregation.accumulator import ToColumns
from penstock.operators.aggregation.declare import Aggregate
from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.state.chain import Chain
from penstock.state.frozen import FrozenArrays
from penstock.state.index import DictIndex, KeyIndex, Mark, Slots, suited_index
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
        self._accumulators = {name: item.accumulator(input_schema) for name, item in aggregates.items()}
        self._index: KeyIndex = DictIndex(self._columns)
        self._marks: dict[CheckpointId, Mark] = {}
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
            self._marks[context.base] = self._index.mark()
            self._chain.restored(context.base, len(context.restored), changes)

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        key_columns = [batch.column(name) for name in self._columns.names]
        self._index = suited_index(self._index, self._columns, key_columns)
        slots, first_rows = self._index.find(key_columns)
        rows, updated = pa.array(first_rows), slots[first_rows]
        self._keep(updated)
        for accumulator in self._accumulators.values():
            accumulator.add(batch, slots, len(self._index))
        columns = [column.take(rows) for column in key_columns]
        columns += [accumulator.results(updated) for accumulator in self._accumulators.values()]
        out.emit(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _keep(self, slots: Slots) -> None:
        """Snapshots that are still being written keep what is about to change."""
        if self._frozen:
            living = [(reference, frozen) for reference in self._frozen if (frozen := reference()) is not None]
            self._frozen = [reference for reference, _ in living]
            for _, frozen in living:
                frozen.keep(slots)

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        slots = self._changed_since(barrier)
        base = self._chain.grow(barrier, None if slots is None else len(slots), len(self._index))
        self._marks[barrier.checkpoint] = self._index.mark()
        if base is not None and slots is not None and not len(slots):
            return OperatorSnapshot(unchanged=(UnchangedPart(_PART, base),))
        encode = partial(self._encode, self._index.captured(), self._freeze(), slots if base is not None else None)
        return OperatorSnapshot((CapturedPart(_PART, PartKind.KEYED, encode, key_groups=self._own, base=base),))

    def _changed_since(self, barrier: Barrier) -> Slots | None:
        if barrier.base is not None:
            self._marks = {known: mark for known, mark in self._marks.items() if known >= barrier.base}
        mark = self._marks.get(barrier.base) if barrier.base is not None else None
        return self._index.found_since(mark) if mark is not None and self._chain.may_extend(barrier) else None

    def _freeze(self) -> tuple[FrozenArrays, list[tuple[int, ToColumns]]]:
        """The arrays of all aggregates, one after another; of each how many, and what makes columns of them."""
        accumulators = self._accumulators.values()
        arrays = [accumulator.arrays for accumulator in accumulators]
        frozen = FrozenArrays([array for own in arrays for array in own], len(self._index))
        self._frozen.append(weakref.ref(frozen))
        return frozen, [(len(own), one.frozen()) for own, one in zip(arrays, accumulators, strict=True)]

    def _encode(
        self,
        key_columns: Callable[[Slots | None], list[pa.Array]],
        captured: tuple[FrozenArrays, list[tuple[int, ToColumns]]],
        slots: Slots | None,
    ) -> Iterable[Buffer]:
        """On any thread: touches nothing that changes."""
        frozen, groups = captured

        def of_rows(rows: Rows) -> list[pa.Array]:
            place, wanted = 0, rows if slots is None else slots[rows]
            columns = list[pa.Array]()
            for count, to_columns in groups:
                columns += to_columns([frozen.values(place + number, wanted) for number in range(count)])
                place += count
            return columns

        keys = key_columns(slots)
        return encode_rows(_KIND, _PART, self._description(), self._columns, self._total, keys, self._stored(), of_rows)

    def _stored(self) -> dict[str, pa.DataType]:
        return {
            name + suffix: kind
            for name, accumulator in self._accumulators.items()
            for suffix, kind in accumulator.stored.items()
        }

    def _take_up(self, batch: pa.RecordBatch, expected: int) -> None:
        key_columns = key_columns_of(batch, self._columns)
        self._index = suited_index(self._index, self._columns, key_columns)
        self._index.expect(expected)
        slots, _ = self._index.find(key_columns)
        for name, accumulator in self._accumulators.items():
            accumulator.expect(expected)
            columns = [batch.column(name + suffix) for suffix in accumulator.stored]
            accumulator.put(slots, columns, len(self._index))

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
