"""A job of real tasks in one thread: only clock, transport, snapshot files and the coordinator are simple stand-ins.

Nothing moves by itself. `job.step(subtask)` steps one task, `job.deliver(channel)` moves one element,
`job.writers[subtask].finish_one()` finishes one write; `job.run()` does all of that until nothing is left to do. So a
test says exactly in which order things happen.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from penstock.core.barrier import Barrier, Mode, Purpose
from penstock.core.causes import Cause
from penstock.core.handles import PartHandle, PartKind, SnapshotFigures
from penstock.core.ids import Attempt, ChainId, ChannelId, CheckpointId, EdgeId, Generation, SubtaskId, Uid
from penstock.core.settings import InFlightSettings, RuntimeSettings
from penstock.graph.job import Chain, Edge, JobGraph, OperatorSpec, Partitioning
from penstock.operators.base import Collector, Operator, OperatorContext, Polled, SourceOperator
from penstock.runtime.elements import Element
from penstock.runtime.ports import Abort, Arrived, Complete, Granted, Trigger, WriteFailed, WriteId, Written
from penstock.runtime.task import RestoredSubtask, Task
from penstock.state.parts import CapturedPart, OperatorSnapshot, RestoredPart

SCHEMA = pa.schema([("source", pa.int64()), ("n", pa.int64())])
SETTINGS = RuntimeSettings(linger=0.0, small_batch_rows=1)


def rows(source: int, numbers: Sequence[int]) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array([source] * len(numbers), pa.int64()), pa.array(numbers, pa.int64())], schema=SCHEMA
    )


def pairs(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    return list(zip(batch["source"].to_pylist(), batch["n"].to_pylist(), strict=True))


class ManualClock:
    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def wall_ms(self) -> int:
        return int(self.time * 1000)

    def advance(self, seconds: float) -> None:
        self.time += seconds


class JsonState(Operator):
    """Keeps `self.state`, which JSON can hold."""

    kind = PartKind.LIST
    state: object

    def open(self, context: OperatorContext) -> None:
        self.context = context
        for part in context.restored:
            if part.subtask == context.subtask:
                self.state = json.loads(bytes(part.read()))

    def snapshot(self, barrier: Barrier) -> OperatorSnapshot:
        content = json.dumps(self.state).encode()
        return OperatorSnapshot([CapturedPart("state", self.kind, lambda: [content])])


class Numbers(JsonState, SourceOperator):
    """Counts up to `count`, a few rows with every poll; the time of row n is n."""

    kind = PartKind.UNION

    def __init__(self, count: int, batch: int = 3, watermarks: bool = True) -> None:
        self.count, self.batch, self.watermarks = count, batch, watermarks
        self.state: int = 0

    def poll(self, max_rows: int) -> Polled:
        start = self.state
        self.state = end = min(self.count, start + min(self.batch, max_rows))
        batch = rows(self.context.subtask, range(start, end)) if end > start else None
        return Polled(batch, watermark=end - 1 if self.watermarks and batch else None, done=end >= self.count)


class Pass(Operator):
    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        out.emit(batch)


class Seen(JsonState):
    """Remembers every row it has seen and passes it on."""

    def __init__(self) -> None:
        self.state: list[list[int]] = []
        self.watermarks: list[int] = []
        self.calls: list[str] = []

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        self.state += [list(pair) for pair in pairs(batch)]
        out.emit(batch)

    def on_watermark(self, time: int, out: Collector) -> None:
        self.watermarks.append(time)

    def finish(self, out: Collector) -> None:
        self.calls.append("finish")

    def on_complete(self, checkpoint: CheckpointId) -> None:
        self.calls.append(f"complete {checkpoint}")

    def on_abort(self, checkpoint: CheckpointId) -> None:
        self.calls.append(f"abort {checkpoint}")

    def close(self) -> None:
        self.calls.append("close")


class Network:
    """Channels in one process: FIFO, moved one element at a time."""

    def __init__(self) -> None:
        self.channels: dict[ChannelId, deque[Element]] = {}
        self.grants: dict[ChannelId, deque[int]] = {}
        self.limits: Counter[ChannelId] = Counter()
        self.sent_rows: Counter[ChannelId] = Counter()

    def send(self, channel: ChannelId, element: Element) -> None:
        if isinstance(element, pa.RecordBatch):
            assert element.num_rows > 0, "an empty batch was sent"
            self.sent_rows[channel] += element.num_rows
            assert self.sent_rows[channel] <= self.limits[channel], f"{channel}: rows beyond the grant"
        self.channels.setdefault(channel, deque()).append(element)

    def grant(self, channel: ChannelId, limit: int) -> None:
        self.grants.setdefault(channel, deque()).append(limit)

    def flush(self) -> None: ...


@dataclass
class Ack:
    handles: Sequence[PartHandle]
    committables: Mapping[Uid, Sequence[bytes]]
    figures: SnapshotFigures
    drained: bool


class Reports:
    def __init__(self) -> None:
        self.acks: dict[CheckpointId, Ack] = {}
        self.declines: list[tuple[CheckpointId, Cause, str]] = []
        self.events: list[str] = []
        self.error: BaseException | None = None
        self.committables: Mapping[Uid, Sequence[bytes]] = {}

    def acknowledge(
        self,
        checkpoint: CheckpointId,
        handles: Sequence[PartHandle],
        committables: Mapping[Uid, Sequence[bytes]],
        figures: SnapshotFigures,
        drained: bool,
    ) -> None:
        assert checkpoint not in self.acks, f"checkpoint {checkpoint} was acknowledged twice"
        self.acks[checkpoint] = Ack(handles, committables, figures, drained)

    def decline(self, checkpoint: CheckpointId, cause: Cause, reason: str) -> None:
        self.declines.append((checkpoint, cause, reason))

    def drained(self, committables: Mapping[Uid, Sequence[bytes]]) -> None:
        self.events.append("drained")
        self.committables = committables

    def finished(self) -> None:
        self.events.append("finished")

    def failed(self, error: BaseException) -> None:
        self.events.append("failed")
        self.error = error

    def cancelled(self) -> None:
        self.events.append("cancelled")


@dataclass
class Writer:
    """Keeps what it writes in memory; every write waits for `finish_one`."""

    put: Callable[[object], None]
    queue: deque[tuple[WriteId, Mapping[Uid, Sequence[CapturedPart]]]] = field(default_factory=deque)
    files: dict[str, bytes] = field(default_factory=dict)
    dropped: list[WriteId] = field(default_factory=list)
    fail: str | None = None

    def write(self, write: WriteId, parts: Mapping[Uid, Sequence[CapturedPart]], inline: bool = True) -> None:
        self.queue.append((write, parts))

    def skip(self, write: WriteId) -> None:
        """Nothing is shared here."""

    def drop(self, write: WriteId) -> None:
        self.dropped.append(write)
        self.queue = deque(entry for entry in self.queue if entry[0] != write)

    def finish_one(self) -> None:
        write, parts = self.queue.popleft()
        if self.fail is not None:
            self.put(WriteFailed(write, self.fail))
            return
        handles = []
        for uid, captured in parts.items():
            for part in captured:
                content = b"".join(bytes(buffer) for buffer in part.encode())
                path = f"{write.checkpoint}/{write.ticket}/{uid}/{part.name}"
                assert path not in self.files, f"{path} was written twice"
                self.files[path] = content
                handles.append(
                    PartHandle(
                        uid,
                        part.name,
                        part.kind,
                        path,
                        0,
                        len(content),
                        zlib.crc32(content),
                        part.key_groups,
                        part.channel,
                    )
                )
        self.put(Written(write, handles, 0.001))


Restores = Mapping[SubtaskId, RestoredSubtask]


class Job:
    def __init__(
        self,
        graph: JobGraph,
        *,
        settings: RuntimeSettings = SETTINGS,
        checkpointing: bool = True,
        restored: Restores | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.graph = graph
        self.clock = clock or ManualClock()
        self.network = Network()
        self.tasks: dict[SubtaskId, Task] = {}
        self.reports: dict[SubtaskId, Reports] = {}
        self.writers: dict[SubtaskId, Writer] = {}
        self.wakes: dict[SubtaskId, float | None] = {}
        for subtask in graph.subtasks():
            reports = self.reports[subtask] = Reports()
            writer = self.writers[subtask] = Writer(lambda note, s=subtask: self.tasks[s].put(note))
            self.tasks[subtask] = Task(
                graph=graph,
                subtask=subtask,
                transport=self.network,
                reports=reports,
                snapshots=writer,
                clock=self.clock,
                settings=settings,
                checkpointing=checkpointing,
                attempt=Attempt(1),
                generation=Generation(1),
                restored=(restored or {}).get(subtask),
            )
        for task in self.tasks.values():
            task.open()

    # ---- moves ----
    def step(self, subtask: SubtaskId) -> float | None:
        task = self.tasks[subtask]
        task.validate()
        wake = self.wakes[subtask] = task.step()
        task.validate()
        return wake

    def deliver(self, channel: ChannelId) -> None:
        element = self.network.channels[channel].popleft()
        self.tasks[self.graph.receiver(channel)].put(Arrived(channel, element))

    def deliver_grant(self, channel: ChannelId) -> None:
        limit = self.network.grants[channel].popleft()
        self.network.limits[channel] = max(limit, self.network.limits[channel])
        self.tasks[self.graph.sender(channel)].put(Granted(channel, limit))

    def moves(self) -> list[Callable[[], object]]:
        """Everything that can happen now without time passing."""
        moves: list[Callable[[], object]] = []
        for channel in sorted(c for c, queue in self.network.channels.items() if queue):
            moves.append(lambda c=channel: self.deliver(c))
        for channel in sorted(c for c, queue in self.network.grants.items() if queue):
            moves.append(lambda c=channel: self.deliver_grant(c))
        for writer in self.writers.values():
            if writer.queue:
                moves.append(lambda w=writer: w.finish_one())
        for subtask, task in self.tasks.items():
            wake = self.wakes.get(subtask, 0.0)
            due = wake is not None and wake <= self.clock.now()
            if not task.ended and (due or task._mailbox):
                moves.append(lambda s=subtask: self.step(s))
        return moves

    def run(self, most: int = 10_000) -> None:
        """Makes moves until there is none; time stands still."""
        for _ in range(most):
            moves = self.moves()
            if not moves:
                return
            for move in moves:
                move()
        raise AssertionError("the job does not come to rest")

    # ---- the coordinator ----
    def trigger(self, id: int, mode: Mode = Mode.ALIGNED, patience_ms: float = 100.0, chain: str = "source") -> None:
        barrier = Barrier(CheckpointId(id), mode, Purpose.CHECKPOINT, patience_ms if mode is Mode.ADAPTIVE else 0.0)
        for subtask, task in self.tasks.items():
            if subtask.chain == chain:
                task.put(Trigger(barrier))

    def abort(self, id: int) -> None:
        for task in self.tasks.values():
            task.put(Abort(CheckpointId(id), Cause.EXPIRED))

    def complete(self, id: int) -> None:
        for task in self.tasks.values():
            task.put(Complete(CheckpointId(id)))

    def acknowledged(self, id: int) -> set[SubtaskId]:
        return {s for s, r in self.reports.items() if CheckpointId(id) in r.acks}

    def fully_acknowledged(self, id: int) -> bool:
        return all(CheckpointId(id) in r.acks or "finished" in r.events for r in self.reports.values())

    def restore(self, id: int) -> dict[SubtaskId, RestoredSubtask]:
        """What every subtask starts from after checkpoint `id`; those that finished before it restore as finished."""
        checkpoint = CheckpointId(id)
        restored: dict[SubtaskId, RestoredSubtask] = {}
        for subtask, reports in self.reports.items():
            if checkpoint not in reports.acks:
                assert "finished" in reports.events, f"{subtask} did not acknowledge {id}"
                restored[subtask] = RestoredSubtask(checkpoint, finished=True)
                continue
            files = self.writers[subtask].files
            parts = [
                (
                    h.uid,
                    RestoredPart(
                        h.name, h.kind, subtask.index, lambda c=files[h.path]: memoryview(c), h.key_groups, h.channel
                    ),
                )
                for h in reports.acks[checkpoint].handles
            ]
            restored[subtask] = RestoredSubtask.of(checkpoint, parts)
        return restored

    # ---- looking inside ----
    def operators(self, chain: str) -> list[Operator]:
        return [self.operator(chain, i) for i in range(self.graph.chain(ChainId(chain)).parallelism)]

    def operator(self, chain: str, index: int = 0, place: int = 0) -> Operator:
        inner = self.tasks[SubtaskId(ChainId(chain), index)]._chain
        assert inner is not None
        return inner.operators[place]


def subtask(chain: str, index: int = 0) -> SubtaskId:
    return SubtaskId(ChainId(chain), index)


def channel(edge: int, source: int = 0, target: int = 0) -> ChannelId:
    return ChannelId(EdgeId(edge), source, target)


def chain(name: str, factories: Sequence[Callable[[], Operator]], parallelism: int = 1) -> Chain:
    uids = [name, *(f"{name}-{i}" for i in range(1, len(factories)))]
    specs = tuple(OperatorSpec(Uid(u), f"operator {u}", f, SCHEMA, True) for u, f in zip(uids, factories, strict=True))
    return Chain(ChainId(name), specs, parallelism)


def graph(chains: Sequence[Chain], edges: Sequence[tuple[str, str, Partitioning]]) -> JobGraph:
    return JobGraph(
        "test",
        tuple(chains),
        tuple(
            Edge(EdgeId(i), ChainId(s), ChainId(t), p, SCHEMA, ("n",) if p is Partitioning.HASH else ())
            for i, (s, t, p) in enumerate(edges)
        ),
    )


def in_flight(capacity: int, **changes: object) -> RuntimeSettings:
    """Settings with a fixed capacity for each subtask's input."""
    sizes = InFlightSettings(target=None, initial_rows=capacity, min_rows=1, max_rows=capacity)
    return replace(SETTINGS, in_flight=sizes, **changes)  # type: ignore[arg-type]
