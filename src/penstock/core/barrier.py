"""What a barrier says, and the ways a checkpoint can treat the records in flight."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from penstock.core.ids import CheckpointId


class Mode(StrEnum):
    """How a checkpoint treats the records that are in flight when its barrier passes."""

    ALIGNED = "aligned"
    """Exactly-once: an input that delivered the barrier is held until all have."""
    AT_LEAST_ONCE = "at_least_once"
    """Waits for all barriers too, but holds nobody; several checkpoints may be under way."""
    UNALIGNED = "unaligned"
    """Exactly-once: the barrier overtakes the records, which become part of the checkpoint."""
    ADAPTIVE = "adaptive"
    """Starts aligned; a subtask whose alignment outlasts the barrier's patience goes on unaligned."""
    STOP_THE_WORLD = "stop_the_world"
    """Sources pause until the checkpoint is complete or aborted: the baseline that the others are measured against."""

    @property
    def exactly_once(self) -> bool:
        return self is not Mode.AT_LEAST_ONCE


class Purpose(StrEnum):
    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    FINAL = "final"
    """Taken when all input has ended, so that the last output is committed."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """Splits a stream in a before and an after. Travels in order with the records, unless it is `UNALIGNED`: then it
    overtakes them.

    `patience_ms` counts for `ADAPTIVE` only: how long alignment may still take, over the barrier's whole way. A
    subtask that forwards the barrier passes on what is left, so that the patience of several exchanges does not add up
    and no two machines' clocks are ever compared.
    """

    checkpoint: CheckpointId
    mode: Mode
    purpose: Purpose = Purpose.CHECKPOINT
    patience_ms: float = 0.0

    def overtaking(self) -> Barrier:
        return replace(self, mode=Mode.UNALIGNED, patience_ms=0.0)

    def with_patience(self, patience_ms: float) -> Barrier:
        return replace(self, patience_ms=max(0.0, patience_ms))
