"""The schema of every stream, known while the pipeline is built: declared by sources and row functions, derived for
expressions."""

from __future__ import annotations

import datetime as dt
import typing
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from penstock.graph.errors import Site, listed, unknown_column
from penstock.kernels.hashing import supports
from penstock.operators.conform import plain_schema

if TYPE_CHECKING:
    import polars as pl

Returns: TypeAlias = "Mapping[str, Any] | pa.Schema"
"""What a function returns: column name -> Python type, Polars dtype or Arrow type; or an Arrow schema."""

_PYTHON_TYPES: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.datetime: pa.timestamp("us"),
    dt.date: pa.date32(),
    dt.time: pa.time64("us"),
    dt.timedelta: pa.duration("us"),
}

_HOW_TO_DECLARE = (
    'for example returns={"user": str, "total": int}, with Python types, Polars dtypes or Arrow types, '
    "or a pyarrow.Schema"
)


def declared_schema(returns: Returns | None, site: Site) -> pa.Schema:
    """The schema that `returns=` describes."""
    if returns is None:
        raise site.error(f"what the function returns must be declared, {_HOW_TO_DECLARE}")
    if isinstance(returns, pa.Schema):
        schema = plain_schema(returns)
    elif isinstance(returns, Mapping):
        schema = pa.schema([pa.field(name, _arrow_type(name, declared, site)) for name, declared in returns.items()])
    else:
        raise site.error(
            f"returns={returns!r} is {type(returns).__name__}, not a mapping of column names to types; "
            f"{_HOW_TO_DECLARE}"
        )
    return checked_schema(schema, site)


def checked_schema(schema: pa.Schema, site: Site) -> pa.Schema:
    """Refuses what cannot travel as self-contained batches."""
    if not isinstance(schema, pa.Schema):
        raise site.error(f"its schema is {type(schema).__name__}, but must be a pyarrow.Schema")
    if not schema.names:
        raise site.error("a stream needs at least one column")
    twice = [name for name in dict.fromkeys(schema.names) if schema.names.count(name) > 1]
    if twice:
        raise site.error(f"column names must be unique, but {listed(twice)} appear(s) more than once")
    for field in schema:
        if not _travels(field.type):
            raise site.error(
                f"column {field.name!r} has type {field.type}, which a stream cannot carry: "
                "convert it to a plain Arrow type (the values of a dictionary, the storage of an extension type)"
            )
    return schema


def check_key(columns: tuple[str, ...], schema: pa.Schema, site: Site) -> None:
    """A key is at least one existing column, each once, each of a type with a stable hash."""
    if not columns:
        raise site.error('needs at least one column, for example key_by("user")')
    for column in columns:
        if not isinstance(column, str):
            raise site.error(
                f"takes column names, not {type(column).__name__}: compute the key with with_columns(...) first, then "
                "name it here"
            )
        if column not in schema.names:
            raise site.error(unknown_column(column, schema.names))
        if not supports(schema.field(column).type) or pa.types.is_null(schema.field(column).type):
            raise site.error(
                f"column {column!r} has type {schema.field(column).type}, which cannot be a key: "
                "use numbers, strings, binaries, booleans, dates, times or decimals (for nested values, one column per "
                "part)"
            )
    if len(set(columns)) < len(columns):
        raise site.error(f"names a column twice: {listed(columns)}")


def check_same_schema(first: pa.Schema, other: pa.Schema, site: Site, other_site: Site) -> None:
    """Streams of a union agree in names, order and types of their columns."""
    if [(field.name, field.type) for field in first] == [(field.name, field.type) for field in other]:
        return
    differences = [
        f"{name!r} is {_type_in(first, name)} here and {_type_in(other, name)} there"
        for name in dict.fromkeys([*first.names, *other.names])
        if _type_in(first, name) != _type_in(other, name)
    ]
    what = "; ".join(differences) or f"the order is {listed(first.names)} here and {listed(other.names)} there"
    raise site.error(f"the schema differs from that of {other_site}: {what}. Bring them to one schema with select(...)")


def check_time_column(column: str, schema: pa.Schema, site: Site) -> None:
    if column not in schema.names:
        raise site.error(unknown_column(column, schema.names))
    data_type = schema.field(column).type
    if not (pa.types.is_timestamp(data_type) or pa.types.is_date(data_type) or pa.types.is_integer(data_type)):
        raise site.error(
            f"column {column!r} has type {data_type}, which is no time: use a timestamp, a date, or an integer of "
            "milliseconds since the epoch"
        )


def empty_frame(schema: pa.Schema) -> pl.LazyFrame:
    """A frame without rows on which expressions are checked."""
    import polars as pl  # a pipeline without expressions never loads Polars

    return pl.DataFrame(schema.empty_table()).lazy()


def arrow_schema(schema: pl.Schema, site: Site) -> pa.Schema:
    """How a Polars schema travels. Types that have no Arrow form are refused first: Polars may not survive the
    attempt."""
    for name, dtype in schema.items():
        if not _has_arrow_form(dtype):
            raise site.error(
                f"column {name!r} has Polars type {dtype}, which a stream cannot carry: cast it to another"
            )
    return plain_schema(schema.to_frame().to_arrow().schema)


def _has_arrow_form(dtype: Any) -> bool:
    import polars as pl

    if dtype in (pl.Object, pl.Unknown, pl.Int128, pl.UInt128):
        return False
    if isinstance(dtype, pl.List | pl.Array):
        return _has_arrow_form(dtype.inner)
    if isinstance(dtype, pl.Struct):
        return all(_has_arrow_form(field.dtype) for field in dtype.fields)
    return True


def _type_in(schema: pa.Schema, name: str) -> str:
    return str(schema.field(name).type) if name in schema.names else "missing"


def _arrow_type(name: str, declared: object, site: Site) -> pa.DataType:
    if isinstance(declared, pa.DataType):
        return plain_schema(pa.schema([(name, declared)])).field(0).type
    if declared in _PYTHON_TYPES:
        return _PYTHON_TYPES[declared]
    if typing.get_origin(declared) is list and len(typing.get_args(declared)) == 1:
        return pa.list_(_arrow_type(name, typing.get_args(declared)[0], site))
    if declared is Decimal:
        raise site.error(
            f"column {name!r}: a Decimal needs its precision and scale, for example pyarrow.decimal128(18, 2)"
        )
    if (dtype := _polars_type(declared)) is not None:
        return _arrow_type_of(name, dtype, site)
    raise site.error(
        f"column {name!r}: {declared!r} is no type that a column can have; use a Python type "
        f"({', '.join(t.__name__ for t in _PYTHON_TYPES)}, "
        "list[...]), a Polars dtype or an Arrow type"
    )


def _arrow_type_of(name: str, dtype: pl.DataType, site: Site) -> pa.DataType:
    import polars as pl

    return arrow_schema(pl.Schema({name: dtype}), site).field(0).type


def _polars_type(declared: Any) -> pl.DataType | None:
    """The Polars dtype that was declared, also by its bare class (`pl.Datetime`); None if it is no complete one."""
    import polars as pl

    if isinstance(declared, pl.DataType):
        return declared
    if not (isinstance(declared, type) and issubclass(declared, pl.DataType)):
        return None
    try:
        return declared()
    except TypeError:
        return None


def _travels(data_type: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(data_type) or types.is_union(data_type) or types.is_run_end_encoded(data_type):
        return False
    if isinstance(data_type, pa.BaseExtensionType):
        return False
    return all(_travels(data_type.field(index).type) for index in range(data_type.num_fields))
