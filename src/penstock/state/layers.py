"""A hash map of which a consistent picture, whole or of what changed, can be taken in next to no time, however large.

Theory of operation. The map is a stack of dicts: one live layer on top, frozen ones below; a lookup goes down until it
finds the key, and a removal leaves a mark. A cut freezes the live layer, which holds the changes since the cut before,
and starts a new one. The frozen layer is kept for two purposes. Pictures of the changes since an earlier cut refer to
it, until no such picture will be taken any more; it never changes again. And lookups go through it, until its entries
are merged into the bottom layer, a portion at a time: so they mostly have two layers to look into.

A picture of the whole is the bottom and what is not merged into it yet. Of a bottom that is copied within a step's time
it holds a copy; a larger one is not merged into as long as somebody holds the picture (a weak reference tells).

Layers above the bottom may be merged at will: a picture of changes may hold more than what changed, because it holds
values, not steps.

Values that can change in place need one more rule. What a frozen layer holds belongs to the picture, and what was
looked at may have been changed: a lookup that finds such a value below puts it into the live layer, copied if a picture
may have it (`copy`). All other values belong to the map alone.

A picture may be read from another thread while the map goes on: it touches nothing that changes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

REMOVED: Final = object()
"""Stands in a layer for a key that the layers below may still have."""

MAX_FROZEN: Final = 4
"""Pictures held for long must not make lookups slow: more frozen layers than this are merged with each other."""

MERGED_AT_ONCE: Final = 20_000
"""How many entries are merged in one step; more than a batch usually changes, so that merging comes to an end."""

COPIED: Final = 1 << 20
"""Up to so many entries the bottom layer is copied for a picture, which takes some milliseconds."""

Layer = dict[Hashable, Any]


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
        return merged(self._layers) if self.since is None else _stacked(self._layers)

    def holds(self, layer: Layer) -> bool:
        return any(held is layer for held in self._layers)


class LayeredMap:
    """`live` is the top layer: callers on the hot path may read it first and write to it directly."""

    __slots__ = ("_changes", "_frozen", "_known_since", "_merging", "_pictures", "_removals", "copy", "live")

    def __init__(self, copy: Callable[[Any], Any] | None = None) -> None:
        self.copy = copy
        self.live: Layer = {}
        self._frozen: list[Layer] = []
        """What lookups go through, from the bottom up."""
        self._removals: list[bool] = [False]
        """Of each frozen layer and the live one: whether it marks keys as removed."""
        self._merging: Iterator[tuple[Hashable, Any]] | None = None
        """What is left to be merged of the layer above the bottom; None: all of it."""
        self._changes: list[tuple[int, Layer]] = []
        """By the cut up to which they go."""
        self._known_since = 0
        """The cut after which all changes are known."""
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

    def set(self, key: Hashable, value: Any) -> None:
        self.live[key] = value

    def remove(self, key: Hashable) -> None:
        if self._frozen:
            self.live[key] = REMOVED
            self._removals[-1] = True
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
        self._changes = [(known, layer) for known, layer in self._changes if known > floor]
        self._known_since = max(self._known_since, floor)
        self.settle()
        if not self._frozen:
            self._known_since = cut
        elif self.live:
            self._changes.append((cut, self.live))
        if self.live or not self._frozen:
            self._frozen.append(self.live)
            self._removals.append(False)
            self.live = {}
        if len(self._frozen) > MAX_FROZEN:
            self._frozen[1:] = [_stacked(tuple(self._frozen[1:]))]
            self._removals[1:-1] = [any(self._removals[1:-1])]
            self._merging = None

    @property
    def size(self) -> int:
        """How many entries there are at most, without looking."""
        return len(self.live) + sum(map(len, self._frozen))

    def changed_since(self, cut: int) -> int | None:
        """How many entries a picture of the changes would hold at most; None if they can no longer be told."""
        return None if cut < self._known_since else sum(len(layer) for known, layer in self._changes if known > cut)

    def picture(self, since: int | None = None) -> Picture:
        """The map as it was at the last cut, or what had changed in it since another one."""
        if since is not None:
            layers = [layer for known, layer in self._changes if known > since]
        else:
            layers = self._frozen.copy()
            if layers and len(layers[0]) <= COPIED:
                layers[0] = layers[0].copy()
        picture = Picture(tuple(layers), since)
        self._pictures.append(weakref.ref(picture))
        return picture

    def settle(self) -> None:
        """Merges frozen layers into the bottom one, a portion at a time. To be called between batches."""
        if self._pictures:
            self._pictures = [picture for picture in self._pictures if picture() is not None]
        left = MERGED_AT_ONCE
        while left > 0 and len(self._frozen) > 1 and not self._is_held(self._frozen[0]):
            left = self._merge(left)

    def _merge(self, most: int) -> int:
        """Returns how many more entries there could have been."""
        bottom, layer = self._frozen[:2]
        if self._merging is None:
            self._merging = iter(layer.items())
        portion = dict(islice(self._merging, most))
        bottom.update(portion)
        if self._removals[1]:
            for key in [key for key, value in portion.items() if value is REMOVED]:
                del bottom[key]
        if len(portion) < most:
            del self._frozen[1], self._removals[1]
            self._merging = None
        return most - len(portion)

    def _is_held(self, layer: Layer) -> bool:
        return any(picture.holds(layer) for held in self._pictures if (picture := held()) is not None)


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


def _stacked(layers: tuple[Layer, ...]) -> Layer:
    """The changes of all layers as one, removals kept."""
    if len(layers) == 1:
        return layers[0]
    result: Layer = {}
    for layer in layers:
        result.update(layer)
    return result
