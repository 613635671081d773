"""Snapshots of layered maps, whole or of what changed: which of the two, and what was taken.

Used by everything that keeps keyed state in hash maps. What to write is decided by the state's `Chain`; the pictures
are taken here, on the task's thread, in no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.barrier import Barrier, Purpose
from penstock.core.ids import CheckpointId
from penstock.state.chain import Chain
from penstock.state.layers import REMOVED, LayeredMap, Picture


@dataclass(frozen=True, slots=True)
class Taken:
    pictures: Sequence[Picture]
    """One of each map; none at all if nothing has changed since `base`."""
    base: CheckpointId | None
    """The checkpoint to which the pictures are changes; None: they are the whole."""


def take(maps: Sequence[LayeredMap], chain: Chain, barrier: Barrier) -> Taken:
    """Of the maps that one part holds."""
    for layered in maps:
        layered.freeze(barrier.checkpoint, barrier.base, alone=barrier.purpose is Purpose.SAVEPOINT)
    counts = [None if barrier.base is None else layered.changed_since(barrier.base) for layered in maps]
    known = [count for count in counts if count is not None]
    changed = sum(known) if len(known) == len(counts) else None
    base = chain.grow(barrier, changed, sum(layered.size for layered in maps))
    if base is not None and changed == 0:
        return Taken((), base)
    return Taken([layered.picture(base) for layered in maps], base)


def present_and_gone(entries: Mapping[Any, Any]) -> tuple[Mapping[Any, Any], list[Any]]:
    """The entries of a picture of changes that are there, and the keys of those that are not."""
    gone = [key for key, value in entries.items() if value is REMOVED]
    if not gone:
        return entries, gone
    return {key: value for key, value in entries.items() if value is not REMOVED}, gone
