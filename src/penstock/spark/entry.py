"""What runs in a Spark task: a worker, until the job is over."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.runtime.worker import WorkerConfig

Batches = Iterator[Any]


def worker_function(config: WorkerConfig, graph: bytes) -> Callable[[Batches], Batches]:
    """For `DataFrame.mapInArrow`. `graph` is pickled by Spark's own closure serialiser, and unpickled by the worker
    only when it has registered."""

    def host_worker(batches: Batches) -> Batches:
        from penstock.spark.entry import serve

        for _ in batches:
            serve(config, graph)
        yield from ()

    return host_worker


def serve(config: WorkerConfig, graph: bytes) -> None:
    """A worker that was dismissed (its heartbeats came too late, say) offers itself again as a new one: that is quicker
    than a new process. Where the master does not answer any more, the task fails: if there still is a driver, Spark
    starts the task again."""
    from penstock.runtime.allocator import share_arena
    from penstock.runtime.worker import End, run_worker

    share_arena()
    # Only what Spark's closure serialisation ships is unpickled: it comes with the code that runs here.
    while run_worker(config, lambda: pickle.loads(graph)) is not End.JOB_OVER:
        pass
