"""User state in RocksDB that is several times as large as the memory it may use, in one subtask.

Two fresh processes, with the production operator, encoder and local files. The first fills the state, with checkpoints
as it goes, changes some of it and takes one more. The second restores the last one and compares every entry with what
it must be, which is computed from the key alone. The parent watches the resident memory of both.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.barrier import Purpose
from penstock.core.handles import KeyGroupRange, PartHandle
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.core.settings import LayerSettings, RocksDBSettings
from penstock.kernels.hashing import mix
from penstock.operators.base import Emitted, OperatorContext
from penstock.operators.keyed import KeyedContext, KeyedFunction
from penstock.operators.process import ProcessOperator
from penstock.runtime.clock import SystemClock
from penstock.runtime.ports import WriteId
from penstock.runtime.statelog import StateLog
from penstock.state import declare
from penstock.state.parts import CapturedPart, RestoredPart
from penstock.store.files import Files
from penstock.store.layout import checkpoint_directory
from penstock.store.local import LocalFiles
from penstock.store.parts import restored, write_parts

ALLOWANCE: Final = 512 << 20
"""What a process may use besides the limit: Python, Arrow, Numba, allocators."""
_UID: Final = Uid("latest")
_GROUPS: Final = KeyGroupRange(0, 128)
_INPUT: Final = pa.schema([("key", pa.int64()), ("value", pa.binary())])
_OUTPUT: Final = pa.schema([("key", pa.int64())])
_BATCH: Final = 8_192
_CHECKPOINTS: Final = 8
"""While the state is being filled."""
_WORDS: Final = 25
_VALUE_BYTES: Final = 8 * _WORDS
Say = Callable[[str], None]
Keys = npt.NDArray[np.int64]


class Latest(KeyedFunction):
    """Keeps the last value of every key."""

    value: Any = declare.value(bytes, default=b"")

    def process(self, row: Any, ctx: KeyedContext) -> None:
        self.value.value = row.value


@dataclass(frozen=True)
class Job:
    """What the processes are told."""

    directory: str
    memory: int
    keys: int
    changed: float


@dataclass(frozen=True)
class Filled:
    seconds: float
    sync_ms: list[float]
    """Of every checkpoint."""
    full_bytes: int
    """Of all that the last checkpoint but one consists of."""
    delta_bytes: int
    """Written by the checkpoint after the change."""
    handles: list[PartHandle]


@dataclass(frozen=True)
class Recovered:
    seconds: float
    entries: int
    wrong: int


@dataclass(frozen=True)
class Figures:
    memory_limit: int
    state_bytes: int
    """Of all keys and values, as they are."""
    keys: int
    fill_rows_per_s: float
    longest_sync_ms: float
    full_bytes: int
    changed_share: float
    delta_bytes: int
    delta_share_of_full: float
    recovery_s: float
    entries_wrong: int
    entries_recovered: int
    fill_peak_rss: int
    recovery_peak_rss: int
    rss_over_time: list[int]
    """Of the filling process, about once a second."""
    within_limit: bool
    exact: bool

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def values_of(keys: Keys, version: int) -> npt.NDArray[np.uint64]:
    """The value of each key, a row of words that no compression makes smaller."""
    places = keys[:, None] * _WORDS + np.arange(_WORDS)
    return mix(places.astype(np.uint64) + np.uint64(version << 60))


def changed_keys(job: Job) -> Keys:
    return np.random.default_rng(1).choice(job.keys, round(job.keys * job.changed), replace=False)


# ---- the first process ----
class _Writer:
    """Implements `SnapshotWriter`; what is to be written waits until it is called for."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._waiting: list[tuple[WriteId, Mapping[Uid, Sequence[CapturedPart]]]] = []

    def write(self, write: WriteId, parts: Mapping[Uid, Sequence[CapturedPart]], inline: bool = True) -> None:
        self._waiting.append((write, parts))

    def skip(self, write: WriteId) -> None:
        """Nobody shares a file."""

    def drop(self, write: WriteId) -> None:
        self._files.delete(_path(write))

    def finish(self, log: StateLog) -> int:
        """Writes everything; returns the bytes."""
        size = 0
        while self._waiting:
            write, parts = self._waiting.pop(0)
            handles = write_parts(self._files, _path(write), parts)
            log.written(write, handles, 0.0)
            size += sum(handle.length for handle in handles)
        return size


