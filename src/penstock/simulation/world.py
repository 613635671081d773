"""The simulated cluster: one seeded thread that runs drivers, workers, channels and disks of a whole job.

Only the clock, the scheduler, the transport, the file system and Spark are replaced; masters, tasks, operators, state,
store and sinks are the production classes. `World.run` lets one actor act after the other until the job has ended and
every process that outlived it is gone.
"""

from __future__ import annotations

from random import Random

from penstock.core.ids import CheckpointId, Uid, WorkerId
from penstock.core.orders import JobState
from penstock.core.restarts import FixedDelay
from penstock.graph.job import JobGraph
from penstock.runtime.master import Master
from penstock.runtime.opening import RestoreElsewhere
from penstock.runtime.outcome import RequestOutcome
from penstock.runtime.rescaling import RescaleOutcome
from penstock.runtime.savepoints import SavepointRequest
from penstock.simulation.build import JOB, KEY_GROUPS, build_job
from penstock.simulation.chaos import Chaos, Killed
from penstock.simulation.checks import check_cut, check_sinks
from penstock.simulation.disk import StoreDisk
from penstock.simulation.driver import SimulatedDriver
from penstock.simulation.faults import CRASHES, KIND, Point
from penstock.simulation.files import MemoryFiles
from penstock.simulation.ledger import Ledger
from penstock.simulation.scenario import Scenario
from penstock.simulation.scheduler import Actor, Scheduler, Stuck
from penstock.simulation.story import Story, Violation
from penstock.simulation.topology import Topology, resized
from penstock.simulation.transport import Network
from penstock.simulation.versions import VERSIONS
from penstock.simulation.witness import Witness
from penstock.simulation.worker import SimulatedWorker
from penstock.store.checkpoints import CheckpointStore
from penstock.store.savepoints import read_savepoint

MAX_STEPS = 20_000
"""A job that has not ended by then hangs: the longest runs need a small part of it."""

LONGER = 10
"""How many times as long a long job may take."""

MAX_DRIVERS = 100
"""A job whose user has to start it more often cannot be started any more: a plan has fewer faults."""

Process = SimulatedWorker | SimulatedDriver


class _Start(Actor):
    """A worker process that Spark is about to start."""

    def __init__(self, world: World, driver: SimulatedDriver) -> None:
        self._world, self.driver = world, driver

    def act(self) -> None:
        self._world.worker_starts(self)


class _End(Actor):
    """Of a driver that lived on after another had taken over."""

    def __init__(self, world: World, driver: SimulatedDriver) -> None:
        self._world, self._driver = world, driver

    def act(self) -> None:
        self._world.scheduler.retire(self)
        if self._driver.working:
            self._world.driver_dies(self._driver)


class _Acting:
    """A context manager that is entered at almost every step: as plain as can be."""

    __slots__ = ("_before", "_subject", "_world")

    def __init__(self, world: World, subject: Process) -> None:
        self._world, self._subject = world, subject

    def __enter__(self) -> None:
        self._before, self._world.subject = self._world.subject, self._subject

    def __exit__(self, *error: object) -> None:
        self._world.subject = self._before


