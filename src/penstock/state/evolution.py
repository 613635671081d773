"""Reading state that an earlier version of the program stored.

Every stored state says of what type it is (see `schema`). Where that is what the program declares, the codec reads it.
Where it differs, a migration function of the user decides if there is one for the stored type, else the rules of
`conversion`. Whether it can be read is known from the description alone, before a value is touched; so a program that
cannot restore is refused before it starts.

What changes is the *element* of a state: the value, the items of a list, or the values (and keys) of a map. Giving a
state a time to live, or taking it away, is no change of the element: items that have no stamp yet get that of the
restore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import msgspec.inspect as mi
import pyarrow as pa

from penstock.core.ids import Uid
from penstock.state.codec import Codec, codec_for, forget_notes
from penstock.state.composite import KEY, STAMP, VALUE
from penstock.state.conversion import Conversion, Incompatible, Renames, conversion, widened_numbers
from penstock.state.schema import Description, fits, show

Migration = tuple[Any, Callable[[Any], Any]]
"""A type that was stored once, and a function from its values to those of the declared type."""
Decoder = Callable[[pa.Array], list[Any]]
Item = tuple[Any, Any, int | None]
"""Key (of a map's entry, else None), plain value and stamp."""

_SPECIAL = ("numpy", "arrow", "pickle")


@dataclass(frozen=True)
class Evolution:
    """How a declared state reads what was stored."""

    kind: str
    codec: Codec
    """Of the state as a whole."""
    type: Any
    element: Codec
    key_type: Any = None
    """Of a map."""
    stamped: bool = False
    renamed: Renames | None = None
    migrations: Sequence[Migration] = ()

    def decoder(self, kind: str, stored: Description, now_ms: int) -> Decoder:
        """Reads columns that were stored with that description. Raises `Incompatible` if they cannot be read."""
        if kind != self.kind:
            raise Incompatible(f"{kind} state cannot become {self.kind} state")
        if fits(stored, self.codec.description):
            return self.codec.decode
        old = _Stored.of(kind, stored)
        key = None if old.key is None else self._key(old.key)
        element = self._element(old.element)

        def item(entry: Item) -> tuple[Any, Any]:
            old_key, value, stamp = entry
            made = element(value)
            if self.stamped:
                made = (made, now_ms if stamp is None else stamp)
            return (old_key if key is None else key(old_key)), made

        def decode(column: pa.Array) -> list[Any]:
            rows = [[item(entry) for entry in row] for row in old.rows(column)]
            match kind:
                case "list":
                    return [[value for _, value in row] for row in rows]
                case "map":
                    return [dict(row) for row in rows]
            return [row[0][1] for row in rows]

        return decode

    def check(self, kind: str, stored: Description) -> None:
        """Raises `Incompatible` unless state of that description can be read."""
        self.decoder(kind, stored, 0)

    def mismatch(self, uid: Uid, name: str, kind: str, stored: Description, reason: Incompatible) -> str:
        """What to tell about a state that cannot be read."""
        return (
            f"operator {uid!r}: the state {name!r} was stored as {kind} state of {show(stored)}, but is declared as "
            f"{self.kind} state of {show(self.codec.description)}: {reason}. Declare it as it was, say how its values "
            "become the new ones with migrate=[(OldType, function)], or give the new state another name"
        )

    def is_same(self, kind: str, stored: Description) -> bool:
        return kind == self.kind and fits(stored, self.codec.description)

    def _element(self, stored: Description) -> Conversion:
        for old_type, migrate in self.migrations:
            old = codec_for(old_type)
            if fits(stored, old.description):
                return _after(old.from_plain, migrate)
        return _after(self._converted(stored, self.type, self.element), self.element.from_plain)

    def _key(self, stored: Description) -> Conversion:
        codec = codec_for(self.key_type)
        return _after(self._converted(stored, self.key_type, codec), codec.from_plain)

    def _converted(self, stored: Description, type_: Any, codec: Codec) -> Conversion | None:
        declared = codec.description
        if fits(stored, declared):
            return None
        if stored["type"] == "pickle" or declared["type"] == "pickle":
            raise Incompatible(
                f"{show(stored)} cannot become {show(declared)}: what was pickled is read only by a state that is "
                "declared with pickle=True, and the other way round"
            )
        if declared["type"] in _SPECIAL:
            widened = widened_numbers(stored, declared)
            if widened is None:
                raise Incompatible(f"{show(stored)} cannot become {show(declared)}")
            return widened
        info = mi.type_info(type_)
        try:
            return conversion(stored, info, self.renamed or {})
        finally:
            forget_notes(info, set())


def _after(first: Conversion | None, then: Conversion) -> Conversion:
    return then if first is None else lambda value: then(first(value))


@dataclass(frozen=True)
class _Stored:
    """A stored description, taken apart."""

    key: Description | None
    element: Description
    stamped: bool
    kind: str

    @classmethod
    def of(cls, kind: str, stored: Description) -> _Stored:
        key = stored["key"] if kind == "map" else None
        element = stored["value"] if kind == "map" else stored["item"] if kind == "list" else stored
        stamped = element["type"] == "expiring"
        return cls(key, element["item"] if stamped else element, stamped, kind)

    def rows(self, column: pa.Array) -> Iterator[list[Item]]:
        """The items of every row, as plain values."""
        if self.kind not in ("list", "map"):
            yield from ([entry] for entry in self._items(column, self.stamped))
        elif pa.types.is_large_list(column.type):
            items = list(self._items(column.flatten(), True))
            offsets = column.offsets.to_pylist()
            for start, end in pairwise(offsets):
                yield items[start - offsets[0] : end - offsets[0]]
        else:
            for message in column.to_pylist():
                content = msgspec.msgpack.decode(message)
                entries = content.items() if isinstance(content, Mapping) else ((None, item) for item in content)
                yield [(key, value, None) for key, value in entries]

    def _items(self, column: pa.Array, in_struct: bool) -> Iterator[Item]:
        keys: Sequence[Any] = [None] * len(column)
        stamps: Sequence[int | None] = [None] * len(column)
        if in_struct:
            fields = [field.name for field in column.type]
            if KEY in fields and self.key is not None:
                keys = plain_values(column.field(KEY), self.key)
            if STAMP in fields:
                stamps = column.field(STAMP).to_pylist()
            column = column.field(VALUE)
        return zip(keys, plain_values(column, self.element), stamps, strict=True)


def plain_values(column: pa.Array, stored: Description) -> list[Any]:
    """The values of a column that was stored with that description, without the classes that they were of."""
    if stored["type"] not in _SPECIAL:
        if pa.types.is_struct(column.type):
            return [None if value is None else list(value.values()) for value in column.to_pylist()]
        if pa.types.is_large_binary(column.type) and not _is_bytes(stored):
            return list(map(msgspec.msgpack.decode, column.to_pylist()))
    return column.to_pylist()


def _is_bytes(stored: Description) -> bool:
    parts = stored["of"] if stored["type"] == "union" else [stored]
    return {part["type"] for part in parts} <= {"bytes", "none"}
