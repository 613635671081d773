"""How the values of a state become an Arrow column, and a column the values again. Nothing is pickled unasked.

Three forms, chosen by the declared type:

- numbers, strings, bytes, booleans (also `| None`): a column of that Arrow type;
- tuples and NamedTuples of those: a struct column;
- everything else: MessagePack, one binary per value.

NumPy's scalars, Arrow types and pickle have codecs of their own (`special`), lists and dicts whose items need a column
of their own too (`composite`).

What cannot be read back is refused when it is written: values are checked against the declared type at encoding, so
that a restore never meets a surprise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Protocol

import msgspec
import msgspec.inspect as mi
import numpy as np
import pyarrow as pa

from penstock.state.errors import UnstorableValue
from penstock.state.schema import Description, describe, holds_any, is_immutable, is_numpy_scalar
from penstock.state.special import numpy_value, special_codec

_NOTES = "__msgspec_cache__"

CHUNK = 4096
"""Values are converted in runs of so many: each conversion holds the interpreter's lock to its end."""


class Codec(Protocol):
    """Between the values of one state and a column."""

    arrow_type: pa.DataType
    description: Description

    def encode(self, values: Sequence[Any]) -> pa.Array:
        """Raises `UnstorableValue` at the first value that does not fit."""
        ...

    def decode(self, column: pa.Array) -> list[Any]: ...

    def from_plain(self, value: Any) -> Any:
        """A value of the type from what MessagePack can say: numbers, strings, bytes, lists, dicts (see `evolution`).
        Raises `UnstorableValue` if it is none."""
        ...

    @property
    def copy(self) -> Callable[[Any], Any] | None:
        """Makes a value that shares nothing that can change; None where values cannot change."""
        ...


def codec_for(type_: Any, *, pickled: bool = False) -> Codec:
    """The codec of a declared type. Raises `UnsupportedType` for a type that cannot be stored."""
    special = special_codec(type_, pickled)
    if special is not None:
        return special
    info = mi.type_info(type_)
    try:
        return _plain_codec(type_, info)
    finally:
        forget_notes(info, set())


def _plain_codec(type_: Any, info: mi.Type) -> Codec:
    description = describe(info)
    scalar = _scalar_of(info)
    if scalar is not None:
        return Scalars(scalar[0], nullable=scalar[1], description=description)
    fields = _tuple_fields(info)
    if fields is not None:
        return Tuples(fields, type_ if isinstance(info, mi.NamedTupleType) else tuple, description)
    return _Messages(type_, info, description)


def forget_notes(info: mi.Type, seen: set[type]) -> None:
    """msgspec leaves notes on dataclasses and NamedTuples that cannot be pickled, and a class of the user's main
    program is sent to the workers by value, with all that it has. Decoders keep what they need."""
    parts: list[mi.Type] = [*getattr(info, "item_types", ()), *getattr(info, "types", ())]
    parts += [getattr(info, name) for name in ("item_type", "key_type", "value_type") if hasattr(info, name)]
    cls = getattr(info, "cls", None)
    if cls is not None and cls not in seen:
        seen.add(cls)
        parts += [field.type for field in getattr(info, "fields", ())]
        if _NOTES in vars(cls):
            delattr(cls, _NOTES)
    for part in parts:
        forget_notes(part, seen)


def encode_in_runs(codec: Codec, values: Sequence[Any]) -> pa.ChunkedArray:
    """Encodes many values without holding the interpreter's lock for long at a time."""
    runs = [codec.encode(values[start : start + CHUNK]) for start in range(0, len(values), CHUNK)]
    return pa.chunked_array(runs, codec.arrow_type)


_SCALARS: dict[type[mi.Type], tuple[pa.DataType, type, tuple[type, ...]]] = {
    mi.BoolType: (pa.bool_(), bool, (bool,)),
    mi.IntType: (pa.int64(), int, (int,)),
    mi.FloatType: (pa.float64(), float, (float, int)),
    mi.StrType: (pa.large_string(), str, (str,)),
    mi.BytesType: (pa.large_binary(), bytes, (bytes,)),
}
"""The column's type, the Python type, and what else is stored as it without loss."""


