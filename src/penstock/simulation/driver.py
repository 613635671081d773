"""A driver process without the process: a production `Master` behind ports that the schedule serves.

Background work takes two actions: one in which it happens (store, commits), and a later one in which the master hears
of it. A driver that is killed in the middle of its background work stops between two file operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.core.ids import WorkerId
from penstock.core.orders import JobState
from penstock.graph.job import JobGraph
from penstock.runtime.control.messages import Acknowledge, Register, ToMaster, ToWorker
from penstock.simulation.connection import Connection, short
from penstock.simulation.faults import SIMULATED, Point
from penstock.simulation.scheduler import Actor

if TYPE_CHECKING:
    from penstock.runtime.master import Master
    from penstock.runtime.outcome import JobOutcome
    from penstock.simulation.world import World

T = TypeVar("T")


class _Background(Actor):
    def __init__(self, driver: SimulatedDriver, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._driver, self._work, self._then = driver, work, then
        self._done = False
        self._result: Any = None
        self.eagerness = driver.world.eagerness()

    def act(self) -> None:
        if self._done:
            self._driver.finished(self)
            self._driver.on_master(lambda: self._then(self._result))
            return
        with self._driver.world.acting(self._driver):
            try:
                self._result = self._work()
            except Exception as error:
                self._driver.world.story.tell(f"driver {self._driver.number}: {error!r}")
                self._result = error
        self._done = True


class SimulatedDriver(Actor):
    """As an actor it is the master's timer."""

    def __init__(self, world: World, number: int, graph: JobGraph) -> None:
        self.world, self.number, self.graph = world, number, graph
        self.alive = True
        self.outcome: JobOutcome | None = None
        self.wanted = 0
        self.connections: dict[WorkerId, Connection] = {}
        self._known: set[WorkerId] = set()
        self._scaled: dict[int, JobGraph] = {}
        self._background: list[_Background] = []
        self._master: Master | None = None

    def start(self, master: Master) -> None:
        self._master = master
        self.on_master(master.start)

    def graph_at(self, parallelism: int | None) -> JobGraph:
        """As its workers build it."""
        if parallelism is None:
            return self.graph
        if parallelism not in self._scaled:
            assert self.graph.scaled is not None
            self._scaled[parallelism] = self.graph.scaled(parallelism)
        return self._scaled[parallelism]

    @property
    def master(self) -> Master:
        assert self._master is not None
        return self._master

    @property
    def working(self) -> bool:
        return self.alive and self.outcome is None

    @property
    def state(self) -> JobState | None:
        """How the job ended for this driver; None if it did not see an end."""
        return self.outcome.state if self.outcome is not None else None

    # ---- implements `runtime.master.MasterPorts` ----
    def send(self, worker: WorkerId, message: ToWorker) -> None:
        connection = self.connections.get(worker)
        if connection is not None:
            connection.tell_worker(message)

    def background(self, work: Callable[[], T], then: Callable[[T | BaseException], None]) -> None:
        actor = _Background(self, work, then)
        self._background.append(actor)
        self.world.scheduler.wake(actor)

    def disconnect(self, worker: WorkerId, reason: str) -> None:
        self.world.story.tell(f"driver {self.number} cuts {worker} off: {reason}")
        connection = self.connections.pop(worker, None)
        if connection is not None:
            connection.master_gone(len(connection.to_worker))

    def need_workers(self, count: int) -> None:
        self.wanted = count
        self.world.staff(self)

    def ended(self, outcome: JobOutcome) -> None:
        self.world.story.tell(f"driver {self.number} ended: {outcome}")
        self.outcome = outcome
        owner = self.number == self.world.witness.owner
        if owner and outcome.state is JobState.FAILED and SIMULATED not in outcome.reason:
            self.world.witness.object(f"driver {self.number} failed: {outcome.reason}")
        for connection in self.connections.values():
            connection.master_gone(len(connection.to_worker))
        self.connections.clear()
        self.world.driver_ended(self)

    # ---- what reaches it ----
    def received(self, connection: Connection, message: ToMaster) -> None:
        worker = connection.worker
        if not self.alive or self.connections.get(worker) is not connection:
            return
        self.world.story.tell(f"driver {self.number} < {worker} {short(message)}")
        self.world.chaos.reach_message(Point.TO_MASTER, lambda: connection.repeat_to_master(message))
        if isinstance(message, Acknowledge):
            if message.figures.unaligned:
                self.world.witness.overtaken.add(message.checkpoint)
            self.world.chaos.reach_message(Point.ACK_DELIVERED, lambda: connection.repeat_to_master(message))
        if isinstance(message, Register):
            if worker not in self._known:
                self._known.add(worker)
                self.on_master(lambda: self.master.registered(worker, message))
        elif worker in self._known:
            self.on_master(lambda: self.master.received(worker, message))

    def lost(self, connection: Connection, reason: str) -> None:
        """The connection to a worker broke, or it has not been heard of for too long."""
        worker = connection.worker
        if self.alive and self.connections.get(worker) is connection:
            del self.connections[worker]
            self.world.story.tell(f"driver {self.number} lost {worker}: {reason}")
            if worker in self._known:
                self.on_master(lambda: self.master.lost(worker, reason))
            self.world.staff(self)

    def act(self) -> None:
        self.world.scheduler.rest(self)
        self.on_master(lambda: None)

    def on_master(self, call: Callable[[], None]) -> None:
        """On the master's thread; its timers are looked at afterwards, as its thread would."""
        if not self.working:
            return
        with self.world.acting(self):
            call()
            wake = self.master.tick() if self.outcome is None else None
            self.master.validate()
        if wake is not None and wake <= self.world.scheduler.clock.now():
            self.world.scheduler.wake(self)
        else:
            self.world.scheduler.at(wake, self)

    # ---- its end ----
    def finished(self, background: _Background) -> None:
        self._background.remove(background)
        self.world.scheduler.retire(background)

    def kill(self) -> None:
        """Its workers learn of it later, each at its own time."""
        if not self.working:
            return
        self.alive = False
        self.world.driver_ended(self)
        self.world.scheduler.retire(self)
        for background in list(self._background):
            self.finished(background)
        for connection in self.connections.values():
            connection.master_gone(self.world.random.randint(0, len(connection.to_worker)))
            connection.to_worker.stall(self.world.random.random() * self.world.scenario.haunting)
        self.connections.clear()
