"""A job in three lives at different sizes, as a user rescales it.

    1   runs at the old size until it has some checkpoints, takes one more, A, and loses its driver
    2   begins from A at the new size and is cancelled with the next checkpoint, B, which is taken at once: it still
        replays what was in flight in A
    3   begins from B at the old or the new size, loses a worker once, and finishes

Where the snapshots are savepoints, the first two lives are stopped with one that the next begins from. Every life may
keep its state in other types than the one before. As in every simulated job, the committed output must be exactly what
the topology says. The job has keyed state, lists, union lists and raw state of instances, and broadcast state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from penstock.core.barrier import Mode, Purpose
from penstock.core.handles import PartKind
from penstock.core.orders import JobState
from penstock.core.settings import CheckpointSettings
from penstock.runtime.opening import RestoreElsewhere
from penstock.runtime.outcome import RequestOutcome
from penstock.simulation.files import MemoryFiles
from penstock.simulation.run import Outcome, observed
from penstock.simulation.scenario import Scenario, random_scenario
from penstock.simulation.topology import Topology, longer, random_topology, resized, without_copies
from penstock.simulation.versions import VERSIONS
from penstock.simulation.world import MAX_STEPS, World
from penstock.store.rehash import rehash
from penstock.store.savepoints import read_savepoint

Sizes = tuple[int, int]

_ONE_WAY: Final[tuple[Sizes, ...]] = ((1, 2), (2, 3), (3, 7), (7, 2), (4, 1))
PAIRS: Final = (*_ONE_WAY, *((new, old) for old, new in _ONE_WAY))
KINDS: Final = ("aligned", "unaligned", "adaptive", "savepoint", "unaligned savepoint")
"""Of snapshot."""
MORE_KEY_GROUPS: Final = 64
_MOST_NODES: Final = 5
_FEWEST_ROWS: Final = 25
_LONGER: Final = 2
"""So many times the records of other simulated jobs: three lives need more to live on."""
_CHANNELS: Final = {PartKind.INPUT_CHANNEL, PartKind.OUTPUT_CHANNEL}


@dataclass(frozen=True)
class Lives:
    kind: str
    old: int
    new: int
    seed: int
    rehashed: bool = False
    """The savepoint of the first life is divided into more key groups, offline."""

    def __str__(self) -> str:
        return f"{self.old}-{self.new}, {self.kind}, seed {self.seed}"

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
            every=base.tick * 100,
            alignment_timeout=base.tick * random.choice((0, 10, 50)),
            timeout=base.tick * 100_000,
            tolerable_failures=1000,
        )
        return replace(
            base,
            topology=without_copies(longer(_with_all_state(random), _LONGER)),
            checkpoints=settings,
            faults=(),
            drain_at=None,
            rescaling=True,
        )


def _with_all_state(random: Random) -> Topology:
    """The first of many random ones that keeps state of every kind."""
    while True:
        topology = random_topology(random)
        keyed = any(node.kind.is_keyed for node in topology.nodes)
        ruled = any(node.rules is not None for node in topology.nodes)
        long = all(sum(node.rows) >= _FEWEST_ROWS for node in topology.sources)
        if keyed and ruled and long and len(topology.nodes) <= _MOST_NODES:
            return topology


class RescaledWorld(World):
    """`life` is 0, 1 or 2."""

    max_steps = 5 * MAX_STEPS

    def __init__(self, lives: Lives) -> None:
        self.life = 0
        self._asked = self._failing = self._killed = False
        self._lives = lives
        random = Random(f"third {lives.seed}")
        self._sizes = (lives.old, lives.new, random.choice((lives.old, lives.new)))
        self._versions = sorted(random.choices(range(VERSIONS), k=3))
        self._restored: set[PartKind] = set()
        """What the snapshots that the second and the third life began from consisted of."""
        super().__init__(lives.scenario())

    def _next_topology(self) -> Topology:
        """Sinks may be smaller: so the edges before them change in other ways, and the job has less to do."""
        size = self._sizes[self.life]
        random = Random(f"sinks {self._lives.seed} {self.life}")
        topology = resized(
            self.scenario.topology, lambda node: random.randint(1, min(size, 2)) if node.kind.is_sink else size
        )
        self.story.tell(f"life {self.life}: {topology.describe()}")
        return topology

    def _next_version(self) -> int:
        return self._versions[self.life]

    def figures(self) -> dict[str, int]:
        seen = {
            "lives": self.life + 1,
            "in_flight": bool(self._restored & _CHANNELS),
            "keyed": PartKind.KEYED in self._restored,
            **{state: state in self.witness.took_up for state in ("list", "union", "raw", "broadcast")},
        }
        return {**super().figures(), **{name: int(figure) for name, figure in seen.items()}}

    def _step(self) -> None:
        super()._step()
        driver = self.driver
        if self._failing:
            self._failing = False
            self.driver_dies(driver)
        elif not driver.working or driver.master.lifecycle.state is not JobState.RUNNING:
            return
        elif self.life < 2 and not self._asked and (self.life == 1 or len(self.witness.completed) >= 2):
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
        if outcome.checkpoint is None:
            self._asked = False
        elif self.life == 0:
            self._failing = True
        else:
            self.driver.master.cancel()

    def start_driver(self) -> None:
        if self._asked:
            self.life, self._asked = self.life + 1, False
            self._restored |= self.witness.kinds
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


def live(lives: Lives) -> Outcome:
    """The run of three lives: the same at every call, in every process."""
    return observed(RescaledWorld(lives), lives.seed)
