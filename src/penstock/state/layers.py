"""A hash map of which a consistent picture, whole or of what changed, can be taken in next to no time, however large.

Theory of operation. One dict, `live`, holds all entries, so that a lookup looks once. What is written is written to a
second one as well, `changed`, which holds the changes since the last cut, with a mark for what was removed. A cut puts
that one aside and starts a new one: pictures of the changes since an earlier cut refer to those that were put aside,
which never change again.

A picture of the whole holds a copy of `live`, if that is made within a step's time. A larger one is frozen instead: it
becomes the bottom, an empty `live` lies on top of it, lookups look into both, and as soon as nobody holds the picture
any more (a weak reference tells), what was written meanwhile is moved down, a portion at a time.

Values that can change in place need one more rule. What was put aside or copied belongs to pictures, and what was
looked at may have been changed: a lookup of such a value counts as a change, and gives a copy if a picture may have the
value (`copy`). All values that are in `changed` belong to the map alone.

A picture may be read from another thread while the map goes on: it touches nothing that changes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

REMOVED: Final = object()
"""Stands among changes for a key that is gone, and on top of a bottom that still has it."""

MAX_ASIDE: Final = 4
"""Many cuts of which nothing is durable yet must not take more and more room: more changes than those of so many cuts
are merged with each other. A picture of changes may hold more than what changed, because it holds values, not steps."""

MOVED_AT_ONCE: Final = 20_000
"""How many entries are moved in one step; more than a batch usually changes, so that moving comes to an end."""

COPIED: Final = 1 << 20
"""Up to so many entries are copied for a picture, which takes some milliseconds."""

Layer = dict[Hashable, Any]


class KeyedMap(Protocol):
    """Where a state keeps its entries. Callers on the hot path may read `live` first, and write to it and to `changed`
    directly."""

    copy: Callable[[Any], Any] | None
    """Makes a value that shares nothing that can change; None where values cannot change."""
    live: Layer

    @property
    def changed(self) -> Layer:
        """Where changes are noted; `live` itself where that holds nothing else."""
        ...

    @property
    def is_plain(self) -> bool:
        """Whether `live` holds everything."""
        ...

    def get(self, key: Hashable, default: Any = None) -> Any: ...

    def own(self, key: Hashable, value: Any) -> Any:
        """A value that can change in place and was found in `live`, for the caller to change."""
        ...

    def from_below(self, key: Hashable, default: Any) -> Any:
        """The value of a key that `live` does not have."""
        ...

    def peek(self, key: Hashable) -> Any:
        """The value, or None, of a key whose value the caller will not change."""
        ...

    def set(self, key: Hashable, value: Any) -> None: ...

    def update(self, entries: Mapping[Any, Any]) -> None: ...

    def take_up(self, keys: Sequence[Hashable], values: Sequence[Any]) -> None:
        """Keeps entries that are restored."""
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
    """Callers on the hot path may read `live` first, and write to it and to `changed` directly."""

    __slots__ = ("_bottom", "_changes", "_known_since", "_pictures", "changed", "copy", "live")

    def __init__(self, copy: Callable[[Any], Any] | None = None) -> None:
        self.copy = copy
        self.live: Layer = {}
        self.changed: Layer = {}
        self._bottom: Layer | None = None
        """What a picture holds, if it holds no copy: it has the entries that `live` has not."""
        self._changes: list[tuple[int, Layer]] = []
        """By the cut up to which they go."""
        self._known_since: int | None = None
        """The cut after which all changes are known; None before the first one."""
        self._pictures: list[weakref.ref[Picture]] = []

    @property
    def is_plain(self) -> bool:
        """Whether `live` holds everything."""
        return self._bottom is None

    def get(self, key: Hashable, default: Any = None) -> Any:
        value = self.live.get(key, self)
        if value is self:
            return self.from_below(key, default)
        if value is REMOVED:
            return default
        return value if self.copy is None else self.own(key, value)

    def own(self, key: Hashable, value: Any) -> Any:
        """A value that can change in place and was found in `live`, for the caller to change."""
        if key not in self.changed:
            if self._pictures and self.copy is not None:
                value = self.live[key] = self.copy(value)
            self.changed[key] = value
        return value

    def from_below(self, key: Hashable, default: Any) -> Any:
        """The value of a key that `live` does not have."""
        value = default if self._bottom is None else self._bottom.get(key, default)
        if value is not default and self.copy is not None:
            value = self.live[key] = self.changed[key] = self.copy(value) if self._pictures else value
        return value

    def peek(self, key: Hashable) -> Any:
        value = self.live.get(key, self)
        if value is self:
            return None if self._bottom is None else self._bottom.get(key)
        return None if value is REMOVED else value

    def set(self, key: Hashable, value: Any) -> None:
        self.live[key] = self.changed[key] = value

    def update(self, entries: Mapping[Any, Any]) -> None:
        self.live.update(entries)
        self.changed.update(entries)

    def take_up(self, keys: Sequence[Hashable], values: Sequence[Any]) -> None:
        self.live.update(zip(keys, values, strict=True))

    def remove(self, key: Hashable) -> None:
        self.changed[key] = REMOVED
        if self._bottom is None:
            self.live.pop(key, None)
        else:
            self.live[key] = REMOVED

    def __contains__(self, key: Hashable) -> bool:
        if key in self.live:
            return self.live[key] is not REMOVED
        return self._bottom is not None and key in self._bottom

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(self._all().items())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> Mapping[Any, Any]:
        return self.live if self._bottom is None else merged((self._bottom, self.live))

    # ---- snapshots ----
    def freeze(self, cut: int, floor: int) -> None:
        """A cut is made here. No picture will be of the changes since a cut before `floor`."""
        self._changes = [(known, layer) for known, layer in self._changes if known > floor]
        if self._known_since is None:
            self._known_since = cut
        else:
            self._known_since = max(self._known_since, floor)
            if self.changed:
                self._changes.append((cut, self.changed))
        self.changed = {}
        if len(self._changes) > MAX_ASIDE:
            self._changes = [(self._changes[-1][0], stacked(tuple(layer for _, layer in self._changes)))]
        self.settle()

    @property
    def size(self) -> int:
        """How many entries there are at most, without looking."""
        return len(self.live) + (0 if self._bottom is None else len(self._bottom))

    def changed_since(self, cut: int) -> int | None:
        """How many entries a picture of the changes would hold at most; None if they can no longer be told."""
        if self._known_since is None or cut < self._known_since:
            return None
        return sum(len(layer) for known, layer in self._changes if known > cut)

    def picture(self, since: int | None = None) -> Picture:
        """The map as it is, right after a cut; or what had changed in it since another one."""
        picture = Picture(self._whole() if since is None else self._changed(since), since)
        self._pictures.append(weakref.ref(picture))
        return picture

    def _changed(self, since: int) -> tuple[Layer, ...]:
        return tuple(layer for known, layer in self._changes if known > since)

    def _whole(self) -> tuple[Layer, ...]:
        if self._bottom is not None:
            return (self._bottom, self.live.copy())
        if len(self.live) <= COPIED:
            return (self.live.copy(),)
        self._bottom, self.live = self.live, {}
        return (self._bottom,)

    def settle(self) -> None:
        """Moves down what lies on a bottom that no picture holds any more. To be called between batches."""
        if self._pictures:
            self._pictures = [picture for picture in self._pictures if picture() is not None]
        if self._bottom is not None and not self._is_held(self._bottom):
            _move(self.live, self._bottom, MOVED_AT_ONCE)
            if not self.live:
                self.live, self._bottom = self._bottom, None

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


def stacked(layers: tuple[Layer, ...]) -> Layer:
    """The changes of all layers as one, removals kept."""
    if len(layers) == 1:
        return layers[0]
    result: Layer = {}
    for layer in layers:
        result.update(layer)
    return result


def _move(upper: Layer, lower: Layer, most: int) -> None:
    """Moves at most so many entries to the layer below."""
    take = upper.popitem
    for _ in range(min(most, len(upper))):
        key, value = take()
        if value is REMOVED:
            lower.pop(key, None)
        else:
            lower[key] = value
