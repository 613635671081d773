"""The lookup join: each row with what is known of its key now, in a table that changes slowly.

The table is made of the rows of the second input, which every subtask gets all of: the last row of each key counts. If
that input is a changelog, `delete` removes a key; `update_before` says nothing, because `update_after` follows. Rows of
the first input are looked up as they come, and not kept. So the result depends on what has come by then: a lookup join
is as exact as the order of its inputs.

The table is broadcast state: it is part of every checkpoint of every subtask, as a whole, and each goes on with its
own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.barrier import Barrier
from penstock.core.handles import PartKind
from penstock.core.ids import Cut
from penstock.operators.aggregation.accumulator import INITIAL_SLOTS, grown
from penstock.operators.aggregation.pile import Pile
from penstock.operators.base import Collector, Operator, OperatorContext
from penstock.operators.joins.keys import complete
from penstock.operators.joins.output import DELETE, INSERT, Output
from penstock.operators.joins.rows import Mask, Numbers
from penstock.operators.joins.shape import How, Incoming, JoinSide, joined_schema
from penstock.operators.reduce import OPERATION
from penstock.state.keys import KeyColumns
from penstock.state.operator_parts import OperatorStateHeader, read_part
from penstock.state.parts import Buffer, CapturedPart, OperatorSnapshot
from penstock.state.slottable import SlotTable
from penstock.state.tables import FORMAT_VERSION, StateMismatch

_PART: Final = "table"
_KIND: Final = "lookup"
_METADATA: Final = b"penstock.state"
_SPARE_ROWS: Final = 4096
"""So many rows that were replaced are not worth making the table anew."""


class LookupTable:
    """The last row of every key."""

    def __init__(self, side: JoinSide) -> None:
        self._side = side
        self.schema = pa.schema([*(side.schema.field(name) for name in side.key), *side.columns])
        self._keys = KeyColumns(side.schema, side.key)
        self._tidy_at = _SPARE_ROWS
        self._empty()

    def _empty(self) -> None:
        self._table = SlotTable(self._keys, {})
        self._rows = np.full(INITIAL_SLOTS, -1, np.int64)
        """By key: its row in the pile, -1 for none."""
        self._pile = Pile(self.schema.types)

    def put(self, batch: pa.RecordBatch) -> None:
        came = self._side.rows_of(batch)
        known = complete(came.keys)
        rows = np.arange(batch.num_rows) if known is None else np.flatnonzero(known)
        gone = np.zeros(batch.num_rows, np.bool_)
        if self._side.changelog:
            operations = batch.column(OPERATION)
            counts = pc.not_equal(operations, "update_before").to_numpy(zero_copy_only=False)
            rows = rows[counts[rows]]
            gone = pc.equal(operations, DELETE).to_numpy(zero_copy_only=False)
        if len(rows):
            self._put_rows(came.at(rows), gone[rows])

    def _put_rows(self, rows: Incoming, gone: Mask | bool = False) -> None:
        slots = self._table.find(rows.keys).slots
        self._rows = grown(self._rows, len(self._table), -1)
        numbers = self._pile.add([*rows.keys, *rows.columns])
        self._rows[slots] = np.where(gone, -1, numbers)  # of several rows of a key the last one stays
        self._table.mark(Cut(0), Cut(0))  # nobody asks which keys were found
        self._tidy()

    def _tidy(self) -> None:
        if len(self._pile) <= self._tidy_at:
            return
        used = self._rows[self._rows >= 0]
        self._tidy_at = 2 * len(used) + _SPARE_ROWS
        if len(self._pile) > self._tidy_at:
            columns = self._pile.take(used)
            self._empty()
            width = len(self._keys.names)
            self._put_rows(Incoming(columns[:width], columns[width:]))

    def find(self, keys: list[pa.Array]) -> Numbers:
        """For every key its row, -1 for none."""
        slots = self._table.look_up(keys)
        found: Numbers = np.where(slots >= 0, self._rows[slots], -1)
        known = complete(keys)
        return found if known is None else np.where(known, found, -1)

    def columns(self, rows: Numbers) -> list[pa.Array]:
        """Without the key; null for a row below 0."""
        return self._pile.take(rows)[len(self._keys.names) :]

    # ---- checkpoints ----
    def capture(self, parallelism: int) -> CapturedPart:
        rows, take = self._rows[self._rows >= 0], self._pile.taker()
        header = OperatorStateHeader(FORMAT_VERSION, _KIND, _PART, self._description, parallelism)
        schema = self.schema.with_metadata({_METADATA: msgspec.json.encode(header)})
        return CapturedPart(_PART, PartKind.BROADCAST, lambda: _encoded(schema, take(rows)))

    @property
    def _description(self) -> dict[str, object]:
        return {"type": _KIND, "columns": [{"name": field.name, "of": str(field.type)} for field in self.schema]}

    def restore(self, context: OperatorContext) -> None:
        for part in context.restored:
            header, rows = read_part(part)
            if header.kind != _KIND or header.description != self._description:
                raise StateMismatch(
                    f"operator {context.uid!r}: stored is a table with the columns {_shown(header.description)}, but "
                    f"it has {_shown(self._description)} now: bring it to the same columns with select(...), or give "
                    "the operator another uid"
                )
            width = len(self._keys.names)
            for batch in rows.to_batches():
                if batch.num_rows:
                    self._put_rows(Incoming(batch.columns[:width], batch.columns[width:]))


class LookupJoinOperator(Operator):
    def __init__(self, facts: JoinSide, table: JoinSide, how: How, suffix: str = "_right") -> None:
        self._facts, self._how = facts, how
        self._table = LookupTable(table)
        self._output = Output(facts, how, joined_schema(facts, table, how, suffix))

    def open(self, context: OperatorContext) -> None:
        self._parallelism = context.parallelism
        self._table.restore(context)

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        if input == 1:
            return self._table.put(batch)
        facts = self._facts.rows_of(batch)
        rows = self._table.find(facts.keys)
        if self._how is How.INNER and (rows < 0).any():
            facts, rows = facts.at(np.flatnonzero(rows >= 0)), rows[rows >= 0]
        return self._output.emit(out, INSERT, facts.keys, facts.columns, self._table.columns(rows))

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        return OperatorSnapshot((self._table.capture(self._parallelism),))


def _encoded(schema: pa.Schema, columns: Sequence[pa.Array]) -> Sequence[Buffer]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return (memoryview(sink.getvalue()),)


def _shown(description: object) -> str:
    columns = description.get("columns", ()) if isinstance(description, dict) else ()
    return ", ".join(f"{item['name']}: {item['of']}" for item in columns)
