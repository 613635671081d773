"""File formats on the way out: batches in, bytes of one growing file out.

An encoder writes in small steps, so that no call holds up a task: a Parquet row group or a block of text at a time.
"""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow as pa

from penstock.state.parts import Buffer
from penstock.store.files import FileWriter

FORMATS = ("parquet", "jsonl", "csv")


class Encoder(Protocol):
    """One file's worth of encoding."""

    step_bytes: int
    """Of batches in memory: how much is worth a call of `write`, and takes it about one step budget."""

    def write(self, batches: Sequence[pa.RecordBatch]) -> None: ...

    def finish(self) -> None:
        """Writes what the format needs at the end of a file. The file itself stays open."""
        ...


class _Output(io.RawIOBase):
    """Lets pyarrow write to a `FileWriter` and keeps it from closing it.

    pyarrow's writers write a file's end also when they are garbage. A file that was given up must not get one: it is
    held weakly here, and what is written when its owner is gone goes nowhere.
    """

    def __init__(self, file: FileWriter):
        self._file = weakref.ref(file)

    def writable(self) -> bool:
        return True

    def write(self, chunk: Buffer) -> int:  # type: ignore[override]
        file = self._file()
        if file is not None:
            file.write(chunk)
        return len(chunk)


class _TableWriter(Protocol):
    """What pyarrow's writers have in common."""

    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


class _ArrowEncoder:
    """Around one of pyarrow's writers."""

    step_bytes: int

    def __init__(self, schema: pa.Schema, writer: _TableWriter):
        self._schema, self._writer = schema, writer

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._writer.write_table(pa.Table.from_batches(batches, self._schema))

    def finish(self) -> None:
        self._writer.close()


class _ParquetEncoder(_ArrowEncoder):
    step_bytes = 2 << 20

    def __init__(self, file: FileWriter, schema: pa.Schema, compression: str):
        import pyarrow.parquet as pq

        output = pa.PythonFile(_Output(file), mode="w")
        super().__init__(schema, pq.ParquetWriter(output, schema, compression=compression))


class _JsonLinesEncoder:
    step_bytes = 512 << 10

    def __init__(self, file: FileWriter):
        self._file = file

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        import polars as pl

        lines = io.BytesIO()
        frame = pl.from_arrow(pa.Table.from_batches(batches))
        assert isinstance(frame, pl.DataFrame)
        frame.write_ndjson(lines)
        self._file.write(lines.getbuffer())

    def finish(self) -> None:
        """Lines need no end."""


class _CsvEncoder(_ArrowEncoder):
    step_bytes = 512 << 10

    def __init__(self, file: FileWriter, schema: pa.Schema):
        import pyarrow.csv as csv

        super().__init__(schema, csv.CSVWriter(pa.PythonFile(_Output(file), mode="w"), schema))

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        if len(self._schema) == 1 and any(batch.column(0).null_count for batch in batches):
            raise ValueError(
                f"a CSV file whose only column {self._schema.names[0]!r} is null in a row has an empty line there,"
                " which readers skip: fill the nulls, add a column, or use parquet or jsonl"
            )
        super().write(batches)


def new_encoder(format: str, file: FileWriter, schema: pa.Schema, compression: str) -> Encoder:
    if format == "parquet":
        return _ParquetEncoder(file, schema, compression)
    if format == "jsonl":
        return _JsonLinesEncoder(file)
    return _CsvEncoder(file, schema)


def check_schema(format: str, schema: pa.Schema) -> None:
    """Raises a `ValueError` that names the columns which the format cannot hold."""
    fits = {"parquet": _fits_parquet, "jsonl": _fits_json, "csv": _fits_csv}[format]
    bad = [f"{field.name} ({field.type})" for field in schema if not fits(field.type)]
    if bad:
        others = " or ".join(name for name in FORMATS if name != format)
        raise ValueError(
            f"{format} cannot hold {', '.join(bad)}: convert with .with_columns(...), drop the column, or use {others}"
        )


def _fits_parquet(type: pa.DataType) -> bool:
    return not (pa.types.is_union(type) or pa.types.is_interval(type))


def _fits_json(type: pa.DataType) -> bool:
    if pa.types.is_struct(type):
        return all(_fits_json(type.field(i).type) for i in range(type.num_fields))
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type):
        return _fits_json(type.value_type)
    return _any(type, _SCALARS)


def _fits_csv(type: pa.DataType) -> bool:
    return _any(type, (*_SCALARS, pa.types.is_decimal))


_SCALARS: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_time,
)


def _any(type: pa.DataType, tests: Sequence[Callable[[pa.DataType], bool]]) -> bool:
    return any(test(type) for test in tests)
