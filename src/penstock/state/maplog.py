"""Keyed state in hash maps as a logged state: pictures of the maps, whole or of what changed, taken in no time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from penstock.core.handles import KeyGroupRange
from penstock.core.ids import Cut
from penstock.state.layers import REMOVED, LayeredMap, Picture
from penstock.state.parts import Encode, Piece

Encoder = Callable[[Sequence[Picture]], Encode]
"""What encodes a picture of every map; called on the task's thread, what it returns on any."""


class MapLog:
    """Implements `LoggedState` for the maps that one part holds."""

    def __init__(self, name: str, key_groups: KeyGroupRange, maps: Sequence[LayeredMap], encoder: Encoder) -> None:
        self.name, self.key_groups = name, key_groups
        self._maps, self._encoder = maps, encoder

    @property
    def size(self) -> int:
        return sum(layered.size for layered in self._maps)

    def mark(self, cut: Cut, floor: Cut) -> None:
        for layered in self._maps:
            layered.freeze(cut, floor)

    def changed_since(self, cut: Cut) -> int | None:
        counts = [layered.changed_since(cut) for layered in self._maps]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def changes(self, since: Cut) -> Encode:
        return self._encoder([layered.picture(since) for layered in self._maps])

    def whole(self, portable: bool) -> Sequence[Piece]:
        return [Piece(self._encoder([layered.picture() for layered in self._maps]))] if self.size else []


def of_pictures(encode: Callable[..., Any], *arguments: Any) -> Encoder:
    """An encoder that calls `encode(*arguments, pictures)`."""
    return lambda pictures: partial(encode, *arguments, pictures)


def present_and_gone(entries: Mapping[Any, Any]) -> tuple[Mapping[Any, Any], list[Any]]:
    """The entries of a picture of changes that are there, and the keys of those that are not."""
    gone = [key for key, value in entries.items() if value is REMOVED]
    if not gone:
        return entries, gone
    return {key: value for key, value in entries.items() if value is not REMOVED}, gone
