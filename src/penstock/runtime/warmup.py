"""What an idle worker loads ahead, so that it can take over within milliseconds.

The first batches of a process load libraries that take tenths of a second each. A worker that has just been given work
loads what it needs when it needs it; a spare has the time to do it before.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.graph.job import JobGraph, Partitioning
from penstock.operators.base import Clock


def warm_up(graph: JobGraph, clock: Clock) -> None:
    # The first array made from NumPy makes Arrow look for pandas, and load it.
    pa.array(np.empty(0))
    if any(edge.partitioning is Partitioning.HASH for edge in graph.edges):
        from penstock.operators import warmup  # Numba stands behind it

        warmup.warm_up(clock)
        if any(edge.target_input for edge in graph.edges):
            warmup.warm_up_joins(clock)
