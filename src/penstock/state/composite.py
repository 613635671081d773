"""Lists, dicts and stamped values as columns whose items have codecs of their own.

    value with a time to live     struct<value, stamp>
    list                          large_list<struct<value[, stamp]>>
    map                           large_list<struct<key, value[, stamp]>>

A stamp is when the item was last written or read, in milliseconds since the epoch. In memory a stamped item is a pair
`(value, stamp)`. Lists and dicts without stamps whose items are plain Python values are MessagePack instead (`codec`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.state.codec import Codec
from penstock.state.schema import Description

VALUE, STAMP, KEY = "value", "stamp", "key"


def expiring(description: Description) -> Description:
    return {"type": "expiring", "item": description}


class StampedValues:
    """A value and its stamp."""

    def __init__(self, inner: Codec) -> None:
        self._inner = inner
        self.description = expiring(inner.description)
        self.arrow_type = pa.struct([(VALUE, inner.arrow_type), (STAMP, pa.int64())])

    def encode(self, values: Sequence[Any]) -> pa.Array:
        columns = [
            self._inner.encode([value for value, _ in values]),
            pa.array([stamp for _, stamp in values], pa.int64()),
        ]
        return pa.StructArray.from_arrays(columns, fields=list(self.arrow_type))

    def decode(self, column: pa.Array) -> list[Any]:
        values, stamps = column.flatten()
        return list(zip(self._inner.decode(values), stamps.to_pylist(), strict=True))

    def from_plain(self, value: Any) -> Any:
        return self._inner.from_plain(value[0]), value[1]

    @property
    def copy(self) -> Callable[[Any], Any] | None:
        copy = self._inner.copy
        return None if copy is None else lambda pair: (copy(pair[0]), pair[1])


class ListColumns:
    """A list of items, each with a stamp if the item's codec gives it one."""

    def __init__(self, item: Codec) -> None:
        self._item = item
        self.description: Description = {"type": "list", "item": item.description}
        self.arrow_type = pa.large_list(pa.struct(_item_fields(item)))

    def encode(self, values: Sequence[Any]) -> pa.Array:
        items = self._item.encode(list(chain.from_iterable(values)))
        return _listed(self.arrow_type, _item_columns(items, self._item), values)

    def decode(self, column: pa.Array) -> list[Any]:
        return list(_cut(self._item.decode(_items_of(column.flatten(), self._item)), column))

    def from_plain(self, value: Any) -> Any:
        return list(map(self._item.from_plain, value))

    def copy(self, value: list[Any]) -> list[Any]:
        copy = self._item.copy
        return value.copy() if copy is None else list(map(copy, value))


class MapColumns:
    """A dict, each of whose values has a stamp if the value's codec gives it one."""

    def __init__(self, key: Codec, value: Codec) -> None:
        self._key, self._value = key, value
        self.description: Description = {"type": "dict", "key": key.description, "value": value.description}
        self.arrow_type = pa.large_list(pa.struct([(KEY, key.arrow_type), *_item_fields(value)]))

    def encode(self, values: Sequence[Any]) -> pa.Array:
        keys = self._key.encode(list(chain.from_iterable(values)))
        items = self._value.encode(list(chain.from_iterable(entry.values() for entry in values)))
        return _listed(self.arrow_type, [keys, *_item_columns(items, self._value)], values)

    def decode(self, column: pa.Array) -> list[Any]:
        entries = column.flatten()
        keys = self._key.decode(entries.field(KEY))
        values = self._value.decode(_items_of(entries, self._value))
        return [dict(pairs) for pairs in _cut(list(zip(keys, values, strict=True)), column)]

    def from_plain(self, value: Any) -> Any:
        return {self._key.from_plain(key): self._value.from_plain(item) for key, item in value.items()}

    def copy(self, value: dict[Any, Any]) -> dict[Any, Any]:
        copy = self._value.copy
        return value.copy() if copy is None else {key: copy(item) for key, item in value.items()}


def _item_fields(item: Codec) -> list[pa.Field]:
    return list(item.arrow_type) if isinstance(item, StampedValues) else [pa.field(VALUE, item.arrow_type)]


def _item_columns(items: pa.Array, codec: Codec) -> list[pa.Array]:
    return items.flatten() if isinstance(codec, StampedValues) else [items]


def _items_of(entries: pa.StructArray, codec: Codec) -> pa.Array:
    if not isinstance(codec, StampedValues):
        return entries.field(VALUE)
    return pa.StructArray.from_arrays([entries.field(VALUE), entries.field(STAMP)], fields=list(codec.arrow_type))


def _listed(arrow_type: pa.DataType, columns: list[pa.Array], values: Sequence[Any]) -> pa.Array:
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    items = pa.StructArray.from_arrays(columns, fields=list(arrow_type.value_type))
    return pa.LargeListArray.from_arrays(pa.array(offsets), items, type=arrow_type)


def _cut(items: list[Any], column: pa.Array) -> Iterator[list[Any]]:
    """The items of all rows as one list per row."""
    offsets = column.offsets.to_numpy()
    for start, end in zip((offsets[:-1] - offsets[0]).tolist(), (offsets[1:] - offsets[0]).tolist(), strict=True):
        yield items[start:end]