def _scalar_of(info: mi.Type) -> tuple[type[mi.Type], bool] | None:
    """Which scalar the type is, and whether it can be None."""
    if type(info) in _SCALARS:
        return type(info), False
    if isinstance(info, mi.UnionType) and len(info.types) == 2:
        inner = [part for part in info.types if not isinstance(part, mi.NoneType)]
        if len(inner) == 1 and type(inner[0]) in _SCALARS:
            return type(inner[0]), True
    return None


def _tuple_fields(info: mi.Type) -> list[Scalars] | None:
    """One codec per position, if the type is a tuple of scalars."""
    if isinstance(info, mi.TupleType):
        types = info.item_types
    elif isinstance(info, mi.NamedTupleType):
        types = tuple(field.type for field in info.fields)
    else:
        return None
    scalars = [_scalar_of(part) for part in types]
    if not scalars or any(scalar is None for scalar in scalars):
        return None
    return [Scalars(s[0], s[1], describe(part)) for s, part in zip(scalars, types, strict=True) if s is not None]


class Scalars:
    copy = None

    def __init__(self, scalar: type[mi.Type], nullable: bool, description: Description) -> None:
        self.arrow_type, self.python_type, accepted = _SCALARS[scalar]
        self._accepted = {*accepted, type(None)} if nullable else set(accepted)
        self.nullable, self.description = nullable, description

    def encode(self, values: Sequence[Any]) -> pa.Array:
        if not set(map(type, values)) <= self._accepted:
            values = [value if type(value) in self._accepted else self._plain(value) for value in values]
        try:
            return pa.array(values, self.arrow_type)
        except (OverflowError, pa.ArrowInvalid, UnicodeEncodeError) as error:
            for value in values:
                self._check_range(value)
            raise UnstorableValue(str(error)) from error

    def decode(self, column: pa.Array) -> list[Any]:
        return column.to_pylist()

    def from_plain(self, value: Any) -> Any:
        return value if type(value) in self._accepted and type(value) is not int else self._plain_number(value)

    def _plain_number(self, value: Any) -> Any:
        """A whole number may be stored as a float if it stays what it is."""
        plain = self._plain(value)
        if self.python_type is float and type(plain) is int:
            if int(float(plain)) != plain:
                raise UnstorableValue(f"{plain!r} has no exact float")
            return float(plain)
        return plain

    def _plain(self, value: Any) -> Any:
        """NumPy's scalars and subclasses count as what they are of."""
        plain = value.item() if isinstance(value, np.generic) else value
        if type(plain) not in self._accepted and isinstance(plain, self.python_type) and not isinstance(plain, bool):
            plain = self.python_type(plain)
        if type(plain) not in self._accepted:
            raise UnstorableValue(
                f"{value!r} is of type {type(value).__name__}, but {self.python_type.__name__} is declared"
            )
        return plain

    def _check_range(self, value: Any) -> None:
        try:
            pa.array([value], self.arrow_type)
        except OverflowError as error:
            raise UnstorableValue(f"{value!r} does not fit into 64 bits; keep it as str, bytes or Decimal") from error
        except (pa.ArrowInvalid, UnicodeEncodeError) as error:
            raise UnstorableValue(f"{value!r} cannot be stored as {self.python_type.__name__}: {error}") from error


