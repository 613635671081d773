"""A master with scripted workers: real deciders and a real store in memory; time, threads and network are played."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from penstock.connectors.base import SinkWriter
from penstock.core.barrier import Barrier
from penstock.core.causes import Cause
from penstock.core.handles import SnapshotFigures
from penstock.core.ids import Attempt, ChainId, CheckpointId, EdgeId, Generation, SubtaskId, Uid, WorkerId
from penstock.core.restarts import FixedDelay, RestartSettings
from penstock.core.settings import CheckpointSettings, RuntimeSettings
from penstock.graph.job import Chain, Edge, JobGraph, OperatorSpec, Partitioning
from penstock.operators.base import Operator
from penstock.runtime.control import messages as wire
from penstock.runtime.control.messages import ErrorReport, ToMaster, ToWorker
from penstock.runtime.master import Master
from penstock.runtime.outcome import JobOutcome
from penstock.simulation.files import MemoryFiles
from penstock.store.checkpoints import CheckpointStore

SCHEMA = pa.schema([("n", pa.int64())])
SINK = Uid("sink")
EVERY_SECOND = CheckpointSettings(every=1.0, tolerable_failures=0)
DEFAULTS = RuntimeSettings()
AT_ONCE = FixedDelay(attempts=5, delay=0.0)


class RecordingSink:
    """Remembers what its committer was asked to do; `fail` raises from the next calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.committed: dict[bytes, int] = {}
        self.fail: deque[Exception] = deque()
        self.closed = 0

    def writer(self) -> SinkWriter:
        return SinkWriter()

    def committer(self, uid: Uid, job: str) -> RecordingSink:
        return self

    def check(self, schema: pa.Schema) -> None: ...

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        self._called("commit", checkpoint, *committables)
        for committable in committables:
            self.committed.setdefault(committable, checkpoint)

    def recover(
        self,
        checkpoint: CheckpointId | None,
        committables: Sequence[bytes],
        generation: Generation,
        attempt: Attempt,
    ) -> None:
        self._called("recover", checkpoint, attempt, *committables)
        for committable in committables:
            self.committed.setdefault(committable, checkpoint or 0)

    def close(self) -> None:
        self.closed += 1

    def _called(self, *call: Any) -> None:
        self.calls.append(call)
        if self.fail:
            raise self.fail.popleft()


def two_by_two(sink: RecordingSink) -> JobGraph:
    """Two sources and two sinks, connected by a hash exchange."""
    source = OperatorSpec(Uid("source"), "source", Operator, SCHEMA, stateful=True)
    target = OperatorSpec(SINK, "sink", Operator, None, sink=sink)
    chains = (Chain(ChainId("source"), (source,), 2), Chain(ChainId("sink"), (target,), 2))
    edge = Edge(EdgeId(0), ChainId("source"), ChainId("sink"), Partitioning.HASH, SCHEMA, ("n",))
    return JobGraph("orders", chains, (edge,))


SOURCES = [SubtaskId(ChainId("source"), 0), SubtaskId(ChainId("source"), 1)]
SINKS = [SubtaskId(ChainId("sink"), 0), SubtaskId(ChainId("sink"), 1)]
ALL = [*SOURCES, *SINKS]


class ManualClock:
    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self.time * 1000)


