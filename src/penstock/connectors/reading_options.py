"""How a source's files are to be read: the format and its options, and the schema if the user did not give one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.connectors.listing import FileVersion
from penstock.connectors.readers import BadFile, FileReader, ParquetReader, Position
from penstock.connectors.text_formats import Csv, JsonLines, csv_format, csv_header
from penstock.connectors.text_reader import TextReader, read_records, text_start

_SUFFIXES = {"parquet": "parquet", "pq": "parquet", "jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl", "csv": "csv"}
_COMPRESSED = ("gz", "zst", "bz2", "xz", "lz4", "zip", "snappy")


@dataclass(frozen=True)
class ReadingOptions:
    format: str
    delimiter: str = ","
    header: bool = True

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n':
            raise ValueError(
                f"sources.Files: delimiter must be one character such as ',' or ';', not {self.delimiter!r}"
            )

    def check(self, schema: pa.Schema) -> None:
        """At build time: raises a `ValueError` for a schema that no file could be read with."""
        untyped = [field.name for field in schema if pa.types.is_null(field.type)]
        if untyped or not len(schema):
            what = f"the type of column {', '.join(untyped)}" if untyped else "any column"
            raise ValueError(f"sources.Files: {what} cannot be told from the first file; give schema=...")
        try:
            if self.format == "jsonl":
                JsonLines(schema).parse(b"{}\n")
            elif self.format == "csv":
                Csv(schema, schema.names, self.delimiter).parse(self.delimiter.join('""' for _ in schema).encode())
        except pa.ArrowInvalid:
            # A type that is no text does not take the empty text: it can be read.
            return
        except pa.ArrowNotImplementedError as error:
            raise ValueError(f"sources.Files: {self.format} files cannot be read with this schema: {error}") from error

    def reader(
        self, system: pafs.FileSystem, version: FileVersion, schema: pa.Schema, position: Position
    ) -> FileReader:
        path, size = version.path, version.size
        file = system.open_input_file(path)
        try:
            if self.format == "parquet":
                return ParquetReader(file, path, schema, position)
            if self.format == "jsonl":
                return TextReader(file, path, size, text_start(file), JsonLines(schema), position)
            format, start = csv_format(file, path, size, schema, self.delimiter, self.header)
            return TextReader(file, path, size, start, format, position)
        except BaseException:
            file.close()
            raise


def format_of(given: str | None, found: Sequence[FileVersion], paths: Sequence[str]) -> str:
    """The format that was given, or the one that the first file's name tells."""
    name = found[0].path if found else paths[0]
    suffix = name.rpartition("/")[2].rpartition(".")[2].lower()
    if suffix in _COMPRESSED:
        raise ValueError(
            f"sources.Files: {name} is compressed as a whole, which has no positions to go on from; unpack it"
        )
    if given is None and suffix not in _SUFFIXES:
        raise ValueError(f"sources.Files: the name {name} tells no format; give format='parquet', 'jsonl' or 'csv'")
    format = given or _SUFFIXES[suffix]
    if format not in _SUFFIXES.values():
        raise ValueError(f"sources.Files: format must be one of parquet, jsonl, csv, not {format!r}")
    return format


def infer_schema(system: pafs.FileSystem, first: FileVersion, options: ReadingOptions) -> pa.Schema:
    """What the first file, or its first block, tells."""
    import pyarrow.parquet as pq

    path, size = first.path, first.size
    with system.open_input_file(path) as file:
        try:
            if options.format == "parquet":
                return pq.read_schema(file).remove_metadata()
            if options.format == "jsonl":
                start, parse = text_start(file), JsonLines(None).parse
                block = read_records(file, path, start, size, None) if start < size else b""
            else:
                if not options.header:
                    raise ValueError("sources.Files: CSV files without a header need schema=...")
                names, start = csv_header(file, path, size, options.delimiter)
                parse = Csv(None, names, options.delimiter).parse
                block = read_records(file, path, start, size, ord(options.delimiter)) if start < size else b""
            return _widened(parse(block).schema)
        except pa.ArrowException as error:
            raise BadFile(f"sources.Files: no schema can be told from {path}: {error}. Give schema=...") from error


def _widened(schema: pa.Schema) -> pa.Schema:
    """The first block may have whole seconds only; others need not."""
    return pa.schema(
        pa.field(field.name, pa.timestamp("us", field.type.tz) if pa.types.is_timestamp(field.type) else field.type)
        for field in schema
    )
