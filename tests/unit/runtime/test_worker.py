"""A worker obeys its master, order by order: a scripted master on real connections, the worker in a thread."""

from __future__ import annotations

import queue
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest

import penstock as ps
from penstock.core.barrier import Barrier, Mode
from penstock.core.causes import Cause
from penstock.core.ids import Attempt, ChainId, CheckpointId, Generation, SubtaskId, WorkerId
from penstock.core.settings import RuntimeSettings
from penstock.graph.job import JobGraph
from penstock.runtime.control.messages import (
    Address,
    Assignment,
    Decline,
    Deploy,
    Drained,
    Figures,
    Finished,
    Idle,
    Ready,
    Register,
    Reset,
    Shutdown,
    Start,
    TaskFailed,
    ToMaster,
    TriggerCheckpoint,
)
from penstock.runtime.control.server import ControlServer
from penstock.runtime.worker import End, WorkerConfig, run_worker

SECRET = secrets.token_bytes(32)
SOURCE, SINK = ChainId("numbers"), ChainId("out")
NOBODY = WorkerId("nobody")
M = TypeVar("M", bound=ToMaster)


def graph(count: int | None, parallelism: int = 1) -> JobGraph:
    pipeline = ps.Pipeline("job", parallelism=parallelism)
    numbers = pipeline.source(ps.sources.Generator(count, {"n": lambda i: i}), uid="numbers")
    numbers.rebalance().sink(ps.sinks.Discard(), uid="out")
    return pipeline.graph()


