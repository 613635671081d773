"""Spark's Python daemon with Penstock loaded, so that the workers it forks start with everything in memory.

A worker's own imports and kernels take longer than everything else between the loss of a process and the first output
of its replacement. The embedded session runs this module in place of `pyspark.daemon`; other sessions can, by the
setting `spark.python.daemon.module=penstock.spark.daemon`. A fork loses all threads but one: what is loaded here starts
only such as are started again (of the allocators and of OpenBLAS) or are not missed (of Polars, for spilled files).
"""

from __future__ import annotations

import gc
import sys
import zipimport

from penstock.runtime.allocator import share_arena
from penstock.spark.without_pandas import without_pandas


def _load() -> None:
    import polars  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import penstock.runtime.worker
    import penstock.sinks
    import penstock.sources  # noqa: F401
    from penstock.operators.warmup import warm_up
    from penstock.runtime.clock import SystemClock

    warm_up(SystemClock())


def _forget_archives() -> None:
    """Python remembers where it looked for modules. Spark has every worker look anew, which for an archive is to read
    all of its directory: once for each package of PySpark that came from it, if they are remembered."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]


def run() -> None:
    # Before any library is loaded, PySpark's own included: workers would use the arenas that their threads have made.
    share_arena()
    with without_pandas():
        _load()
    from pyspark import daemon

    _forget_archives()
    # What is loaded stays: collections in the workers need not look at it, nor copy its pages.
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    run()
