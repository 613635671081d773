"""Whether a subtask's outputs count for event time downstream: what it has told them, and when to tell them otherwise.

A subtask is idle when its operators say so: by default when its input is, but one that has its own event time may say
it earlier (no records for a while) or later (windows still on their way out). Rows end it: the receivers hear that
before the rows, so that event time does not pass them by.
"""

from __future__ import annotations

from penstock.runtime.chain import OperatorChain
from penstock.runtime.elements import Idle
from penstock.runtime.outputs import Outputs


class Idleness:
    def __init__(self, chain: OperatorChain, outputs: Outputs) -> None:
        self._chain, self._outputs = chain, outputs
        self._idle = False
        """As the receivers know it."""

    def rows_follow(self) -> None:
        self._tell(False)

    def settle(self, input_idle: bool) -> None:
        """After whatever the operators may have changed their minds about."""
        self._tell(self._chain.is_idle(input_idle))

    def _tell(self, idle: bool) -> None:
        if idle != self._idle:
            self._idle = idle
            self._outputs.control(Idle(active=not idle))