class World:
    max_steps = MAX_STEPS

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.story = Story()
        self.random = Random(f"run {scenario.seed}")
        self.scheduler = Scheduler(self.random, self.story, scenario.tick)
        self.witness = Witness(exactly_once=scenario.exactly_once, in_time=scenario.exactly_once and not scenario.idle)
        self.chaos = Chaos(self, scenario.faults)
        self.ledger = Ledger(
            self.witness,
            self.chaos.reach_disk,
            self.check_commit,
            checkpointing=scenario.checkpoints is not None,
        )
        self.files = StoreDisk(self)
        self.sink_files = MemoryFiles(self._before_sink, now=self.scheduler.clock.now)
        self.subject: Process | None = None
        self.living = 0
        """Drivers that have not ended and workers that live."""
        self.drivers: list[SimulatedDriver] = []
        self.workers: list[SimulatedWorker] = []
        self._starting: list[_Start] = []
        self._last_worker = 0
        self.key_groups = KEY_GROUPS
        self.version = 0
        """Of the program's state."""
        self.rescaled = 0
        self.savepoints = 0
        self._stopped_with: MemoryFiles | None = None
        """The savepoint with which the last driver has ended its job."""
        self.drained = False
        """Whether the job was asked to stop reading."""
        self.network = Network(self.scheduler, self.chaos.reach, self.eagerness, encoded=scenario.encoded)
        self.start_driver()

    # ---- what its job is to put out ----
    def check_commit(self, uid: Uid, checkpoint: CheckpointId) -> None:
        """Right after a sink's commit of the newest checkpoint."""
        check_cut(self, uid, checkpoint)

    def check_output(self) -> None:
        """After the end. Raises `Violation`."""
        check_sinks(self)

    # ---- running ----
    def run(self) -> None:
        """Raises `Violation` at the first rule that is broken."""
        for line in self.scenario.describe():
            self.story.tell(line)
        limit = self.max_steps * (LONGER if self.scenario.long else 1)
        while self.living or self._begin_again():
            self._step()
            if self.witness.violation is not None:
                raise Violation(self.witness.violation)
            if self.scheduler.steps > limit:
                raise Violation(f"the job has not ended after {limit} steps")

    def _begin_again(self) -> bool:
        """No process lives any more. Unless a driver has finished the job, its user starts it again."""
        if any(driver.state is JobState.FINISHED for driver in self.drivers):
            return False
        if len(self.drivers) >= MAX_DRIVERS:
            raise Violation(f"{MAX_DRIVERS} drivers have not finished the job; the last one: {self.driver.outcome}")
        self.story.tell("no driver is left: the user starts the job again")
        self.start_driver()
        return True

    def _step(self) -> None:
        try:
            self.scheduler.step()
        except Killed:
            self.subject = None
        except Stuck as stuck:
            raise Violation(f"the job hangs: {stuck}") from stuck
        if self.scheduler.steps == self.scenario.drain_at:
            self.story.tell("the job is asked to drain")
            self.drained = True
            self.driver.on_master(self.driver.master.drain)
        self.chaos.strike()

    def acting(self, subject: Process) -> _Acting:
        """While `subject` runs production code: what the disk does to it, it does to this process."""
        return _Acting(self, subject)

    def eagerness(self) -> float:
        return 0.1 if self.random.random() < self.scenario.slow else 1.0

    def figures(self) -> dict[str, int]:
        happened = self.chaos.plan.happened
        kinds = {f"{KIND}{action}": count for action, count in happened.items()}
        return kinds | {
            "crashes": sum(happened[action] for action in CRASHES),
            "faults": happened.total(),
            "checkpoints": len(self.witness.completed),
            "unaligned": len(self.witness.overtaken & self.witness.completed.keys()),
            "failed_checkpoints": sum(driver.master.status().failed_checkpoints for driver in self.drivers),
            "restores": len(self.witness.restored),
            "rescaled": self.rescaled,
            "savepoints": self.savepoints,
            "evolved": int(self.version > 0),
        }

    # ---- drivers ----
    @property
    def driver(self) -> SimulatedDriver:
        return self.drivers[-1]

    def start_driver(self) -> None:
        scenario = self.scenario
        number = len(self.drivers) + 1
        origin = self._restore_from()
        graph = self._next_graph(number)
        driver = SimulatedDriver(self, number, graph)
        self.living += 1
        self.drivers.append(driver)
        keep = scenario.checkpoints.keep if scenario.checkpoints else 1
        # Some drivers put committables into files, others into the metadata, and each reads what others wrote.
        inline = None if (scenario.seed + number) % 2 else 0
        store = CheckpointStore(self.files, JOB, keep, inline) if scenario.checkpoints else None
        restarts = FixedDelay(attempts=1000, delay=scenario.tick * 10)
        clock = self.scheduler.clock
        driver.start(Master(graph, scenario.checkpoints, scenario.runtime, restarts, store, driver, clock, origin))

    def _next_graph(self, number: int) -> JobGraph:
        """What the next driver runs."""
        self.topology = self._next_topology()
        self.version = self._next_version()
        return build_job(
            self.scenario,
            self.topology,
            self.witness,
            self.ledger,
            self.sink_files,
            number,
            self.key_groups,
            self.version,
        )

    def _next_topology(self) -> Topology:
        """What the next driver runs: now and then the same job at another parallelism."""
        topology = self.scenario.topology
        if self.drivers and self.scenario.rescaling and self.random.random() < 0.7:
            topology = resized(topology, lambda node: self.random.choice((1, 1, 2, 2, 3, 4)))
            self.story.tell(f"at another parallelism: {topology.describe()}")
        return topology

    def _next_version(self) -> int:
        """What the next driver keeps its state in: now and then in other types than the last one."""
        if not self.drivers or not self.scenario.evolving or self.random.random() < 0.5:
            return self.version
        version = min(self.version + self.random.randint(1, 2), VERSIONS - 1)
        self.story.tell(f"its state is of version {version} now")
        return version

    def rescale(self, driver: SimulatedDriver) -> None:
        """The user of the running job wants another parallelism."""
        width = self.random.choice((1, 2, 3, 4))

        def then(outcome: RescaleOutcome) -> None:
            self.story.tell(f"driver {driver.number}: {outcome}")
            self.rescaled += not outcome.reason

        try:
            driver.on_master(lambda: driver.master.rescale(width, then))
        except ValueError as error:
            self.story.tell(f"driver {driver.number}: {error}")

    def savepoint(self, driver: SimulatedDriver, stop: bool) -> None:
        """The user takes a savepoint. What a job ends with is what its next start begins from."""
        target = MemoryFiles(now=self.scheduler.clock.now)

        def then(outcome: RequestOutcome) -> None:
            self.story.tell(f"driver {driver.number}: savepoint {outcome.checkpoint} {outcome.reason}")
            if outcome.checkpoint is not None:
                self.savepoints += 1
                read_savepoint(target, "savepoint")
                self._stopped_with = target if stop else None

        aligned = self.random.random() < 0.3
        driver.on_master(lambda: driver.master.savepoint(SavepointRequest(lambda: target, then, aligned, stop)))

    def _restore_from(self) -> RestoreElsewhere | None:
        """Only if nobody has worked on the job since: what it has committed cannot be taken back."""
        target, self._stopped_with = self._stopped_with, None
        if target is None or self.driver.state is not JobState.CANCELLED or self.random.random() < 0.3:
            return None
        self.story.tell("it begins from its savepoint")
        return RestoreElsewhere(lambda: read_savepoint(target, "savepoint"), claim=self.random.random() < 0.5)

    def driver_dies(self, driver: SimulatedDriver) -> None:
        """A new one takes the job over, if that was the newest."""
        driver.kill()
        if driver is self.driver:
            self.start_driver()

    def second_driver(self) -> None:
        """A new driver takes the job over. The old one knows nothing of it and goes on for a while."""
        end = self.scheduler.clock.now() + self.random.random() * self.scenario.haunting
        self.scheduler.at(end, _End(self, self.driver))
        self.start_driver()

    def driver_ended(self, driver: SimulatedDriver) -> None:
        self.living -= 1
        for start in [start for start in self._starting if start.driver is driver]:
            self._forget(start)

    # ---- workers ----
    def staff(self, driver: SimulatedDriver) -> None:
        """Spark starts as many workers as the driver wants, each after a while."""
        live = sum(worker.alive and worker.id in driver.connections for worker in self.workers)
        starting = sum(start.driver is driver for start in self._starting)
        if driver.working:
            for _ in range(driver.wanted - live - starting):
                start = _Start(self, driver)
                self._starting.append(start)
                delay = self.random.random() * 20 * self.scenario.tick
                self.scheduler.at(self.scheduler.clock.now() + delay, start)

    def worker_starts(self, start: _Start) -> None:
        self._forget(start)
        if start.driver.working:
            self._last_worker += 1
            self.living += 1
            worker = SimulatedWorker(self, start.driver, WorkerId(f"w{self._last_worker}"))
            self.workers.append(worker)
            start.driver.connections[worker.id] = worker.connection

    def _forget(self, start: _Start) -> None:
        self._starting.remove(start)
        self.scheduler.retire(start)

    # ---- the sinks' disk ----
    def _before_sink(self, operation: str, path: str) -> None:
        if operation not in ("read", "list", "names", "exists"):
            self.chaos.reach_disk(Point.SINK)
