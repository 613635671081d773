"""What the acknowledgements of a subtask name, told as what is new since the one before.

A part may consist of hundreds of layers, most of which the checkpoint before named as well. An acknowledgement
therefore says which runs of the handles of the last one it keeps, and then lists those that are new; both ends remember
the handles of the last one. It has a number, its *turn*: control connections lose nothing and keep the order, so turns
follow each other, and one that was heard before is a repetition, in which there is nothing new.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

from penstock.core.handles import PartHandle
from penstock.core.ids import Attempt, SubtaskId
from penstock.runtime.control.messages import Acknowledge

Runs = list[tuple[int, int]]


class Told:
    """At the subtask. Handles are known by what they are, not by what they say: a layer names itself by the same ones
    again and again."""

    def __init__(self) -> None:
        self._last: list[PartHandle] = []
        self._turn = 0

    def tell(self, handles: Sequence[PartHandle]) -> tuple[int, Runs, list[PartHandle]]:
        """The turn, what is kept of the last one, and what is new."""
        same = _common(self._last, handles)
        kept: Runs = [(0, same)] if same else []
        new: list[PartHandle] = []
        places = {id(handle): place for place, handle in enumerate(self._last[same:], same)}
        for handle in handles[same:]:
            place = places.get(id(handle), -1)
            if place < 0:
                new.append(handle)
            elif kept and kept[-1][1] == place:
                kept[-1] = (kept[-1][0], place + 1)
            else:
                kept.append((place, place + 1))
        self._last = named(self._last, kept, new)
        self._turn += 1
        return self._turn, kept, new


class Heard:
    """At the master: of all subtasks of an attempt."""

    def __init__(self, attempt: Attempt | None = None) -> None:
        self._attempt = attempt
        self._last: dict[SubtaskId, tuple[int, list[PartHandle]]] = {}

    def hear(self, message: Acknowledge) -> list[PartHandle] | None:
        """All handles that it names; None if there is nothing new in it: it repeats one, or is of another attempt."""
        if message.attempt != self._attempt:
            return None
        turn, last = self._last.get(message.subtask, (0, []))
        if message.turn <= turn:
            return None
        assert message.turn == turn + 1, f"acknowledgement {message.turn} of {message.subtask} came after {turn}"
        handles = named(last, message.kept, message.handles)
        self._last[message.subtask] = (message.turn, handles)
        return handles


def named(last: list[PartHandle], kept: Runs, new: list[PartHandle]) -> list[PartHandle]:
    handles: list[PartHandle] = []
    for start, end in kept:
        handles += last[start:end]
    return handles + new


def _common(one: Sequence[PartHandle], other: Sequence[PartHandle]) -> int:
    """How many handles both begin with."""
    return next((place for place, same in enumerate(map(is_, one, other)) if not same), min(len(one), len(other)))
