"""Whether a checkpoint writes a state as a whole or only what changed: the chain of layers that a restore will read.

A chain begins with a base, the whole state, and grows by one layer of changes with every checkpoint. It always ends at
a complete checkpoint: what an aborted one wrote counts for nothing, and the next one writes the changes since the
last complete one again. A chain that has become too long, or whose changes have become too many compared with the
state, is not continued: the next checkpoint begins a new one. That bounds what a restore reads and what the store
keeps, and it is the merging of layers too: capturing a whole state takes no more time than capturing its changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.barrier import Barrier
from penstock.core.ids import CheckpointId
from penstock.core.settings import LayerSettings


@dataclass(frozen=True, slots=True)
class _Length:
    """Of the chain as one checkpoint has it."""

    layers: int
    changes: int
    """Entries in the layers on top of the base."""


class Chain:
    """Of one state of one subtask."""

    def __init__(self, settings: LayerSettings) -> None:
        self._settings = settings
        self._lengths: dict[CheckpointId, _Length] = {}

    def restored(self, checkpoint: CheckpointId, layers: int, changes: int) -> None:
        """The state was restored from the layers of a checkpoint, which may be continued."""
        self._lengths[checkpoint] = _Length(layers, changes)

    def may_extend(self, barrier: Barrier) -> bool:
        """Whether changes since the barrier's base are of use at all."""
        return self._settings.incremental and barrier.base in self._lengths

    def grow(self, barrier: Barrier, changed: int | None, total: int) -> CheckpointId | None:
        """The checkpoint to which the layer of this one adds `changed` entries, or None: the state is to be written as
        a whole, of `total` entries. `changed` is None where the changes since the barrier's base are not known."""
        base = barrier.base
        if base is not None:
            self._lengths = {known: length for known, length in self._lengths.items() if known >= base}
        length = self._lengths.get(base) if base is not None and self.may_extend(barrier) else None
        grown = None if length is None or changed is None else self._grown(length, changed, total)
        self._lengths[barrier.checkpoint] = grown or _Length(1, 0)
        return base if grown else None

    def _grown(self, length: _Length, changed: int, total: int) -> _Length | None:
        if changed == 0:
            return length
        grown = _Length(length.layers + 1, length.changes + changed)
        settings = self._settings
        fits = grown.layers <= settings.most and grown.changes <= settings.share * total
        return grown if fits and total >= settings.small else None
