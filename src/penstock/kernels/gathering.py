"""Takes some values of an array or some rows of a column: what NumPy and Arrow do too, several times faster and without
the GIL. Rows are not checked against the array's length."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from penstock.kernels.hashing import fixed_width_values, offsets_and_bytes, read_only
from penstock.kernels.loading import compiled

_OFFSETS: Final[dict[pa.DataType, type[np.signedinteger[Any]]]] = {
    pa.string(): np.int32,
    pa.binary(): np.int32,
    pa.large_string(): np.int64,
    pa.large_binary(): np.int64,
}

Rows = npt.NDArray[np.int32] | npt.NDArray[np.int64]


def gathered(values: npt.NDArray[Any], rows: Rows) -> npt.NDArray[Any]:
    """The values of these rows, in a new array. Rows of values, and Python objects, are left to NumPy."""
    kernels = compiled(len(rows)) if values.ndim == 1 and not values.dtype.hasobject else None
    if kernels is None:
        return values[rows]
    # By their bits: so the kernel is compiled for four widths, not for every type.
    bits = read_only(values.view(f"u{values.itemsize}"))
    taken: npt.NDArray[Any] = kernels.gather(bits, rows).view(values.dtype)
    return taken


def taken(column: pa.Array, rows: Rows) -> pa.Array:
    """The column of these rows; shares no memory with the other."""
    if is_plain(column):
        values = gathered(fixed_width_values(column, f"u{column.type.bit_width // 8}"), rows)
        return pa.Array.from_buffers(column.type, len(rows), [None, pa.py_buffer(values)])
    kernels = compiled(len(rows)) if column.type in _OFFSETS and not column.null_count else None
    if kernels is None:
        return column.take(pa.array(rows))
    offsets, data = offsets_and_bytes(column)
    offsets, data = kernels.gather_bytes(read_only(offsets), read_only(data), rows.astype(np.int64, copy=False))
    kind = _OFFSETS[column.type]
    if offsets[-1] > np.iinfo(kind).max:
        return column.take(pa.array(rows))  # which says that they are too many
    buffers = [None, pa.py_buffer(offsets.astype(kind, copy=False)), pa.py_buffer(data)]
    return pa.Array.from_buffers(column.type, len(rows), buffers)


def is_plain(column: pa.Array) -> bool:
    """Values of 1 to 8 bytes, one after another, none of them null."""
    return pat.is_primitive(column.type) and not pat.is_boolean(column.type) and column.null_count == 0