def _path(write: WriteId) -> str:
    return f"{checkpoint_directory(write.checkpoint)}/{write.ticket}.data"


class _Filling:
    def __init__(self, job: Job) -> None:
        self._writer = _Writer(LocalFiles(job.directory))
        self._log = StateLog(LayerSettings(), self._writer)
        self._operator = _opened(job)
        for state in self._operator.logged():
            self._log.add(_UID, state, (), CheckpointId(0))
        self._out, self._number = Emitted(), 0
        self.sync_ms: list[float] = []
        self.written: list[int] = []

    def feed(self, keys: Keys, version: int) -> None:
        for start in range(0, len(keys), _BATCH):
            some = keys[start : start + _BATCH]
            flat = pa.py_buffer(values_of(some, version).tobytes())
            offsets = pa.py_buffer(np.arange(0, (len(some) + 1) * _VALUE_BYTES, _VALUE_BYTES, dtype=np.int32))
            column = pa.Array.from_buffers(pa.binary(), len(some), [None, offsets, flat])
            batch = pa.RecordBatch.from_arrays([pa.array(some), column], schema=_INPUT)
            self._operator.process(batch, 0, self._out)

    def checkpoint(self) -> list[PartHandle]:
        """All parts of one more complete checkpoint."""
        self._number += 1
        checkpoint = CheckpointId(self._number)
        began = time.perf_counter()
        captured = self._log.capture(checkpoint, Purpose.CHECKPOINT, {})
        self.sync_ms.append((time.perf_counter() - began) * 1000.0)
        self.written.append(self._writer.finish(self._log))
        self._log.complete(checkpoint)
        return captured.handles()


def fill(job: Job) -> Filled:
    filling = _Filling(job)
    began = time.perf_counter()
    for part in np.array_split(np.arange(job.keys), _CHECKPOINTS):
        filling.feed(part, version=0)
        handles = filling.checkpoint()
    took = time.perf_counter() - began
    full = sum(handle.length for handle in handles)
    filling.feed(changed_keys(job), version=1)
    handles = filling.checkpoint()
    return Filled(took, filling.sync_ms, full, filling.written[-1], handles)


# ---- the second process ----
def recover(job: Job, handles: Sequence[PartHandle]) -> Recovered:
    files = LocalFiles(job.directory)
    directory = checkpoint_directory(CheckpointId(_CHECKPOINTS + 1))
    parts = [restored(files, directory, 0, handle)[1] for handle in handles]
    began = time.perf_counter()
    operator = _opened(job, parts)
    took = time.perf_counter() - began
    seen, wrong = np.zeros(job.keys, np.bool_), 0
    changed = np.zeros(job.keys, np.int64)
    changed[changed_keys(job)] = 1
    for keys, values in _entries(operator):
        old, new = values_of(keys, 0), values_of(keys, 1)
        expected = np.where(changed[keys][:, None] == 1, new, old)
        wrong += int((expected != values).any(axis=1).sum()) + int(seen[keys].sum())
        seen[keys] = True
    operator.close()
    return Recovered(took, int(seen.sum()), wrong)


def _entries(operator: ProcessOperator) -> Iterator[tuple[Keys, npt.NDArray[np.uint64]]]:
    entries = iter(operator.states[0].map.items())
    while run := [entry for _, entry in zip(range(_BATCH), entries, strict=False)]:
        values = np.frombuffer(b"".join(value for _, value in run), np.uint64).reshape(-1, _WORDS)
        yield np.array([key for key, _ in run], np.int64), values


def _opened(job: Job, parts: Sequence[RestoredPart] = ()) -> ProcessOperator:
    operator = ProcessOperator(Latest, ("key",), _OUTPUT, _INPUT)
    numbers = Attempt(1), Generation(1)
    clock, rocksdb = SystemClock(), RocksDBSettings(job.memory, job.directory)
    operator.open(
        OperatorContext(_UID, "latest", 0, 1, _GROUPS, _GROUPS.end, *numbers, clock, restored=parts, rocksdb=rocksdb)
    )
    return operator


