"""A hash map of which a consistent picture, whole or of what changed, can be taken in no time, however large it is.

Theory of operation. The map is a stack of dicts: one live layer on top, frozen ones below; a lookup goes down until it
finds the key, and a removal leaves a mark. Taking a picture freezes the live layer and starts a new one: nothing is
copied, and what the picture refers to never changes again. A layer therefore holds the changes between two cuts, and
carries the number of the later one. The changes since a cut are the layers with higher numbers; everything up to the
earliest cut that pictures of changes may start from is merged into the bottom layer, a portion of the keys at a time,
as soon as nobody holds a picture of it (a weak reference tells).

Layers above the bottom may be merged at will: a picture of changes may hold more than what changed, because it holds
values, not steps.

Values that can change in place need one more rule. What a frozen layer holds belongs to the picture, and what was
looked at may have been changed: a lookup that finds such a value below puts it into the live layer, copied if a picture
may have it (`copy`). All other values belong to the map alone.

A picture may be read from another thread while the map goes on: it touches frozen layers only.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Final, Protocol

REMOVED: Final = object()
"""Stands in a layer for a key that the layers below may still have."""

MAX_FROZEN: Final = 4
"""Pictures held for long, or many cuts of which nothing is durable yet, must not make lookups slow: more frozen layers
than this are merged."""

MERGED_AT_ONCE: Final = 20_000
"""How many entries are merged in one step; more than a batch usually changes, so that merging comes to an end."""

Layer = dict[Hashable, Any]


class KeyedMap(Protocol):
    """Where a state keeps its entries. `live` holds the latest changes: callers on the hot path may read it first and
    write to it directly."""

    copy: Callable[[Any], Any] | None
    """Makes a value that shares nothing that can change; None where values cannot change."""
    live: Layer

    @property
    def is_plain(self) -> bool:
        """Whether `live` holds everything."""
        ...

    def get(self, key: Hashable, default: Any = None) -> Any: ...

    def from_below(self, key: Hashable, default: Any) -> Any:
        """The value of a key that the live layer does not have."""
        ...

    def peek(self, key: Hashable) -> Any:
        """The value, or None, of a key whose value the caller will not change."""
        ...

    def remove(self, key: Hashable) -> None: ...

    def __contains__(self, key: Hashable) -> bool: ...

    def __len__(self) -> int: ...

    def items(self) -> Iterator[tuple[Any, Any]]: ...


class Picture:
    """The map as it was, or what had changed. Readable until dropped; dropping it lets the map merge its layers."""

    __slots__ = ("__weakref__", "_layers", "since")

    def __init__(self, layers: tuple[Layer, ...], since: int | None) -> None:
        self._layers = layers
        self.since = since
        """The cut since which this holds the changes; None: it is the whole."""

    def items(self) -> Mapping[Any, Any]:
        """All entries, in a picture of changes with `REMOVED` for those that are gone. Do not change it: it may be a
        layer of the map itself."""
        return merged(self._layers) if self.since is None else stacked(self._layers)

    def holds(self, layer: Layer) -> bool:
        return any(held is layer for held in self._layers)


class LayeredMap:
    """`live` is the top layer: callers on the hot path may read it first and write to it directly."""

    __slots__ = ("_floor", "_frozen", "_marks", "_pictures", "copy", "live")

    def __init__(self, copy: Callable[[Any], Any] | None = None) -> None:
        self.copy = copy
        self.live: Layer = {}
        self._frozen: list[Layer] = []
        """From the bottom up."""
        self._marks: list[int] = []
        """Of each frozen layer: the cut up to which it goes."""
        self._floor = 0
        """No picture will start from a cut before this one."""
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
            if self.copy is not None:
                value = self.live[key] = self.copy(value) if self._pictures else value
            return value
        return default

    def peek(self, key: Hashable) -> Any:
        for layer in (self.live, *reversed(self._frozen)):
            if key in layer:
                value = layer[key]
                return None if value is REMOVED else value
        return None

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

    # ---- snapshots ----
    def freeze(self, cut: int, floor: int) -> None:
        """A cut is made here. No picture will be of the changes since a cut before `floor`."""
        self._floor = floor
        self.settle()
        if self.live or not self._frozen:
            self._frozen.append(self.live)
            self._marks.append(cut)
            self.live = {}
        if len(self._frozen) > MAX_FROZEN:
            self._frozen[1:] = [stacked(tuple(self._frozen[1:]))]
            self._marks[1:] = [self._marks[-1]]

    @property
    def size(self) -> int:
        """How many entries there are at most, without looking."""
        return len(self.live) + sum(map(len, self._frozen))

    def changed_since(self, cut: int) -> int | None:
        """How many entries a picture of the changes would hold at most; None if they can no longer be told."""
        if self._marks and self._marks[0] > cut:
            return None
        return sum(len(layer) for layer, mark in zip(self._frozen, self._marks, strict=True) if mark > cut)

    def picture(self, since: int | None = None) -> Picture:
        """The map as it was at the last cut, or what had changed in it since another one."""
        layers = [layer for layer, mark in zip(self._frozen, self._marks, strict=True) if since is None or mark > since]
        picture = Picture(tuple(layers), since)
        self._pictures.append(weakref.ref(picture))
        return picture

    def settle(self) -> None:
        """Merges what no picture will tell apart any more, a portion at a time. To be called between batches."""
        if self._pictures:
            self._pictures = [picture for picture in self._pictures if picture() is not None]
        left = MERGED_AT_ONCE
        while len(self._frozen) > 1 and self._marks[1] <= self._floor and not self._is_held(*self._frozen[:2]):
            self._marks[0] = self._marks[1]
            left = _move(self._frozen[1], self._frozen[0], left)
            if self._frozen[1]:
                return
            del self._frozen[1], self._marks[1]

    def _is_held(self, *layers: Layer) -> bool:
        pictures = [picture for reference in self._pictures if (picture := reference()) is not None]
        return any(picture.holds(layer) for picture in pictures for layer in layers)


def merged(layers: tuple[Layer, ...]) -> Mapping[Hashable, Any]:
    """One map of all entries, upper layers winning. A single layer is returned as it is."""
    bottom, *changes = layers
    if not changes:
        return bottom
    result = dict(bottom)
    for layer in changes:
        result.update(layer)
        for key in [key for key, value in layer.items() if value is REMOVED]:
            del result[key]
    return result


def stacked(layers: tuple[Layer, ...]) -> Layer:
    """The changes of all layers as one, removals kept."""
    if len(layers) == 1:
        return layers[0]
    result: Layer = {}
    for layer in layers:
        result.update(layer)
    return result


def _move(changes: Layer, base: Layer, limit: int) -> int:
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