class Scripted:
    """The master's side of one worker."""

    def __init__(self, load_graph: Callable[[], JobGraph], settings: RuntimeSettings):
        self._inbox: queue.SimpleQueue[ToMaster | str] = queue.SimpleQueue()
        self.server = ControlServer("127.0.0.1", SECRET, self, settings)
        self.server.start()
        config = WorkerConfig("127.0.0.1", self.server.port, SECRET, None, settings)
        self.ended: queue.SimpleQueue[End] = queue.SimpleQueue()
        self._thread = threading.Thread(target=lambda: self.ended.put(run_worker(config, load_graph)))
        self._thread.start()
        self.registration = self.next(Register)
        self.worker = self.registration.worker

    def registered(self, worker: WorkerId, message: Register) -> None:
        self._inbox.put(message)

    def received(self, worker: WorkerId, message: ToMaster) -> None:
        self._inbox.put(message)

    def lost(self, worker: WorkerId, reason: str) -> None:
        self._inbox.put(reason)

    def next(self, kind: type[M]) -> M:
        """The next message of that kind; others are passed over."""
        while True:
            message = self._inbox.get(timeout=20)
            if isinstance(message, kind):
                return message

    def say(self, message: Any) -> None:
        self.server.send(self.worker, message)

    def deploy(self, attempt: int, peers: dict[WorkerId, Address] | None = None) -> None:
        """This worker gets subtask 0 of both chains; with peers, somebody else has subtask 1."""
        locations = [(SubtaskId(chain, 0), self.worker) for chain in (SOURCE, SINK)]
        locations += [(SubtaskId(chain, 1), peer) for chain in (SOURCE, SINK) for peer in peers or ()]
        self.say(
            Deploy(
                Attempt(attempt),
                Generation(1),
                [Assignment(SubtaskId(chain, 0), None) for chain in (SOURCE, SINK)],
                {self.worker: self.registration.address, **(peers or {})},
                locations,
            )
        )

    def run(self, attempt: int) -> None:
        self.deploy(attempt)
        assert self.next(Ready).attempt == attempt
        self.say(Start(Attempt(attempt)))

    def close(self) -> None:
        self.say(Shutdown("the test is over"))
        self._thread.join(20)
        self.server.close()
        assert not self._thread.is_alive()


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []
    before = set(threading.enumerate())

    def make(load_graph: Callable[[], JobGraph] | None = None, **settings: float) -> Scripted:
        made.append(Scripted(load_graph or (lambda: graph(None)), RuntimeSettings(**settings)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert set(threading.enumerate()) <= before


def test_a_deployed_attempt_runs_when_it_is_told_to_start(scripted: Callable[..., Scripted]) -> None:
    master = scripted(lambda: graph(1000))
    master.deploy(1)
    assert master.next(Ready) == Ready(Attempt(1))
    master.say(Start(Attempt(1)))
    assert {master.next(Drained).subtask for _ in range(2)} == {SubtaskId(SOURCE, 0), SubtaskId(SINK, 0)}


def test_all_subtasks_of_bounded_input_finish(scripted: Callable[..., Scripted]) -> None:
    master = scripted(lambda: graph(1000))
    master.run(1)
    assert {master.next(Finished).subtask for _ in range(2)} == {SubtaskId(SOURCE, 0), SubtaskId(SINK, 0)}


def test_a_reset_in_place_makes_room_for_the_next_attempt(scripted: Callable[..., Scripted]) -> None:
    master = scripted()
    for attempt in (1, 2, 3):
        master.run(attempt)
        master.say(Reset(Attempt(attempt)))
        assert master.next(Idle) == Idle(Attempt(attempt))


def test_a_worker_without_work_is_idle_at_once(scripted: Callable[..., Scripted]) -> None:
    master = scripted()
    master.say(Reset(Attempt(4)))
    assert master.next(Idle) == Idle(Attempt(4))


def test_a_worker_that_is_getting_ready_can_be_reset(scripted: Callable[..., Scripted]) -> None:
    master = scripted(lambda: graph(None, parallelism=2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        peer = Address("127.0.0.1", silent.getsockname()[1], "", "")
        master.deploy(1, {NOBODY: peer})
        silent.accept()[0].close()
        master.say(Reset(Attempt(1)))
        assert master.next(Idle) == Idle(Attempt(1))


def test_orders_of_an_older_attempt_are_ignored(scripted: Callable[..., Scripted]) -> None:
    master = scripted()
    master.run(5)
    barrier = Barrier(CheckpointId(1), Mode.ALIGNED)
    master.say(TriggerCheckpoint(Attempt(4), [SubtaskId(SOURCE, 0)], barrier))
    master.say(Reset(Attempt(4)))
    assert master.next(Idle) == Idle(Attempt(4))
    master.say(Reset(Attempt(5)))
    assert master.next(Idle) == Idle(Attempt(5))


def test_a_trigger_for_a_subtask_that_has_ended_is_declined(scripted: Callable[..., Scripted]) -> None:
    master = scripted(lambda: graph(10))
    master.run(1)
    for _ in range(2):
        master.next(Finished)
    source = SubtaskId(SOURCE, 0)
    master.say(TriggerCheckpoint(Attempt(1), [source], Barrier(CheckpointId(7), Mode.ALIGNED)))
    declined = master.next(Decline)
    assert (declined.subtask, declined.checkpoint, declined.cause) == (source, 7, Cause.SUBTASK_FINISHED)


def test_a_peer_that_cannot_be_reached_is_reported(scripted: Callable[..., Scripted]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        peer = Address("127.0.0.1", gone.getsockname()[1], "", "")
    master = scripted(lambda: graph(None, parallelism=2))
    master.deploy(1, {NOBODY: peer})
    failed = master.next(TaskFailed)
    assert failed.attempt == 1
    assert "lost its data connection to worker nobody" in failed.error.message
    assert failed.error.retriable


def test_a_graph_that_cannot_be_loaded_fails_the_first_deployment_for_good(scripted: Callable[..., Scripted]) -> None:
    def broken() -> JobGraph:
        raise ModuleNotFoundError("No module named 'users_module'")

    master = scripted(broken)
    master.deploy(1)
    failed = master.next(TaskFailed)
    assert "No module named 'users_module'" in failed.error.message
    assert not failed.error.retriable


def test_figures_come_while_an_attempt_runs(scripted: Callable[..., Scripted]) -> None:
    master = scripted(heartbeat_every=0.01)
    master.run(1)
    figures = master.next(Figures)
    while not figures.rows_in:
        figures = master.next(Figures)
    assert set(figures.rows_in) == set(figures.rows_out) == set(figures.busy) == {"numbers[0]", "out[0]"}
    while not figures.rows_in["out[0]"]:
        figures = master.next(Figures)


def test_a_task_that_takes_its_time_to_open_is_not_asked_for_figures(scripted: Callable[..., Scripted]) -> None:
    opening, go_on = threading.Event(), threading.Event()

    def slow() -> JobGraph:
        built = graph(None)
        source, sink = built.chains

        def factory() -> Any:
            opening.set()
            assert go_on.wait(20)
            return source.operators[0].factory()

        slow_source = replace(source, operators=(replace(source.operators[0], factory=factory),))
        return replace(built, chains=(slow_source, sink))

    master = scripted(slow, heartbeat_every=0.01)
    master.deploy(1)
    assert opening.wait(20)
    assert [set(master.next(Figures).rows_in) <= {"out[0]"} for _ in range(5)] == [True] * 5
    go_on.set()
    assert master.next(Ready) == Ready(Attempt(1))


def test_a_worker_returns_when_the_job_is_over(scripted: Callable[..., Scripted]) -> None:
    master = scripted()
    master.run(1)
    master.say(Shutdown("done"))
    assert master.ended.get(timeout=20) is End.JOB_OVER


def test_a_worker_returns_when_its_master_is_gone(scripted: Callable[..., Scripted]) -> None:
    master = scripted()
    master.run(1)
    master.server.disconnect(master.worker)
    assert master.ended.get(timeout=20) is End.MASTER_LOST


def test_no_master_at_all_is_an_error_that_says_where_it_was_looked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    config = WorkerConfig("127.0.0.1", port, SECRET, None, RuntimeSettings())
    with pytest.raises(ConnectionError, match=f"127.0.0.1:{port}"):
        run_worker(config, lambda: graph(1))
