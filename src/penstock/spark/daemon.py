"""Spark's Python daemon with Penstock loaded, so that the workers it forks start with everything in memory.

A worker's own imports and kernels take longer than everything else between the loss of a process and the first output
of its replacement. The embedded session runs this module in place of `pyspark.daemon`; other sessions can, by the
setting `spark.python.daemon.module=penstock.spark.daemon`. A fork loses all threads but one: what is loaded here starts
only such as are started again (of the allocators and of OpenBLAS) or are not missed (of Polars, for spilled files).
"""

from __future__ import annotations

import gc

from pyspark import daemon

from penstock.runtime.allocator import share_arena
from penstock.spark.without_pandas import without_pandas


def _load() -> None:
    # Before any thread is started: the workers would use the arenas that those of the libraries have made.
    share_arena()
    import polars  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import penstock.runtime.worker
    import penstock.sinks
    import penstock.sources  # noqa: F401
    from penstock.operators.warmup import warm_up
    from penstock.runtime.clock import SystemClock

    warm_up(SystemClock())
    # What is loaded stays: collections in the workers need not look at it, nor copy its pages.
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    with without_pandas():
        _load()
    daemon.manager()
