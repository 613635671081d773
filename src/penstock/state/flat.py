"""Values of flat types in arrays, by slot: what a table of slots (`slottable`) keeps for a state of such a type.

Flat are numbers, truth values, strings and bytes (also `| None`), and tuples of them. Numbers lie in typed arrays, so
that a million of them are no Python objects: nothing is collected, and a capture is a copy of memory. Strings and bytes
lie in arrays of objects.

Values come and go in bulk, for all keys of a batch at once: from a list of Python values to arrays and back, at the
speed of C, each value checked against the declared type as the codec would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.kernels.gathering import gathered
from penstock.state.codec import CHUNK, Codec, Scalars, Tuples
from penstock.state.index import Slots

Array = npt.NDArray[Any]

_LEAST: Final = 1024
_DTYPES: Final[Mapping[type, Any]] = {int: np.int64, float: np.float64, bool: np.bool_}
"""Of what lies in arrays as it is."""


class _Field(Protocol):
    """The arrays of one scalar."""

    dtypes: Sequence[Any]

    def arrays_of(self, values: Sequence[Any]) -> list[Array]:
        """Raises `UnstorableValue` at the first value that does not fit."""
        ...

    def listed(self, arrays: Sequence[Array]) -> list[Any]: ...

    def to_arrow(self, arrays: Sequence[Array]) -> pa.Array: ...

    def from_arrow(self, column: pa.Array) -> list[Array]: ...


class _Plain:
    """Numbers or truth values, of which none is None."""

    def __init__(self, codec: Scalars) -> None:
        self._codec, self._type = codec, codec.python_type
        self._dtype = _DTYPES[codec.python_type]
        self.dtypes: Sequence[Any] = (self._dtype,)

    def arrays_of(self, values: Sequence[Any]) -> list[Array]:
        if set(map(type, values)) == {self._type}:
            try:
                return [np.fromiter(values, self._dtype, len(values))]
            except OverflowError:
                pass  # the codec says which one it was
        return self.from_arrow(self._codec.encode(values))

    def listed(self, arrays: Sequence[Array]) -> list[Any]:
        return arrays[0].tolist()

    def to_arrow(self, arrays: Sequence[Array]) -> pa.Array:
        return pa.array(arrays[0])

    def from_arrow(self, column: pa.Array) -> list[Array]:
        filled = column.fill_null(self._type()) if column.null_count else column
        return [filled.to_numpy(zero_copy_only=False)]


class _Nullable(_Plain):
    """Numbers or truth values or None: a second array says which."""

    def __init__(self, codec: Scalars) -> None:
        super().__init__(codec)
        self.dtypes = (self._dtype, np.bool_)

    def arrays_of(self, values: Sequence[Any]) -> list[Array]:
        arrays = super().arrays_of(values)
        return arrays if len(arrays) == 2 else [*arrays, np.ones(len(values), np.bool_)]

    def listed(self, arrays: Sequence[Array]) -> list[Any]:
        values, valid = super().listed(arrays), arrays[1]
        for place in np.flatnonzero(~valid).tolist():
            values[place] = None
        return values

    def to_arrow(self, arrays: Sequence[Array]) -> pa.Array:
        return pa.array(arrays[0], mask=~arrays[1])

    def from_arrow(self, column: pa.Array) -> list[Array]:
        return [*super().from_arrow(column), column.is_valid().to_numpy(zero_copy_only=False)]


class _Objects:
    """Strings or bytes, or None."""

    def __init__(self, codec: Scalars) -> None:
        self._codec = codec
        self._plain = {codec.python_type, type(None)}
        self.dtypes: Sequence[Any] = (np.object_,)

    def arrays_of(self, values: Sequence[Any]) -> list[Array]:
        encoded = self._codec.encode(values)
        if not set(map(type, values)) <= self._plain:
            return self.from_arrow(encoded)
        return [np.fromiter(values, np.object_, len(values))]

    def listed(self, arrays: Sequence[Array]) -> list[Any]:
        return arrays[0].tolist()

    def to_arrow(self, arrays: Sequence[Array]) -> pa.Array:
        """In runs, not to hold the interpreter's lock for long."""
        kind, values = self._codec.arrow_type, arrays[0]
        runs = [pa.array(values[start : start + CHUNK].tolist(), kind) for start in range(0, len(values), CHUNK)]
        return pa.concat_arrays(runs) if runs else pa.array([], kind)

    def from_arrow(self, column: pa.Array) -> list[Array]:
        return [np.fromiter(column.to_pylist(), np.object_, len(column))]


