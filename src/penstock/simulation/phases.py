"""A job in three lives at different sizes, as a user rescales it.

    A   runs at the old size until it has some checkpoints, and ends with one
    B   begins from that at the new size, and ends with the next one, taken at once: it still replays what was in flight
    C   begins from that at the old or the new size, loses a worker once, and finishes

Every life ends with a checkpoint and a cancelled job, or is stopped with a savepoint that the next one begins from. As
in every simulated job, the committed output must be exactly what the topology says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from penstock.core.barrier import Mode, Purpose
from penstock.core.orders import JobState
from penstock.core.settings import CheckpointSettings
from penstock.runtime.opening import RestoreElsewhere
from penstock.runtime.outcome import RequestOutcome
from penstock.simulation.checks import check
from penstock.simulation.files import MemoryFiles
from penstock.simulation.scenario import Scenario, random_scenario
from penstock.simulation.topology import Kind, Node, Topology, dealt, resized, without_copies
from penstock.simulation.world import MAX_STEPS, World
from penstock.store.rehash import rehash
from penstock.store.savepoints import read_savepoint

PAIRS = ((1, 2), (2, 3), (3, 7), (7, 2), (4, 1))
MORE_KEY_GROUPS = 64
KINDS = ("aligned", "unaligned", "adaptive", "savepoint", "unaligned savepoint")
"""Of snapshot."""


@dataclass(frozen=True)
class Lives:
    kind: str
    old: int
    new: int
    seed: int
    rehashed: bool = False
    """The savepoint of the first life is divided into more key groups, offline."""

    @property
    def savepoints(self) -> bool:
        return self.kind.endswith("savepoint")

    def scenario(self) -> Scenario:
        """A random job with more to read, in the mode that is asked for, and no faults but those of the lives."""
        base = random_scenario(self.seed)
        mode = Mode(self.kind.removesuffix("savepoint").strip() or "aligned")
        random = Random(f"lives {self.seed}")
        settings = CheckpointSettings(
            mode=mode,
            every=base.tick * 60,
            alignment_timeout=base.tick * random.choice((0, 10, 50)),
            timeout=base.tick * 100_000,
            tolerable_failures=1000,
        )
        return replace(
            base,
            topology=without_copies(_longer(base.topology, 3)),
            checkpoints=settings,
            faults=(),
            drain_at=None,
            rescaling=True,
        )


def _longer(topology: Topology, times: int) -> Topology:
    def rows(node: Node) -> tuple[int, ...]:
        if node.kind is Kind.GENERATOR:
            return dealt(sum(node.rows) * times, len(node.rows))
        return tuple(count * times for count in node.rows)

    nodes = (replace(node, rows=rows(node)) for node in topology.nodes)
    return replace(topology, nodes=tuple(nodes))


class RescaledWorld(World):
    """`life` is 0, 1 or 2."""

    max_steps = 5 * MAX_STEPS

    def __init__(self, lives: Lives) -> None:
        self.life = 0
        self._asked = self._killed = False
        self._lives = lives
        third = Random(f"third {lives.seed}").choice((lives.old, lives.new))
        self._sizes = (lives.old, lives.new, third)
        super().__init__(lives.scenario())

    def _next_topology(self) -> Topology:
        size = self._sizes[self.life]
        topology = resized(self.scenario.topology, lambda: size)
        self.story.tell(f"life {self.life}: {topology.describe()}")
        return topology

    def _step(self) -> None:
        super()._step()
        driver = self.driver
        if not driver.working or driver.master.lifecycle.state is not JobState.RUNNING:
            return
        if self.life < 2 and not self._asked and (self.life == 1 or len(self.witness.completed) >= 2):
            self._asked = True
            self._end_life()
        elif self.life == 2 and not self._killed and self.random.random() < 0.02:
            self._killed = True
            self.chaos.kill_some_worker()

    def _end_life(self) -> None:
        driver = self.driver
        if self._lives.savepoints:
            self.savepoint(driver, stop=True)
        else:
            driver.on_master(lambda: driver.master.trigger(Purpose.CHECKPOINT, self._taken))

    def _taken(self, outcome: RequestOutcome) -> None:
        if outcome.checkpoint is not None:
            self.driver.master.cancel()
        else:
            self._asked = False

    def start_driver(self) -> None:
        if self._asked:
            self.life, self._asked = self.life + 1, False
        super().start_driver()

    def _restore_from(self) -> RestoreElsewhere | None:
        if self.life != 1 or not self._lives.rehashed:
            return super()._restore_from()
        assert self._stopped_with is not None, "the first life ended with a savepoint"
        saved, self._stopped_with = read_savepoint(self._stopped_with, "savepoint"), None
        divided = MemoryFiles(now=self.scheduler.clock.now)
        self.key_groups = MORE_KEY_GROUPS
        self.story.tell(str(rehash(saved, divided, self.key_groups)))
        return RestoreElsewhere(lambda: read_savepoint(divided, "rehashed savepoint"))


def live(lives: Lives) -> RescaledWorld:
    """Raises `Violation`, with the story in the world of the exception's note."""
    world = RescaledWorld(lives)
    try:
        world.run()
        check(world)
    except Exception as error:
        error.add_note("\n".join(world.story.lines()))
        raise
    return world
