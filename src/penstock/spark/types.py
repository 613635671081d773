"""Spark's schemas as Python types: what the state of a `StatefulProcessor` is stored as.

A schema becomes a NamedTuple whose fields are optional, so that a state's schema can gain and lose columns as any other
state's can. Schemas may be written in Spark's DDL (`"n LONG, tags ARRAY<STRING>"`); it is read here, since neither a
worker nor a driver that only builds a pipeline has a JVM to ask.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any, NamedTuple

from pyspark.sql import types as spark

_PLAIN: dict[str, spark.DataType] = {
    "string": spark.StringType(),
    "boolean": spark.BooleanType(),
    "byte": spark.ByteType(),
    "tinyint": spark.ByteType(),
    "short": spark.ShortType(),
    "smallint": spark.ShortType(),
    "int": spark.IntegerType(),
    "integer": spark.IntegerType(),
    "long": spark.LongType(),
    "bigint": spark.LongType(),
    "float": spark.FloatType(),
    "real": spark.FloatType(),
    "double": spark.DoubleType(),
    "binary": spark.BinaryType(),
    "date": spark.DateType(),
    "timestamp": spark.TimestampType(),
    "timestamp_ntz": spark.TimestampNTZType(),
    "decimal": spark.DecimalType(),
}
_PYTHON: dict[type[spark.DataType], Any] = {
    spark.StringType: str,
    spark.BooleanType: bool,
    spark.ByteType: int,
    spark.ShortType: int,
    spark.IntegerType: int,
    spark.LongType: int,
    spark.FloatType: float,
    spark.DoubleType: float,
    spark.BinaryType: bytes,
    spark.DateType: dt.date,
    spark.TimestampType: dt.datetime,
    spark.TimestampNTZType: dt.datetime,
    spark.DecimalType: Decimal,
}
_TOKEN = re.compile(r"\s*(`[^`]+`|\w+|[<>(),:])")


def schema_of(schema: spark.StructType | str) -> spark.StructType:
    """The schema, from whatever a processor gives."""
    if isinstance(schema, spark.StructType):
        return schema
    return _Ddl(schema).whole()


def python_type(data_type: spark.DataType) -> Any:
    """The type that a value of a Spark type is kept as."""
    if isinstance(data_type, spark.StructType):
        return record_type(data_type)
    if isinstance(data_type, spark.ArrayType):
        return list[python_type(data_type.elementType) | None]  # type: ignore[misc]
    if isinstance(data_type, spark.MapType):
        key, value = python_type(data_type.keyType), python_type(data_type.valueType)
        return dict[key, value | None]  # type: ignore[valid-type]
    try:
        return _PYTHON[type(data_type)]
    except KeyError:
        raise TypeError(f"a state cannot hold Spark's {data_type.simpleString()}") from None


def record_type(schema: spark.StructType) -> Any:
    """A NamedTuple of the schema's columns, each None unless it has a value."""
    names = [
        field.name if field.name.isidentifier() and field.name[0] != "_" else f"f{at}"
        for at, field in enumerate(schema)
    ]
    annotated = [(name, python_type(field.dataType) | None) for name, field in zip(names, schema, strict=True)]
    made: Any = NamedTuple("Value", annotated)  # type: ignore[misc]
    made.__new__.__defaults__ = (None,) * len(names)
    made._field_defaults = dict.fromkeys(names)
    return made


class _Ddl:
    """Reads Spark's notation of a schema."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _TOKEN.findall(text)
        if "".join(self._tokens) != re.sub(r"\s+(?=(?:[^`]*`[^`]*`)*[^`]*$)", "", text):
            raise ValueError(f"{text!r} is no schema in Spark's DDL, such as 'n LONG, name STRING'")

    def whole(self) -> spark.StructType:
        schema = self._fields(end=None)
        if not len(schema):
            raise self._error()
        return schema

    def _fields(self, end: str | None) -> spark.StructType:
        fields = []
        while self._tokens:
            name = self._tokens.pop(0).strip("`")
            if self._next() == ":":
                self._tokens.pop(0)
            fields.append(spark.StructField(name, self._type(), self._nullable()))
            if self._next() != ",":
                break
            self._tokens.pop(0)
        if (end is None and self._tokens) or (end is not None and self._take() != end):
            raise self._error()
        return spark.StructType(fields)

    def _type(self) -> spark.DataType:
        name = self._take().lower()
        if name == "array":
            return spark.ArrayType(self._inside()[0])
        if name == "map":
            key, value = self._inside()
            return spark.MapType(key, value)
        if name == "struct":
            self._expect("<")
            return self._fields(end=">")
        if name == "decimal" and self._next() == "(":
            precision, scale = [token for token in (self._take() for _ in range(5)) if token.isdigit()]
            return spark.DecimalType(int(precision), int(scale))
        if name not in _PLAIN:
            raise self._error()
        return _PLAIN[name]

    def _inside(self) -> list[spark.DataType]:
        self._expect("<")
        found = [self._type()]
        while self._next() == ",":
            self._tokens.pop(0)
            found.append(self._type())
        self._expect(">")
        return found

    def _nullable(self) -> bool:
        if self._next().lower() != "not":
            return True
        del self._tokens[:2]
        return False

    def _next(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _take(self) -> str:
        if not self._tokens:
            raise self._error()
        return self._tokens.pop(0)

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise self._error()

    def _error(self) -> ValueError:
        return ValueError(f"{self._text!r} is no schema in Spark's DDL, such as 'n LONG, name STRING'")