def _field(codec: Scalars) -> _Field:
    if codec.python_type not in _DTYPES:
        return _Objects(codec)
    return _Nullable(codec) if codec.nullable else _Plain(codec)


class FlatValues:
    """Implements `SlotValues` for the values of one state."""

    def __init__(self, codec: Scalars | Tuples) -> None:
        self._tuples = codec if isinstance(codec, Tuples) else None
        self._fields = [_field(scalar) for scalar in (codec.fields if isinstance(codec, Tuples) else [codec])]
        self._kind = codec.arrow_type
        self.stored: Mapping[str, pa.DataType] = {"": codec.arrow_type}
        self.arrays = [_blank(_LEAST, dtype) for field in self._fields for dtype in field.dtypes]

    # ---- use ----
    def arrays_of(self, values: Sequence[Any]) -> list[Array]:
        """Values as what is kept of them. Raises `UnstorableValue` at the first one that does not fit."""
        columns = [values] if self._tuples is None else self._tuples.apart(values)
        made = [field.arrays_of(column) for field, column in zip(self._fields, columns, strict=True)]
        return [array for arrays in made for array in arrays]

    def write(self, slots: Slots, arrays: Sequence[Array], keys: int) -> None:
        """Keeps what `arrays_of` made, each for its slot; `keys` slots are in use then."""
        self.expect(keys)
        for kept, new in zip(self.arrays, arrays, strict=True):
            kept[slots] = new

    def read(self, slots: Slots) -> list[Any]:
        """The values of these slots."""
        columns = [
            field.listed(arrays) for field, arrays in self._by_field([gathered(array, slots) for array in self.arrays])
        ]
        return columns[0] if self._tuples is None else self._tuples.together(columns)

    def forget(self, slots: Slots) -> None:
        """What is kept for these slots counts no more, and takes no room besides that of the slot."""
        for array in self.arrays:
            if array.dtype == np.object_:
                array[slots] = None

    def _by_field(self, arrays: Sequence[Array]) -> list[tuple[_Field, Sequence[Array]]]:
        pairs, place = [], 0
        for field in self._fields:
            pairs.append((field, arrays[place : place + len(field.dtypes)]))
            place += len(field.dtypes)
        return pairs

    def expect(self, keys: int) -> None:
        if keys > len(self.arrays[0]):
            length = 1 << (keys - 1).bit_length()
            self.arrays = [_grown(array, length) for array in self.arrays]

    def only(self, slots: Slots) -> None:
        """Keeps the values of these slots alone, as the first ones. What was captured is left as it is."""
        self.arrays = [_grown(gathered(array, slots), max(_LEAST, len(slots))) for array in self.arrays]

    # ---- captures and restores ----
    def frozen(self) -> Callable[[Sequence[Array]], list[pa.Array]]:
        return self._to_arrow

    def _to_arrow(self, arrays: Sequence[Array]) -> list[pa.Array]:
        columns = [field.to_arrow(own) for field, own in self._by_field(arrays)]
        return columns if self._tuples is None else [pa.StructArray.from_arrays(columns, fields=list(self._kind))]

    def put(self, slots: Slots, columns: Sequence[pa.Array], keys: int) -> None:
        parts = columns if self._tuples is None else columns[0].flatten()
        made = [field.from_arrow(part) for field, part in zip(self._fields, parts, strict=True)]
        self.write(slots, [array for arrays in made for array in arrays], keys)


def flat_values(codec: Codec) -> FlatValues | None:
    """None for a codec whose values are not flat."""
    return FlatValues(codec) if isinstance(codec, Scalars | Tuples) else None


def _grown(array: Array, length: int) -> Array:
    grown = _blank(length, array.dtype)
    grown[: len(array)] = array
    return grown


def _blank(length: int, dtype: Any) -> Array:
    """Zeros, or None where there are objects."""
    return np.empty(length, dtype) if dtype == np.object_ else np.zeros(length, dtype)
