"""The kinds of keyed state, as a function uses them.

A state object stands for the state of one key at a time: the operator loads it before it calls the function with the
rows of that key, and stores it afterwards. In between it is a plain Python value, so that using it costs nothing extra.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from itertools import compress, repeat
from operator import is_, is_not
from typing import Any, ClassVar, Final, Generic, TypeVar

import numpy as np
import pyarrow as pa

from penstock.core.ids import Uid
from penstock.state.codec import Codec
from penstock.state.columnmap import Changes, Mask
from penstock.state.conversion import Incompatible
from penstock.state.evolution import Decoder, Evolution
from penstock.state.layers import REMOVED, KeyedMap, LayeredMap
from penstock.state.schema import Description
from penstock.state.tables import StateMismatch

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

Cleaner = Callable[[Mapping[Any, Any]], Mapping[Any, Any]]
"""Leaves out of a snapshot's entries what need not be stored."""

_MISSING: Final = object()
_VALUE_COLUMN: Final = "value"


class KeyedState:
    """What all kinds have in common. `value` is the current key's."""

    __slots__ = ("_before", "_changeable", "_default", "_make", "codec", "evolution", "map", "name", "value")
    kind: ClassVar[str]
    in_columns: ClassVar[bool] = False
    """Whether entries may be kept in columns, if their type is flat: they are one value, loaded and stored as here."""

    def __init__(self, name: str, codec: Codec, default: Any, evolution: Evolution) -> None:
        self.name, self.codec, self.evolution = name, codec, evolution
        self.map: KeyedMap = LayeredMap(codec.copy)
        self._changeable = codec.copy is not None
        """Whether values can change in place."""
        self._make: Callable[[], Any] | None = default if callable(default) else None
        self._default = None if callable(default) else default
        self.value: Any = None
        self._before: Any = None

    def load(self, key: Hashable) -> None:
        """Makes `value` that of the key."""
        found = self.map.live.get(key, _MISSING)
        if found is _MISSING:
            found = self.map.from_below(key, _MISSING)
        elif self._changeable and found is not REMOVED:
            found = self.map.own(key, found)
        if found is not _MISSING and found is not REMOVED:
            self._before = self.value = found
        elif self._make is None:
            self._before = self.value = self._default
        else:
            # Nothing equals the marker: a value that is made for the key is stored unless it stays what it was.
            self._before, self.value = _MISSING, self._make()

    def store(self, key: Hashable) -> None:
        """Keeps `value` for the key. A key whose value is the default takes no room."""
        value = self.value
        if value is self._before:
            return
        if self._make is None:
            is_default = value is self._default
        else:
            is_default = value == self._make()
        if is_default:
            self.map.remove(key)
        else:
            self.map.live[key] = self.map.changed[key] = value

    def changes(self, before: Sequence[Any], after: Sequence[Any]) -> Changes | None:
        """What `store` would do for many keys at once, given the value of each before and after; None: nothing."""
        rows: Mask | None = None
        if any(map(is_, after, before)):
            rows = np.fromiter(map(is_not, after, before), np.bool_, len(after))
            after = list(compress(after, rows))
            if not after:
                return None
        defaults = list(self._are_default(after)) if any(self._are_default(after)) else None
        return Changes(rows, after, None if defaults is None else np.array(defaults))

    def _are_default(self, values: Sequence[Any]) -> Iterator[bool]:
        make = self._make
        return map(is_, values, repeat(self._default)) if make is None else (value == make() for value in values)

    def initial(self) -> Any:
        """The value of a key that has none."""
        return self._default if self._make is None else self._make()

    def clear(self) -> None:
        """Forgets what is kept for the key."""
        self.value = self.initial()

    def decoder(self, uid: Uid, kind: str, stored: Description) -> Decoder:
        """Reads the values of a part that was stored with that description. Raises `StateMismatch`."""
        try:
            return self.evolution.decoder(kind, stored, self._restored_at())
        except Incompatible as reason:
            raise StateMismatch(self.evolution.mismatch(uid, self.name, kind, stored, reason)) from None

    def reads_as_is(self, kind: str, stored: Description) -> bool:
        """Whether what was stored with that description is just what the state stores now."""
        return self.evolution.is_same(kind, stored)

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        """Of the state's files, besides those of the key."""
        return {_VALUE_COLUMN: self.codec.arrow_type}

    def spread(self, column: pa.Array | pa.ChunkedArray) -> Sequence[pa.Array | pa.ChunkedArray]:
        """What the codec made of values, as these columns."""
        return (column,)

    def gathered(self, batch: pa.RecordBatch) -> pa.Array:
        """The columns of a file as the one that is decoded."""
        return batch.column(_VALUE_COLUMN)

    def _restored_at(self) -> int:
        """The stamp of what was stored without one; of no use in a state without a time to live."""
        return 0

    def take_up(self, keys: Sequence[Hashable], values: Sequence[Any]) -> None:
        """Keeps restored entries."""
        self.map.take_up(keys, values)

    def cleaner(self) -> Cleaner | None:
        """For a snapshot that is taken now; None: everything is stored. Called on the task's thread, what it returns on
        any other."""
        return None


