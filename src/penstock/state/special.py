"""Codecs of what is not a plain Python type: NumPy's scalars, values of a given Arrow type, and, on request, pickle.

Pickle executes whatever the file says and ties state to the code that wrote it. It is therefore never used unless a
state is declared with `pickle=True`, and what was pickled is read only into a state that is declared so again.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.state.errors import UnstorableValue, UnsupportedType
from penstock.state.schema import Description, describe_arrow, describe_numpy, is_numpy_scalar

__all__ = ["ArrowValues", "NumpyScalars", "PickledValues", "numpy_value"]


class NumpyScalars:
    """Values of one NumPy type, which come back as that type."""

    copy = None

    def __init__(self, scalar: type[np.generic]) -> None:
        self.description = describe_numpy(scalar)
        self.arrow_type: pa.DataType = pa.from_numpy_dtype(np.dtype(scalar))
        self._scalar: Callable[[Any], Any] = scalar

    def encode(self, values: Sequence[Any]) -> pa.Array:
        return pa.array([numpy_value(self._scalar, value).item() for value in values], self.arrow_type)

    def decode(self, column: pa.Array) -> list[Any]:
        return list(map(self._scalar, column.to_pylist()))

    def from_plain(self, value: Any) -> Any:
        return numpy_value(self._scalar, value)


def numpy_value(scalar: Callable[[Any], Any], value: Any) -> Any:
    """The value as that NumPy type, if it is one of its values."""
    try:
        with np.errstate(over="ignore"):
            made = scalar(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise UnstorableValue(f"{value!r} is no {getattr(scalar, '__name__', scalar)}: {error}") from error
    plain = value.item() if isinstance(value, np.generic) else value
    if made.item() != plain and not _rounded(made, plain):
        raise UnstorableValue(f"{value!r} is no {getattr(scalar, '__name__', scalar)}: it would become {made!r}")
    return made


def _rounded(made: Any, value: Any) -> bool:
    """A float that lost digits, and NaN; not one that became infinite."""
    return (
        isinstance(made, np.floating) and isinstance(value, float | np.floating) and np.isinf(made) == np.isinf(value)
    )


class ArrowValues:
    """Values of an Arrow type, as `pyarrow.Array.to_pylist` gives them."""

    def __init__(self, data_type: pa.DataType) -> None:
        if pa.types.is_dictionary(data_type) or pa.types.is_run_end_encoded(data_type):
            raise UnsupportedType(f"{data_type} is an encoding: declare the type of its values, {data_type.value_type}")
        self.arrow_type = data_type
        self.description = describe_arrow(data_type)
        self._exact = not _holds_floats(data_type)

    @property
    def copy(self) -> Callable[[Any], Any] | None:
        return copy.deepcopy if pa.types.is_nested(self.arrow_type) else None

    def encode(self, values: Sequence[Any]) -> pa.Array:
        try:
            column = pa.array(values, self.arrow_type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise UnstorableValue(f"not of the Arrow type {self.arrow_type}: {error}") from error
        if self._exact and (read := column.to_pylist()) != list(values):
            value, back = next((a, b) for a, b in zip(values, read, strict=True) if a != b)
            raise UnstorableValue(f"{value!r} would come back as {back!r} from the Arrow type {self.arrow_type}")
        return column

    def decode(self, column: pa.Array) -> list[Any]:
        return column.to_pylist()

    def from_plain(self, value: Any) -> Any:
        return value


def _holds_floats(data_type: pa.DataType) -> bool:
    if pa.types.is_nested(data_type):
        return any(_holds_floats(data_type.field(place).type) for place in range(data_type.num_fields))
    return bool(pa.types.is_floating(data_type))


class PickledValues:
    """Any Python object, on the user's own responsibility."""

    arrow_type = pa.large_binary()

    def __init__(self, type_: Any) -> None:
        self.description: Description = {"type": "pickle", "class": getattr(type_, "__qualname__", str(type_))}

    def encode(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(list(map(self._dumped, values)), self.arrow_type)

    def decode(self, column: pa.Array) -> list[Any]:
        return list(map(pickle.loads, column.to_pylist()))

    def copy(self, value: Any) -> Any:
        return pickle.loads(self._dumped(value))

    def from_plain(self, value: Any) -> Any:
        return pickle.loads(value)

    @staticmethod
    def _dumped(value: Any) -> bytes:
        try:
            return pickle.dumps(value)
        except Exception as error:
            raise UnstorableValue(f"a value of type {type(value).__name__} cannot be pickled: {error}") from error


def special_codec(type_: Any, pickled: bool) -> NumpyScalars | ArrowValues | PickledValues | None:
    """The codec of a type that is not a plain Python one; None if it is."""
    if pickled:
        return PickledValues(type_)
    if isinstance(type_, pa.DataType):
        return ArrowValues(type_)
    if is_numpy_scalar(type_):
        return NumpyScalars(type_)
    return None
