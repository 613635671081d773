"""The workloads as a Bytewax dataflow. It is found by name, so what it is to be comes from the environment:
`BENCH_WORKLOAD`, `BENCH_KEYS`, `BENCH_VALUES`, `BENCH_WORKERS`, `BENCH_SECONDS`, and `BENCH_PROGRESS`, a directory.

Every source partition writes down how far it is at every epoch's end, which is a snapshot; sinks when they are closed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import windowing
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from common import SCATTER

WORKLOAD = os.environ["BENCH_WORKLOAD"]
KEYS = int(os.environ["BENCH_KEYS"])
VALUES = int(os.environ["BENCH_VALUES"])
WORKERS = int(os.environ["BENCH_WORKERS"])
SECONDS = float(os.environ["BENCH_SECONDS"])
PROGRESS = Path(os.environ["BENCH_PROGRESS"])
ROWS_PER_BATCH = 4_096
START = datetime(2024, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def note(file: str, **what: Any) -> None:
    with Path(PROGRESS, file).open("a") as out:
        out.write(json.dumps({"at": time.time(), **what}) + "\n")


class Partition(StatefulSourcePartition[Any, int]):
    """Every `WORKERS`th index."""

    def __init__(self, name: str, resumed: int | None) -> None:
        self._file = f"source-{name}"
        self._index = int(name) if resumed is None else resumed
        self._began: float | None = None

    def next_batch(self) -> Iterable[Any]:
        if self._began is None:
            self._began = time.time()
            note(self._file, index=self._index)
        if time.time() - self._began > SECONDS:
            note(self._file, index=self._index)
            raise StopIteration
        indices = range(self._index, self._index + ROWS_PER_BATCH * WORKERS, WORKERS)
        self._index = indices.stop
        # Bytewax takes text as keys, nothing else.
        if WORKLOAD == "w2":
            return [(str(i * SCATTER % KEYS), (i % VALUES, START + i // 100 * _MILLISECOND)) for i in indices]
        return [(str(i * SCATTER % KEYS), i % VALUES) for i in indices]

    def snapshot(self) -> int:
        note(self._file, index=self._index, snapshot=True)
        return self._index


class Events(FixedPartitionedSource[Any, int]):
    def list_parts(self) -> list[str]:
        return [str(number) for number in range(WORKERS)]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Partition:
        return Partition(for_part, resume_state)


class Nothing(StatelessSinkPartition[Any]):
    def __init__(self, worker: int) -> None:
        self._worker = worker

    def write_batch(self, items: list[Any]) -> None: ...

    def close(self) -> None:
        note(f"sink-{self._worker}")


class Discard(DynamicSink[Any]):
    def build(self, step_id: str, worker_index: int, worker_count: int) -> Nothing:
        return Nothing(worker_index)


class Totals(op.StatefulBatchLogic[int, Any, Any]):
    """w1, on the interface that costs least: all values of a key in a batch at once."""

    def __init__(self, kept: tuple[int, int] | None) -> None:
        self._count, self._sum = kept or (0, 0)

    def on_batch(self, values: list[int]) -> tuple[Iterable[Any], bool]:
        updates = []
        for value in values:
            self._count += 1
            self._sum += value
            updates.append((self._count, self._sum))
        return updates, op.StatefulBatchLogic.RETAIN

    def snapshot(self) -> tuple[int, int]:
        return self._count, self._sum


def falls(seen: tuple[int, int] | None, value: int) -> tuple[tuple[int, int], Iterable[int]]:
    """w3."""
    count, last = seen or (0, -1)
    return (count + 1, value), ((count + 1,) if value < last else ())


def work(events: Any) -> Any:
    if WORKLOAD == "w1":
        return op.stateful_batch("totals", events, Totals)
    if WORKLOAD == "w3":
        return op.stateful_flat_map("falls", events, falls)
    return windowing.fold_window(
        "windows",
        events,
        windowing.EventClock(ts_getter=lambda event: event[1], wait_for_system_duration=timedelta(0)),
        windowing.TumblingWindower(align_to=START, length=timedelta(seconds=10)),
        builder=lambda: (0, 0),
        folder=lambda kept, event: (kept[0] + 1, kept[1] + event[0]),
        merger=lambda one, other: (one[0] + other[0], one[1] + other[1]),
        ordered=False,
    ).down


flow = Dataflow("peer")
op.output("discard", work(op.input("events", flow, Events())), Discard())