class ValueState(KeyedState, Generic[V]):
    """One value per key: read and write `value`, or use `get` and `set`."""

    __slots__ = ()
    kind = "value"
    in_columns = True
    value: V

    def get(self) -> V:
        return self.value

    def set(self, value: V) -> None:
        self.value = value


class ReducingState(KeyedState, Generic[V]):
    """What was added for the key, folded into one value; None while nothing was."""

    __slots__ = ("_function",)
    kind = "reducing"
    in_columns = True
    value: V | None

    def __init__(self, name: str, codec: Codec, function: Callable[[V, V], V], evolution: Evolution) -> None:
        super().__init__(name, codec, None, evolution)
        self._function = function

    def add(self, item: V) -> None:
        self.value = item if self.value is None else self._function(self.value, item)

    def get(self) -> V | None:
        return self.value


class AggregatingState(KeyedState, Generic[V, R]):
    """What was added for the key, in an accumulator of another type. `value` is the accumulator, `get` the result."""

    __slots__ = ("_add", "_result")
    kind = "aggregating"
    in_columns = True

    def __init__(
        self,
        name: str,
        codec: Codec,
        create: Callable[[], Any],
        add: Callable[[Any, V], Any],
        result: Callable[[Any], R] | None,
        evolution: Evolution,
    ) -> None:
        super().__init__(name, codec, create, evolution)
        self._add, self._result = add, result

    def add(self, item: V) -> None:
        self.value = self._add(self.value, item)

    def get(self) -> R:
        accumulator: Any = self.value
        return accumulator if self._result is None else self._result(accumulator)


class _CollectionState(KeyedState):
    """A list or dict per key; an empty one takes no room, also where it was emptied in place."""

    __slots__ = ()

    def store(self, key: Hashable) -> None:
        value = self.value
        if not value:
            if self._before is not _MISSING:
                self.map.remove(key)
        elif value is not self._before:
            self.map.live[key] = self.map.changed[key] = value

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value)

    def __contains__(self, item: object) -> bool:
        return item in self.value

    def __bool__(self) -> bool:
        return bool(self.value)


class ListState(_CollectionState, Generic[V]):
    """A list per key. `value` is the list itself, for everything that is not offered here."""

    __slots__ = ()
    kind = "list"
    value: list[V]

    def append(self, item: V) -> None:
        self.value.append(item)

    def extend(self, items: Iterable[V]) -> None:
        self.value.extend(items)

    def set(self, items: Iterable[V]) -> None:
        """Replaces the list."""
        self.value = list(items)

    def __getitem__(self, place: int) -> V:
        return self.value[place]


class MapState(_CollectionState, Generic[K, V]):
    """A dict per key. `value` is the dict itself, for everything that is not offered here."""

    __slots__ = ()
    kind = "map"
    value: dict[K, V]

    def get(self, key: K, default: Any = None) -> Any:
        return self.value.get(key, default)

    def pop(self, key: K, default: Any = None) -> Any:
        return self.value.pop(key, default)

    def keys(self) -> KeysView[K]:
        return self.value.keys()

    def values(self) -> ValuesView[V]:
        return self.value.values()

    def items(self) -> ItemsView[K, V]:
        return self.value.items()

    def __getitem__(self, key: K) -> V:
        return self.value[key]

    def __setitem__(self, key: K, value: V) -> None:
        self.value[key] = value

    def __delitem__(self, key: K) -> None:
        del self.value[key]
