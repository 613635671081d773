"""Random records for operator cases, out of order, nulls everywhere, keys of several types; and their source."""

from __future__ import annotations

from decimal import Decimal
from random import Random
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.connectors.generator import Generator, Index
from penstock.simulation.cases.case import Case, Input

KEYS: Final = (("number",), ("name",), ("number", "name"))
TIMES: Final = (pa.int64(), pa.timestamp("ms"), pa.timestamp("us"))
_WORDS: Final = ("", "a", "b", "ab", "zebra", "äöü", "a longer word than the others")
_NULLS: Final = 0.1


def schema_of(time: pa.DataType) -> pa.Schema:
    return pa.schema(
        [
            ("id", pa.int64()),
            ("number", pa.int64()),
            ("name", pa.string()),
            ("x", pa.int64()),
            ("y", pa.float64()),
            ("word", pa.string()),
            ("price", pa.decimal128(9, 2)),
            ("ts", time),
        ]
    )


def random_input(random: Random, case: Case, count: int | None = None) -> Input:
    """`count`: of its records; None: any."""
    disorder = random.choice((20, 100)) if case.late else random.choice((0, 20, 100))
    rows = _rows(random, count or random.choice((1, 20, 50, 120)), disorder)
    schema = schema_of(random.choice(TIMES))
    return Input(
        table=_table(rows, schema),
        key=random.choice(KEYS),
        splits=1 if case.in_order else random.choice((1, 2, 3, 5)),
        disorder=disorder,
        delay=random.choice((0, disorder // 4)) if case.late else disorder,
    )


def source_of(input: Input, rate: float | None = None) -> Generator:
    """Its records, dealt to its splits; so many a second."""
    batch = input.table.combine_chunks().to_batches()[0]

    def generate(index: Index) -> pa.RecordBatch:
        return batch.take(pa.array(np.asarray(index)))

    return Generator(input.table.num_rows, generate, rate=rate, splits=input.splits)


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    table = pa.Table.from_pylist(rows, schema_of(pa.int64()))
    if schema.field("ts").type == pa.int64():
        return table
    times = table["ts"].cast(pa.timestamp("ms")).cast(schema.field("ts").type)
    return table.set_column(table.schema.get_field_index("ts"), "ts", times)


def _rows(random: Random, count: int, disorder: int) -> list[dict[str, Any]]:
    numbers, names = random.choice((1, 3, 40)), random.choice((1, 3, 7))
    time = random.choice((0, -300, 1_700_000_000_000))
    rows = []
    for id in range(count):
        time += random.choice((0, 7, 7, 7, 60))
        row = {
            "number": random.randrange(numbers),
            "name": _WORDS[random.randrange(names)],
            "x": random.randint(-50, 50),
            "y": random.randint(-400, 400) / 4,
            "word": random.choice(_WORDS),
            "price": Decimal(random.randint(-10_000, 10_000)) / 100,
            "ts": time + random.randint(0, disorder),
        }
        rows.append({"id": id, **{name: None if random.random() < _NULLS else row[name] for name in row}})
    return rows
