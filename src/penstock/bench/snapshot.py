"""Snapshots of a large columnar state: a running count and sum for each of many int64 keys, in one subtask.

Measured with the production operator, encoder and local files: the synchronous part of a whole snapshot and of one of
changes, the time to write a whole one compared with writing the same number of bytes to a file in one go, in whatever
way is the fastest here (and making both durable), what a checkpoint writes after some of the keys have changed, and
reading everything back.
"""

from __future__ import annotations

import math
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.handles import KeyGroupRange, PartHandle, PartKind
from penstock.core.ids import Attempt, Cut, Generation, Uid
from penstock.operators.aggregation import declare as aggregates
from penstock.operators.base import Emitted, OperatorContext
from penstock.operators.reduce import ReduceOperator
from penstock.runtime.allocation import keep_freed_memory
from penstock.runtime.allocator import share_arena
from penstock.runtime.clock import SystemClock
from penstock.state.parts import CapturedPart, RestoredPart
from penstock.store.local import LocalFiles
from penstock.store.parts import restored, write_parts

_UID = Uid("totals")
_GROUPS = 128
_SCHEMA = pa.schema([("key", pa.int64()), ("amount", pa.int64())])
_BATCH = 65_536
_SPREAD = 7_919
"""Between two keys: keys are seldom consecutive."""
_RAW_CHUNK = 4 << 20
Say = Callable[[str], None]


@dataclass(frozen=True)
class Figures:
    """Medians over the rounds."""

    keys: int
    full_bytes: int
    full_sync_ms: float
    full_write_s: float
    raw_write_s: float
    """Of as many bytes, in the same rounds."""
    share_of_raw_speed: float
    changed_share: float
    delta_sync_ms: float
    delta_write_s: float
    delta_bytes: int
    delta_share_of_full: float
    restore_s: float

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class _Bench:
    def __init__(self, keys: int, directory: str) -> None:
        self._keys, self._directory = keys, directory
        self._files = LocalFiles(directory)
        self._cut = Cut(0)
        self._random = np.random.default_rng(1)
        self._raw = mmap.mmap(-1, _RAW_CHUNK)  # begins with a page, as what goes past the cache must
        self._raw.write(self._random.bytes(_RAW_CHUNK))
        self._operator = _opened()
        self._touch(np.arange(keys))

    def change(self, count: int) -> None:
        self._touch(self._random.choice(self._keys, count, replace=False))

    def _touch(self, keys: npt.NDArray[np.int64]) -> None:
        out = Emitted()
        for start in range(0, len(keys), _BATCH):
            column = pa.array(keys[start : start + _BATCH] * _SPREAD)
            self._operator.process(pa.RecordBatch.from_arrays([column, column], schema=_SCHEMA), 0, out)
            out.batches.clear()

    def checkpoint(self, since: Cut | None = None) -> tuple[Cut, list[PartHandle], float, float]:
        """Its number, what it wrote, the seconds that capturing and writing took."""
        (state,) = self._operator.logged()
        cut = self._cut = Cut(self._cut + 1)
        began = time.perf_counter()
        state.mark(cut, cut if since is None else since)
        encode = state.whole(portable=False)[0].encode if since is None else state.changes(since)
        captured = time.perf_counter()
        part = CapturedPart(state.name, PartKind.KEYED, encode, state.key_groups)
        handles = write_parts(self._files, f"checkpoints/{cut}/data", {_UID: [part]})
        return cut, handles, captured - began, time.perf_counter() - captured

    def write_raw(self, size: int) -> float:
        """The seconds that a file of so many bytes takes, through the cache of files or past it: the faster way counts,
        and which one that is differs from machine to machine."""
        return min(self._write_raw(size, flags) for flags in (0, getattr(os, "O_DIRECT", 0)))

    def _write_raw(self, size: int, flags: int) -> float:
        path = os.path.join(self._directory, "raw")
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o666)
        except OSError:  # the file system knows no such way
            return math.inf
        try:
            began = time.perf_counter()
            with memoryview(self._raw) as chunk:
                for _ in range(0, size, _RAW_CHUNK):
                    os.write(file, chunk)
            os.ftruncate(file, size)
            os.fsync(file)
            return time.perf_counter() - began
        finally:
            os.close(file)
            os.unlink(path)

    def forget(self) -> None:
        """Deletes what was written, as retention does: both files of a round then find the same free memory."""
        for file in self._files.list("checkpoints"):
            self._files.delete(file.path)

    def restore(self, handles: Sequence[PartHandle]) -> float:
        began = time.perf_counter()
        _opened([restored(self._files, f"checkpoints/{self._cut}", 0, handle)[1] for handle in handles])
        return time.perf_counter() - began


def _opened(parts: Sequence[RestoredPart] = ()) -> ReduceOperator:
    operator = ReduceOperator(("key",), {"n": aggregates.count(), "total": aggregates.sum("amount")}, _SCHEMA)
    groups = KeyGroupRange(0, _GROUPS)
    operator.open(
        OperatorContext(
            _UID,
            "reduce",
            0,
            1,
            groups,
            _GROUPS,
            Attempt(1),
            Generation(1),
            SystemClock(),
            restored=parts,
        )
    )
    return operator


def measure(keys: int, changed: float, rounds: int, *, say: Say | None = None) -> Figures:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        share_arena()  # as every worker does
        keep_freed_memory()
        if say:
            say(f"filling {keys:,} keys ...")
        bench = _Bench(keys, directory)
        full: list[tuple[float, float, float]] = []
        delta: list[tuple[float, float]] = []
        full_bytes = delta_bytes = 0
        restores = []
        for number in range(rounds):
            if say:
                say(f"round {number + 1} of {rounds} ...")
            base, handles, captured, written = bench.checkpoint()
            full_bytes = sum(handle.length for handle in handles)
            full.append((captured, written, bench.write_raw(full_bytes)))
            restores.append(bench.restore(handles))
            bench.change(round(keys * changed))
            _, handles, captured, written = bench.checkpoint(base)
            delta_bytes = sum(handle.length for handle in handles)
            delta.append((captured, written))
            bench.forget()
    full_sync, full_write, raw = (statistics.median(column) for column in zip(*full, strict=True))
    delta_sync, delta_write = (statistics.median(column) for column in zip(*delta, strict=True))
    return Figures(
        keys=keys,
        full_bytes=full_bytes,
        full_sync_ms=full_sync * 1000.0,
        full_write_s=full_write,
        raw_write_s=raw,
        share_of_raw_speed=raw / full_write,
        changed_share=changed,
        delta_sync_ms=delta_sync * 1000.0,
        delta_write_s=delta_write,
        delta_bytes=delta_bytes,
        delta_share_of_full=delta_bytes / full_bytes,
        restore_s=statistics.median(restores),
    )


def table(figures: Figures) -> str:
    return "\n".join(
        [
            f"{figures.keys:,} keys, {figures.full_bytes / 1e6:.0f} MB",
            f"whole snapshot     sync {figures.full_sync_ms:6.1f} ms   written in {figures.full_write_s:.2f} s"
            f" (the same bytes raw: {figures.raw_write_s:.2f} s, {figures.share_of_raw_speed:.0%} of that speed)",
            f"{figures.changed_share:.0%} of keys changed  sync {figures.delta_sync_ms:6.1f} ms   written in"
            f" {figures.delta_write_s:.2f} s, {figures.delta_bytes / 1e6:.1f} MB"
            f" ({figures.delta_share_of_full:.1%} of the whole)",
            f"restore            {figures.restore_s:.2f} s",
        ]
    )