class Harness:
    """Also the master's ports. Background work waits in `work` until `settle` (or a test) runs it."""

    def __init__(
        self,
        files: MemoryFiles | None = None,
        checkpoints: CheckpointSettings | None = EVERY_SECOND,
        runtime: RuntimeSettings = DEFAULTS,
        restarts: RestartSettings = AT_ONCE,
        sink: RecordingSink | None = None,
        restore_from: CheckpointId | None = None,
        job: str = "orders",
    ) -> None:
        self.clock = ManualClock()
        self.files = files if files is not None else MemoryFiles()
        self.sink = sink or RecordingSink()
        self.sent: list[tuple[WorkerId, ToWorker]] = []
        self.work: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self.needed: list[int] = []
        self.turns: dict[tuple[Attempt, SubtaskId], int] = {}
        self.disconnected: list[WorkerId] = []
        self.outcome: JobOutcome | None = None
        self.store = CheckpointStore(self.files, job) if checkpoints else None
        self.master = Master(
            two_by_two(self.sink), checkpoints, runtime, restarts, self.store, self, self.clock, restore_from
        )

    # ---- ports ----
    def send(self, worker: WorkerId, message: ToWorker) -> None:
        self.sent.append((worker, message))

    def background(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.work.append((work, then))

    def disconnect(self, worker: WorkerId, reason: str) -> None:
        self.disconnected.append(worker)

    def need_workers(self, count: int) -> None:
        self.needed.append(count)

    def ended(self, outcome: JobOutcome) -> None:
        assert self.outcome is None, "ended twice"
        self.outcome = outcome

    # ---- driving ----
    def run_one(self) -> None:
        work, then = self.work.popleft()
        try:
            result = work()
        except Exception as error:
            result = error
        then(result)
        self.master.validate()

    def settle(self) -> None:
        while self.work:
            self.run_one()

    def pass_time(self, seconds: float) -> None:
        """Lets time pass in steps of the master's own timers, running background work in between."""
        end = self.clock.time + seconds
        while True:
            self.settle()
            wake = self.master.tick()
            self.master.validate()
            if self.work:
                continue
            if wake is None or wake > end:
                break
            assert wake > self.clock.time or self.work, f"the master spins: {self.master.story()[-5:]}"
            self.clock.time = wake
        self.clock.time = end

    def register(self, *names: str) -> None:
        for name in names:
            address = wire.Address("localhost", 1, f"/sockets/{name}", "host")
            self.master.registered(WorkerId(name), wire.Register(WorkerId(name), 1, address, 1))

    def lose(self, name: str) -> None:
        self.master.lost(WorkerId(name), "killed")
        self.master.validate()

    def say(self, worker: str, message: ToMaster) -> None:
        self.master.received(WorkerId(worker), message)
        self.master.validate()

    def of(self, kind: type) -> list[Any]:
        """All messages of one kind that were sent."""
        return [message for _, message in self.sent if isinstance(message, kind)]

    def to(self, kind: type) -> list[str]:
        return [str(worker) for worker, message in self.sent if isinstance(message, kind)]

    # ---- stories that many tests share ----
    @property
    def attempt(self) -> Attempt:
        return self.master.status().attempt

    def deploy(self, *workers: str) -> Harness:
        self.master.start()
        self.settle()
        self.register(*workers)
        return self

    def start(self, *workers: str) -> Harness:
        """To a running attempt."""
        self.deploy(*(workers or ("a", "b")))
        return self.ready()

    def ready(self) -> Harness:
        for worker in self.master.status().workers:
            self.say(str(worker), wire.Ready(self.attempt))
        return self

    def idle(self, *workers: str) -> Harness:
        for worker in workers:
            self.say(worker, wire.Idle(Attempt(self.attempt - 1)))
        return self

    def barrier(self) -> Barrier:
        return self.of(wire.TriggerCheckpoint)[-1].barrier  # type: ignore[no-any-return]

    def acknowledge(self, subtask: SubtaskId, checkpoint: CheckpointId, drained: bool = False) -> None:
        committables = {SINK: [f"{checkpoint}:{subtask}".encode()]} if subtask in SINKS else {}
        worker = self.master.status().workers[subtask.index]
        self.turns[self.attempt, subtask] = turn = self.turns.get((self.attempt, subtask), 0) + 1
        message = wire.Acknowledge(
            self.attempt, subtask, checkpoint, [], committables, SnapshotFigures(state_bytes=10), drained, turn
        )
        self.say(str(worker), message)

    def trigger_next(self) -> CheckpointId:
        """Lets time pass until the next checkpoint is triggered."""
        before = len(self.of(wire.TriggerCheckpoint))
        self.pass_time(1.0)
        assert len(self.of(wire.TriggerCheckpoint)) > before, "no checkpoint was triggered"
        return self.barrier().checkpoint

    def acknowledge_all(self, checkpoint: CheckpointId, drained: bool = False) -> None:
        for subtask in ALL:
            self.acknowledge(subtask, checkpoint, drained)

    def checkpoint(self) -> CheckpointId:
        """One complete and committed checkpoint."""
        checkpoint = self.trigger_next()
        self.acknowledge_all(checkpoint)
        self.settle()
        assert self.master.status().newest_checkpoint == checkpoint
        return checkpoint

    def fail(self, subtask: SubtaskId = SOURCES[0], retriable: bool = True) -> ErrorReport:
        error = ErrorReport(
            "division by zero", "source", "map(ratio)", subtask.index, "{'n': 0}", "Traceback ...", retriable
        )
        self.say("a", wire.TaskFailed(self.attempt, subtask, error))
        return error

    def decline(self, subtask: SubtaskId, checkpoint: CheckpointId, cause: Cause) -> None:
        self.say("a", wire.Decline(self.attempt, subtask, checkpoint, cause, "because"))

    def drain_all(self) -> None:
        for subtask in ALL:
            self.say("a", wire.Drained(self.attempt, subtask, {}))

    def finish_all(self) -> None:
        for subtask in ALL:
            self.say("a", wire.Finished(self.attempt, subtask))
