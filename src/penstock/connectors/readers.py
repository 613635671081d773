"""Reading one file in small steps from any position on.

A position is a place that a reader can go to directly (a Parquet row group, the byte at which a line begins) and a
number of rows to pass over from there. It does not depend on how the rows were cut into batches or blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec
import pyarrow as pa


class Position(msgspec.Struct, frozen=True, array_like=True):
    at: int = 0
    rows: int = 0


class BadFile(ValueError):
    """A file that cannot be read as what it should be. The message names the file and, where there is one, the line."""


class FileReader(Protocol):
    position: Position
    """After what `read` has returned."""

    @property
    def exhausted(self) -> bool:
        """Nothing is left."""
        ...

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        """The next rows, with exactly the declared schema. None: one step was taken, but there is nothing to show
        yet."""
        ...

    def close(self) -> None: ...


_STEP_BYTES = 1 << 20
"""Of Parquet data that one step decodes, about."""
_MOST_ROWS = 65_536


class ParquetReader:
    def __init__(self, file: pa.NativeFile, path: str, schema: pa.Schema, position: Position):
        import pyarrow.parquet as pq

        self._path = path
        self._schema = schema
        self.position = position
        self._file = file
        with _naming(path):
            self._parquet = pq.ParquetFile(file)
        check_columns(path, schema, self._parquet.schema_arrow.names)
        self._skip = position.rows
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._left: pa.RecordBatch | None = None

    @property
    def exhausted(self) -> bool:
        return self.position.at >= self._parquet.metadata.num_row_groups

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        if self.exhausted:
            return None
        if self._left is None and not self._decode():
            return None
        assert self._left is not None
        batch = self._left.slice(0, max_rows)
        self._left = self._left.slice(max_rows) if max_rows < self._left.num_rows else None
        rows = self.position.rows + batch.num_rows
        if rows == self._group_rows:
            self._next_group()
        else:
            self.position = Position(self.position.at, rows)
        return batch

    def close(self) -> None:
        self._batches = None
        self._file.close()

    def _decode(self) -> bool:
        """One step; False if there is nothing to show from it."""
        if self._batches is None:
            group = self._parquet.metadata.row_group(self.position.at)
            self._group_rows = group.num_rows
            if not self._group_rows:
                self._next_group()
                return False
            row_bytes = max(1, group.total_byte_size // self._group_rows)
            self._batches = self._parquet.iter_batches(
                max(64, min(_MOST_ROWS, _STEP_BYTES // row_bytes)),
                row_groups=[self.position.at],
                columns=self._schema.names,
                use_threads=False,
            )
        with _naming(self._path):
            batch = next(self._batches)
        if self._skip >= batch.num_rows:
            self._skip -= batch.num_rows
            return False
        self._left = _fitted(self._path, batch.slice(self._skip), self._schema)
        self._skip = 0
        return True

    def _next_group(self) -> None:
        self.position = Position(self.position.at + 1)
        self._batches = None


def check_columns(path: str, schema: pa.Schema, names: list[str]) -> None:
    missing = [name for name in schema.names if name not in names]
    if missing:
        raise BadFile(f"{path} has no column {', '.join(map(repr, missing))}; it has {', '.join(map(repr, names))}")


def _fitted(path: str, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise BadFile(
                    f"{path}: column {field.name!r} is {column.type}, which does not fit {field.type}: {error}"
                ) from error
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _naming:
    """Lets an error of pyarrow say which file it is about."""

    def __init__(self, path: str):
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, pa.ArrowException | OSError):
            raise BadFile(f"{self._path} cannot be read as Parquet: {error}") from error
