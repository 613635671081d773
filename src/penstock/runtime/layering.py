"""Which layers the parts of a subtask consist of, checkpoint by checkpoint: what new ones may be built upon.

An operator that hands over the changes to a part, or nothing because there were none, says since which checkpoint. That
one is complete, so the layers that it named stay as long as it does; the new checkpoint names them again, then its own.
Checkpoints older than the newest complete one are never built upon again and are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from penstock.core.handles import PartHandle
from penstock.core.ids import CheckpointId, Uid
from penstock.state.parts import CapturedPart, UnchangedPart

_Part = tuple[Uid, str]


class Layers:
    def __init__(self) -> None:
        self._known: dict[CheckpointId, dict[_Part, tuple[PartHandle, ...]]] = {}

    def remember(self, checkpoint: CheckpointId, handles: Iterable[PartHandle]) -> None:
        """The checkpoint's parts, layer by layer."""
        parts: dict[_Part, tuple[PartHandle, ...]] = {}
        for handle in handles:
            place = (handle.uid, handle.name)
            parts[place] = (*parts.get(place, ()), handle.seen_from_later(checkpoint))
        self._known[checkpoint] = parts

    def forget_before(self, checkpoint: CheckpointId) -> None:
        for older in [known for known in self._known if known < checkpoint]:
            del self._known[older]

    def below(
        self,
        captured: Mapping[Uid, Sequence[CapturedPart]],
        unchanged: Mapping[Uid, Sequence[UnchangedPart]],
    ) -> tuple[dict[Uid, list[CapturedPart]], list[PartHandle]]:
        """The captured parts, each with its number among its layers; and all layers below them."""
        lower: list[PartHandle] = []
        numbered: dict[Uid, list[CapturedPart]] = {}
        for uid, parts in captured.items():
            for part in parts:
                layers = self._of(uid, part.name, part.base) if part.base is not None else ()
                lower += layers
                numbered.setdefault(uid, []).append(replace(part, layer=len(layers)) if layers else part)
        for uid, kept in unchanged.items():
            lower += [layer for part in kept for layer in self._of(uid, part.name, part.base)]
        return numbered, lower

    def _of(self, uid: Uid, name: str, base: CheckpointId) -> tuple[PartHandle, ...]:
        """None at all, where the part did not exist then."""
        return self._known[base].get((uid, name), ())
