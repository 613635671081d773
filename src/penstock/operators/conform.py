"""From what Polars or a user's function made to batches of exactly the declared schema.

Polars speaks Arrow with its own accent (64-bit string offsets, categoricals as dictionaries). Every stream of a job has
one plain schema, known on both sides of a channel, so what leaves an operator is brought to it here: without a copy
where the types are equal, by a cast that cannot lose anything where they are not, and with an error that names the
column otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import polars as pl


class SchemaMismatch(ValueError):
    """A function returned something else than its operator declares."""


def plain_type(data_type: pa.DataType) -> pa.DataType:
    """The one type that streams use for everything that is the same to a user: `string` for large strings, views and
    categoricals."""
    types = pa.types
    if types.is_large_string(data_type) or types.is_string_view(data_type):
        return pa.string()
    if types.is_large_binary(data_type) or types.is_binary_view(data_type):
        return pa.binary()
    if types.is_dictionary(data_type):
        return plain_type(data_type.value_type)
    if types.is_large_list(data_type) or types.is_list(data_type):
        return pa.list_(plain_type(data_type.value_type))
    if types.is_fixed_size_list(data_type):
        return pa.list_(plain_type(data_type.value_type), data_type.list_size)
    if types.is_struct(data_type):
        return pa.struct([pa.field(field.name, plain_type(field.type)) for field in data_type])
    return data_type


def plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def frame_of(batch: pa.RecordBatch) -> pl.DataFrame:
    """The batch as Polars sees it; numbers are shared, not copied."""
    import polars as pl

    return pl.DataFrame(batch)


def batches_of(frame: pl.DataFrame, schema: pa.Schema) -> list[pa.RecordBatch]:
    """The frame's rows as batches (one, but for gigantic ones) of exactly this schema; none if there are no rows."""
    if frame.columns != schema.names:
        _check_columns(frame.columns, schema)
        frame = frame.select(schema.names)
    if frame.height == 0:
        return []
    if not schema.names:
        raise SchemaMismatch("a stream needs at least one column")
    table = frame.to_arrow()
    columns = [_fitted(table.column(index), field) for index, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema).combine_chunks().to_batches()


def _check_columns(found: list[str], schema: pa.Schema) -> None:
    missing = [name for name in schema.names if name not in found]
    extra = [name for name in found if name not in schema.names]
    if missing or extra:
        problems = [f"lacks {missing}"] * bool(missing) + [f"has {extra}, which were not declared"] * bool(extra)
        raise SchemaMismatch(
            f"the returned frame {' and '.join(problems)}. It must have the columns {schema.names}: "
            "change the function, or declare what it returns with returns={...}"
        )


def _fitted(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    if not casts_losslessly(column.type, field.type):
        raise SchemaMismatch(
            f"column {field.name!r} is {plain_type(column.type)}, but {field.type} was declared: "
            "cast it in the function, or declare the type that it has with returns={...}"
        )
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise SchemaMismatch(f"column {field.name!r} does not fit into the declared {field.type}: {error}") from error


def casts_losslessly(found: pa.DataType, declared: pa.DataType) -> bool:
    """Whether a (checked) cast keeps every value what it is: an equal plain type, nulls, a whole number in another
    width, a float widened, a time in another unit. The cast itself still refuses a value that does not fit."""
    types = pa.types
    if plain_type(found) == plain_type(declared) or types.is_null(found):
        return True
    if types.is_integer(found) and types.is_integer(declared):
        return True
    if types.is_floating(found) and types.is_floating(declared):
        return found.bit_width <= declared.bit_width
    if types.is_timestamp(found) and types.is_timestamp(declared):
        return found.tz == declared.tz
    if types.is_duration(found) and types.is_duration(declared):
        return True
    # Polars reads these as a timestamp or as strings of bytes of any length: what a filter passes through returns to
    # its own type.
    if types.is_timestamp(found) and types.is_date64(declared):
        return True
    if types.is_time(found) and types.is_time(declared):
        return True
    if types.is_binary(plain_type(found)) and types.is_fixed_size_binary(declared):
        return True
    return types.is_decimal(found) and types.is_decimal(declared)
