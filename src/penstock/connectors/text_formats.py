"""JSON lines and CSV: blocks of whole records to rows of a declared schema, and a schema from the first block.

What the files say beyond the schema (other fields, other columns) is left out; a field that a JSON record does not have
is null. In CSV an empty value without quotes is null, `""` is the empty string.
"""

from __future__ import annotations

import csv as python_csv
import io

import pyarrow as pa

from penstock.connectors.readers import BadFile, check_columns
from penstock.connectors.text_reader import read_records, text_start


class JsonLines:
    delimiter = None

    def __init__(self, schema: pa.Schema | None):
        """Without a schema `parse` finds one out."""
        self._schema = schema
        self._read_as = schema and pa.schema([pa.field(field.name, _json_type(field.type)) for field in schema])

    def parse(self, block: bytes) -> pa.RecordBatch:
        import pyarrow.json as json

        if not block.strip():
            return _one_batch((self._schema or pa.schema([])).empty_table())
        behaviour = "infer" if self._schema is None else "ignore"
        table = json.read_json(
            pa.BufferReader(block),
            read_options=json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=json.ParseOptions(explicit_schema=self._read_as, unexpected_field_behavior=behaviour),
        )
        return _one_batch(table if self._schema is None else table.cast(self._schema))


def _json_type(type: pa.DataType) -> pa.DataType:
    """pyarrow reads dates only from numbers, everybody else writes them as text."""
    if pa.types.is_date32(type):
        return pa.string()
    return pa.timestamp("ms") if pa.types.is_date64(type) else type


class Csv:
    def __init__(self, schema: pa.Schema | None, names: list[str], delimiter: str):
        self._schema = schema
        self._names = names
        self.delimiter = ord(delimiter)

    def parse(self, block: bytes) -> pa.RecordBatch:
        import pyarrow.csv as csv

        if not block.strip():
            return _one_batch((self._schema or pa.schema([])).empty_table())
        table = csv.read_csv(
            pa.BufferReader(block),
            read_options=csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=self._names),
            parse_options=csv.ParseOptions(delimiter=chr(self.delimiter), newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                column_types=self._schema,
                include_columns=None if self._schema is None else self._schema.names,
            ),
        )
        return _one_batch(table)


def csv_header(file: pa.NativeFile, path: str, size: int, delimiter: str) -> tuple[list[str], int]:
    """The column names in the first record, and where the second one begins."""
    start = text_start(file)
    block = read_records(file, path, start, size, ord(delimiter)) if size > start else b""
    lines = io.StringIO(block.decode(), newline="")
    names = next(python_csv.reader(lines, delimiter=delimiter), [])
    if not names:
        raise BadFile(f"{path} has no header line; give schema=... and header=False if the files have none")
    if len(set(names)) < len(names):
        raise BadFile(f"{path}: the header names a column twice: {', '.join(names)}")
    return names, start + len(lines.getvalue()[: lines.tell()].encode())


def csv_format(
    file: pa.NativeFile, path: str, size: int, schema: pa.Schema, delimiter: str, header: bool
) -> tuple[Csv, int]:
    """How to read one file, whose columns may have an order of their own, and where its first record begins."""
    if not header:
        return Csv(schema, schema.names, delimiter), text_start(file)
    names, start = csv_header(file, path, size, delimiter)
    check_columns(path, schema, names)
    return Csv(schema, names, delimiter), start


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