class Tuples:
    copy = None

    def __init__(self, fields: list[Scalars], cls: type[tuple[Any, ...]], description: Description) -> None:
        self.fields, self._cls, self.description = fields, cls, description
        names = getattr(cls, "_fields", None) or [f"f{place}" for place in range(len(fields))]
        self.arrow_type = pa.struct(
            [pa.field(name, field.arrow_type) for name, field in zip(names, fields, strict=True)]
        )
        self._make: Callable[[tuple[Any, ...]], Any] | None = getattr(cls, "_make", None)

    def encode(self, values: Sequence[Any]) -> pa.Array:
        columns = [field.encode(column) for field, column in zip(self.fields, self.apart(values), strict=True)]
        return pa.StructArray.from_arrays(columns, fields=list(self.arrow_type))

    def apart(self, values: Sequence[Any]) -> list[list[Any]]:
        """What all values have at each place. Raises `UnstorableValue` if one is no such tuple."""
        if not set(map(type, values)) <= {self._cls, tuple} or not set(map(len, values)) <= {len(self.fields)}:
            for value in values:
                if not isinstance(value, tuple) or len(value) != len(self.fields):
                    raise UnstorableValue(
                        f"{value!r} is no {self._cls.__name__} of {len(self.fields)} values, as is declared"
                    )
        return [list(map(itemgetter(place), values)) for place in range(len(self.fields))]

    def decode(self, column: pa.Array) -> list[Any]:
        return self.together([field.decode(part) for field, part in zip(self.fields, column.flatten(), strict=True)])

    def together(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """The inverse of `apart`."""
        values = zip(*columns, strict=True)
        return list(values if self._make is None else map(self._make, values))

    def from_plain(self, value: Any) -> Any:
        parts = tuple(field.from_plain(part) for field, part in zip(self.fields, value, strict=True))
        return parts if self._make is None else self._make(parts)


def _numpy_scalar(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"a {type(value).__name__} cannot be stored")


def _custom_value(type_: type, value: Any) -> Any:
    if is_numpy_scalar(type_):
        return numpy_value(type_, value)
    raise NotImplementedError(f"a {type_.__name__} cannot be restored")


class _Messages:
    arrow_type = pa.large_binary()

    def __init__(self, type_: Any, info: mi.Type, description: Description) -> None:
        self.description = description
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_numpy_scalar)
        self._decoder = msgspec.msgpack.Decoder(type_, dec_hook=_custom_value)
        self._exact = holds_any(description)
        self._copy = self._copier(info)

    @property
    def copy(self) -> Callable[[Any], Any] | None:
        return self._copy

    def encode(self, values: Sequence[Any]) -> pa.Array:
        value: Any = None
        encode, decode, exact = self._encoder.encode, self._decoder.decode, self._exact
        encoded = []
        try:
            for value in values:
                message = encode(value)
                read = decode(message)
                if exact and read != value:
                    raise UnstorableValue(
                        f"{value!r} would come back as {read!r}: declare the types inside, as in list[tuple[int, str]]"
                    )
                encoded.append(message)
        except OverflowError as error:
            raise UnstorableValue(
                f"{value!r} holds a number beyond 64 bits; keep it as str, bytes or Decimal"
            ) from error
        except (TypeError, NotImplementedError, msgspec.MsgspecError, UnicodeEncodeError) as error:
            raise UnstorableValue(f"{value!r}: {error}") from error
        return pa.array(encoded, self.arrow_type)

    def decode(self, column: pa.Array) -> list[Any]:
        return list(map(self._decoder.decode, column.to_pylist()))

    def from_plain(self, value: Any) -> Any:
        try:
            return self._decoder.decode(self._encoder.encode(value))
        except (OverflowError, msgspec.MsgspecError) as error:
            raise UnstorableValue(f"{value!r}: {error}") from error

    def _copier(self, info: mi.Type) -> Callable[[Any], Any] | None:
        if is_immutable(info):
            return None
        shallow: Iterable[mi.Type] = ()
        if isinstance(info, mi.ListType | mi.SetType):
            shallow = (info.item_type,)
        elif isinstance(info, mi.DictType):
            shallow = (info.key_type, info.value_type)
        if shallow and all(map(is_immutable, shallow)):
            return _shallow_copy
        return self._deep_copy

    def _deep_copy(self, value: Any) -> Any:
        try:
            return self._decoder.decode(self._encoder.encode(value))
        except (TypeError, NotImplementedError, OverflowError, msgspec.MsgspecError) as error:
            raise UnstorableValue(f"a value of type {type(value).__name__} cannot be stored: {error}") from error


def _shallow_copy(value: Any) -> Any:
    return value.copy()