# ---- the parent ----
def measure(memory: int, times: float, changed: float, *, say: Say | None = None) -> Figures:
    keys = round(memory * times / (_VALUE_BYTES + 8))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        job = Job(directory, memory, keys, changed)
        if say:
            say(f"filling {keys:,} keys, {keys * (_VALUE_BYTES + 8) / 1e6:,.0f} MB, in {memory / 1e6:,.0f} MB ...")
        filled, fill_rss = _run("fill", job, None, Filled)
        if say:
            say("recovering ...")
        recovered, recovery_rss = _run("recover", job, filled.handles, Recovered)
    peaks = max(fill_rss), max(recovery_rss)
    return Figures(
        memory_limit=memory,
        state_bytes=keys * (_VALUE_BYTES + 8),
        keys=keys,
        fill_rows_per_s=keys / filled.seconds,
        longest_sync_ms=max(filled.sync_ms),
        full_bytes=filled.full_bytes,
        changed_share=changed,
        delta_bytes=filled.delta_bytes,
        delta_share_of_full=filled.delta_bytes / filled.full_bytes,
        recovery_s=recovered.seconds,
        entries_wrong=recovered.wrong,
        entries_recovered=recovered.entries,
        fill_peak_rss=peaks[0],
        recovery_peak_rss=peaks[1],
        rss_over_time=fill_rss,
        within_limit=max(peaks) <= memory + ALLOWANCE,
        exact=recovered.wrong == 0 and recovered.entries == keys,
    )


def _run(what: str, job: Job, handles: Sequence[PartHandle] | None, answer: type[Any]) -> tuple[Any, list[int]]:
    """What a fresh process answers, and its resident memory about once a second; last its peak."""
    order = msgspec.json.encode({"what": what, "job": job, "handles": handles})
    answered = Path(job.directory, what)
    process = subprocess.Popen([sys.executable, "-m", __name__, str(answered)], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(order)
    process.stdin.close()
    series: list[int] = []
    while process.poll() is None:
        series.append(_memory(process.pid, "VmRSS"))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
    if process.returncode != 0:
        raise RuntimeError(f"the process that should {what} the state ended with exit code {process.returncode}")
    content = msgspec.json.decode(answered.read_bytes())
    return msgspec.convert(content["answer"], answer), [*filter(None, series), content["peak"]]


def _memory(pid: int | str, what: str) -> int:
    """Bytes; 0 of a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:")), 0)


def _child() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read())
    job = msgspec.convert(order["job"], Job)
    if order["what"] == "fill":
        answer: Any = fill(job)
    else:
        answer = recover(job, msgspec.convert(order["handles"], list[PartHandle]))
    content = msgspec.json.encode({"answer": answer, "peak": _memory("self", "VmHWM")})
    Path(sys.argv[1]).write_bytes(content)


def table(figures: Figures) -> str:
    limit, mb = figures.memory_limit, 1e6
    return "\n".join(
        [
            f"{figures.keys:,} keys, {figures.state_bytes / mb:,.0f} MB of state, {limit / mb:,.0f} MB of memory",
            f"filled at          {figures.fill_rows_per_s:,.0f} rows/s, sync at most {figures.longest_sync_ms:.1f} ms",
            f"peak memory        {figures.fill_peak_rss / mb:,.0f} MB filling, {figures.recovery_peak_rss / mb:,.0f} MB"
            f" recovering: {'within' if figures.within_limit else 'BEYOND'} the limit + {ALLOWANCE / mb:,.0f} MB",
            f"{figures.changed_share:.0%} of keys changed  {figures.delta_bytes / mb:,.1f} MB written"
            f" ({figures.delta_share_of_full:.1%} of {figures.full_bytes / mb:,.0f} MB)",
            f"recovered in       {figures.recovery_s:.2f} s: {figures.entries_recovered:,} entries,"
            f" {figures.entries_wrong} wrong",
        ]
    )


if __name__ == "__main__":
    _child()
