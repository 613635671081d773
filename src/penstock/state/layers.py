"""A hash map of which a consistent picture can be taken in no time, however large it is.

Theory of operation. The map is a stack of dicts: one live layer on top, frozen ones below; a lookup goes down until it
finds the key, and a removal leaves a mark. Taking a picture freezes the live layer and starts a new one: nothing is
copied, and what the picture refers to never changes again. Once nobody holds a picture any more (a weak reference
tells), the layers are merged, a portion of the keys that changed meanwhile at a time, and the map is one plain dict
again.

Values that can change in place need one more rule: what a frozen layer holds belongs to the picture, so a lookup that
finds a value there copies it to the live layer first (`copy`). All other values belong to the map alone.

A picture may be read from another thread while the map goes on: it touches frozen layers only.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Final

REMOVED: Final = object()
"""Stands in a layer for a key that the layers below still have."""

MAX_FROZEN: Final = 4
"""Pictures held for long must not make lookups slow: more frozen layers than this are merged into a new one."""

MERGED_AT_ONCE: Final = 20_000
"""How many entries are merged in one step; more than a batch usually changes, so that merging comes to an end."""


class Picture:
    """The map as it was. Iterable until dropped; dropping it lets the map merge its layers."""

    __slots__ = ("__weakref__", "_layers")

    def __init__(self, layers: tuple[dict[Hashable, Any], ...]) -> None:
        self._layers = layers

    def items(self) -> Mapping[Any, Any]:
        """All entries. Do not change it: it may be a layer of the map itself."""
        return merged(self._layers)


class LayeredMap:
    """`live` is the top layer: callers on the hot path may read it first and write to it directly."""

    __slots__ = ("_frozen", "_pictures", "copy", "live")

    def __init__(self, copy: Callable[[Any], Any] | None = None) -> None:
        self.copy = copy
        self.live: dict[Hashable, Any] = {}
        self._frozen: list[dict[Hashable, Any]] = []
        """From the bottom up."""
        self._pictures: list[weakref.ref[Picture]] = []

    @property
    def is_plain(self) -> bool:
        """Whether `live` holds everything."""
        return not self._frozen

    def get(self, key: Hashable, default: Any = None) -> Any:
        value = self.live.get(key, self)
        if value is self:
            return self.from_below(key, default)
        return default if value is REMOVED else value

    def from_below(self, key: Hashable, default: Any) -> Any:
        """The value of a key that the live layer does not have."""
        for layer in reversed(self._frozen):
            value = layer.get(key, self)
            if value is self:
                continue
            if value is REMOVED:
                return default
            if self.copy is not None and self._pictures:
                value = self.live[key] = self.copy(value)
            return value
        return default

    def set(self, key: Hashable, value: Any) -> None:
        self.live[key] = value

    def remove(self, key: Hashable) -> None:
        if self._frozen:
            self.live[key] = REMOVED
        else:
            self.live.pop(key, None)

    def __contains__(self, key: Hashable) -> bool:
        for layer in (self.live, *reversed(self._frozen)):
            if key in layer:
                return layer[key] is not REMOVED
        return False

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(merged((*self._frozen, self.live)).items())

    def __len__(self) -> int:
        return len(self.live) if not self._frozen else len(merged((*self._frozen, self.live)))

    def picture(self) -> Picture:
        """The map as it is now. Takes no time, unless many older pictures are still held."""
        self.settle()
        if self.live or not self._frozen:
            self._frozen.append(self.live)
            self.live = {}
        if len(self._frozen) > MAX_FROZEN:
            self._frozen = [dict(merged(tuple(self._frozen)))]
        picture = Picture(tuple(self._frozen))
        self._pictures.append(weakref.ref(picture))
        return picture

    def settle(self) -> None:
        """Merges layers that no picture needs apart, a portion at a time. To be called between batches."""
        if not self._frozen or self._is_pictured():
            return
        bottom, left = self._frozen[0], MERGED_AT_ONCE
        while len(self._frozen) > 1:
            left = _move(self._frozen[1], bottom, left)
            if self._frozen[1]:
                return
            del self._frozen[1]
        _move(self.live, bottom, left)
        if not self.live:
            self.live, self._frozen = bottom, []

    def _is_pictured(self) -> bool:
        if self._pictures:
            self._pictures = [picture for picture in self._pictures if picture() is not None]
        return bool(self._pictures)


def merged(layers: tuple[dict[Hashable, Any], ...]) -> Mapping[Hashable, Any]:
    """One map of all entries, upper layers winning. A single layer is returned as it is."""
    bottom, *changes = layers
    if not changes:
        return bottom
    result = dict(bottom)
    for layer in changes:
        _apply(result, layer)
    return result


def _apply(base: dict[Hashable, Any], changes: dict[Hashable, Any]) -> None:
    base.update(changes)
    for key in [key for key, value in changes.items() if value is REMOVED]:
        del base[key]


def _move(changes: dict[Hashable, Any], base: dict[Hashable, Any], limit: int) -> int:
    """Moves at most so many entries of a layer to the one below; returns how many more there could have been."""
    moved = min(limit, len(changes))
    take = changes.popitem
    for _ in range(moved):
        key, value = take()
        if value is REMOVED:
            base.pop(key, None)
        else:
            base[key] = value
    return limit - moved
