"""Makes the faults of a plan happen: kills, cuts, stalls, repeats, and errors of the disk.

Most faults happen between two actions of the schedule. Those of the disk happen inside production code: an operation
fails there, or the process that asked for it dies there (`Killed` unwinds it; no production code catches it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.core.barrier import Purpose
from penstock.simulation.driver import SimulatedDriver
from penstock.simulation.faults import SIMULATED, Action, Fault, FaultPlan, Point
from penstock.simulation.scenario import other_checkpoints
from penstock.simulation.scheduler import Actor
from penstock.simulation.worker import SimulatedWorker

if TYPE_CHECKING:
    from penstock.simulation.world import World


class Killed(BaseException):
    """The process that is acting dies here."""


class _Repeat(Actor):
    """Delivers a message once more."""

    def __init__(self, world: World, deliver: Callable[[], None]) -> None:
        self._world, self._deliver = world, deliver

    def act(self) -> None:
        self._world.scheduler.retire(self)
        self._deliver()


class Chaos:
    def __init__(self, world: World, faults: tuple[Fault, ...]) -> None:
        self._world = world
        self.plan = FaultPlan(faults)
        self._waiting: list[tuple[Fault, SimulatedWorker | SimulatedDriver | None]] = []
        self._dying: SimulatedWorker | SimulatedDriver | None = None

    def _reached(self, point: Point) -> list[Fault]:
        return self.plan.reach(point, len(self._world.witness.completed))

    # ---- points ----
    def reach(self, point: Point) -> None:
        """Between two actions, or where it makes no difference: faults wait for the end of the action."""
        for fault in self._reached(point):
            self._waiting.append((fault, self._world.subject))

    def reach_message(self, point: Point, again: Callable[[], None]) -> None:
        """`again` delivers the message once more."""
        for fault in self._reached(point):
            if fault.action is Action.REPEAT_MESSAGE:
                self._happens(fault)
                actor = _Repeat(self._world, again)
                delay = self._world.random.random() * self._world.scenario.haunting
                self._world.scheduler.at(self._world.scheduler.clock.now() + delay, actor)
            else:
                self._waiting.append((fault, self._world.subject))

    def reach_disk(self, point: Point) -> None:
        """Inside production code: raises where the plan says so."""
        for fault in self._reached(point):
            subject = self._world.subject
            if fault.action is Action.STORE_GHOST:
                self._world.files.haunt()
            if fault.action in (Action.STORE_ERROR, Action.STORE_SILENCE, Action.STORE_GHOST):
                self._happens(fault)
                raise OSError(5, f"{SIMULATED} {fault}")
            dies = (fault.action is Action.KILL_DRIVER and isinstance(subject, SimulatedDriver)) or (
                fault.action is Action.KILL_WORKER and isinstance(subject, SimulatedWorker)
            )
            if dies:
                self._happens(fault)
                self._dying = subject
                raise Killed(str(fault))
            self._waiting.append((fault, subject))

    # ---- happening ----
    def strike(self) -> None:
        """After every action: what was reached during it happens now."""
        if self.plan.awaits(Point.STEP):
            self.reach(Point.STEP)
        if self._dying is None and not self._waiting:
            return
        dying, self._dying = self._dying, None
        if isinstance(dying, SimulatedDriver):
            self._world.driver_dies(dying)
        elif dying is not None:
            self._kill_worker(dying)
        while self._waiting:
            fault, subject = self._waiting.pop(0)
            self._do(fault, subject)

    def _happens(self, fault: Fault) -> None:
        self.plan.happened[fault.action] += 1
        self._world.story.tell(f"FAULT {fault}")

    def _do(self, fault: Fault, subject: SimulatedWorker | SimulatedDriver | None) -> None:
        driver = self._world.driver
        if not driver.working:
            return
        worker = subject if isinstance(subject, SimulatedWorker) and subject.alive else self._pick_worker()
        match fault.action:
            case Action.KILL_DRIVER:
                self._happens(fault)
                self._world.driver_dies(driver)
            case Action.SECOND_DRIVER:
                self._happens(fault)
                self._world.second_driver()
            case Action.TRIGGER if self._world.scenario.checkpoints is not None:
                self._happens(fault)
                driver.on_master(lambda: driver.master.trigger(Purpose.CHECKPOINT))
            case Action.CONFIGURE if self._world.scenario.checkpoints is not None:
                self._happens(fault)
                settings = other_checkpoints(self._world.random, self._world.scenario)
                self._world.story.tell(str(settings))
                driver.on_master(lambda: driver.master.configure(settings))
            case Action.CANCEL:
                self._happens(fault)
                driver.on_master(driver.master.cancel)
            case Action.RESCALE if self._world.scenario.rescaling:
                self._happens(fault)
                self._world.rescale(driver)
            case Action.SAVEPOINT | Action.STOP:
                self._happens(fault)
                self._world.savepoint(driver, stop=fault.action is Action.STOP)
            case Action.USER_ERROR:
                self._happens(fault)
                self._world.witness.raise_in_process = True
            case Action.SNAPSHOT_ERROR:
                self._happens(fault)
                self._world.witness.raise_in_snapshot = True
            case Action.KILL_WORKER if worker is not None:
                self._happens(fault)
                self._kill_worker(worker)
            case Action.MUTE_WORKER if worker is not None:
                self._happens(fault)
                self._mute_worker(worker)
            case Action.STALL if worker is not None:
                self._happens(fault)
                self._stall(worker)

    def _pick_worker(self) -> SimulatedWorker | None:
        workers = [worker for worker in self._world.workers if worker.alive and worker.driver is self._world.driver]
        return self._world.random.choice(workers) if workers else None

    def kill_some_worker(self) -> None:
        worker = self._pick_worker()
        if worker is not None:
            self._kill_worker(worker)

    def _kill_worker(self, worker: SimulatedWorker) -> None:
        """Peers may notice before the master does: their data connections break."""
        run = worker.run
        worker.kill()
        for peer in self._world.workers:
            if run is not None and peer.run == run and self._world.random.random() < 0.3:
                peer.connection_broke(worker.id)

    def _mute_worker(self, worker: SimulatedWorker) -> None:
        """The master hears nothing any more and gives the worker up; the worker notices later."""
        connection = worker.connection
        connection.to_master.cut()
        worker.driver.lost(connection, "no heartbeat")
        connection.master_gone(0)
        connection.to_worker.stall(self._world.random.random() * self._world.scenario.haunting)

    def _stall(self, worker: SimulatedWorker) -> None:
        random, scenario = self._world.random, self._world.scenario
        seconds = scenario.tick * random.choice((30, 200, 2_000))
        kind = random.random()
        if kind < 0.2:
            worker.connection.to_master.stall(seconds)
        elif kind < 0.4:
            worker.connection.to_worker.stall(seconds)
        elif kind < 0.7 and worker.run is not None and (lines := self._world.network.of(worker.run).lines()):
            random.choice(lines).stall(seconds)
        elif worker.tasks:
            random.choice(list(worker.tasks.values())).stall(seconds)
