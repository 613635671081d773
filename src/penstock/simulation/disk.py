"""The disk of the checkpoint store: in memory, watched, and now and then at fault.

Faults happen before an operation (it fails), after it (its answer is lost), or the operation fails and takes effect
later all the same, as a request does that was on its way when its sender gave it up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.simulation.driver import SimulatedDriver
from penstock.simulation.faults import Point
from penstock.simulation.files import MemoryFiles
from penstock.simulation.scheduler import Actor

if TYPE_CHECKING:
    from penstock.simulation.world import World


class StoreDisk(MemoryFiles):
    def __init__(self, world: World) -> None:
        super().__init__(self._reach, self._took_effect, world.scheduler.clock.now)
        self._world = world
        self._ghost_next = False

    def create(self, path: str, content: bytes) -> None:
        self._ghost_next = False
        try:
            super().create(path, content)
        except OSError:
            if self._ghost_next:
                _Ghost(self._world, self, path, content).wait()
            raise
        finally:
            self._ghost_next = False

    def haunt(self) -> None:
        """The operation that fails now takes effect later."""
        self._ghost_next = True

    def _reach(self, operation: str, path: str) -> None:
        point = _point(operation, path, done=False)
        if point is not None:
            self._world.chaos.reach_disk(point)

    def _took_effect(self, operation: str, path: str) -> None:
        world = self._world
        driver = world.subject.number if isinstance(world.subject, SimulatedDriver) else 0
        world.witness.disk(self, operation, path, driver)
        point = _point(operation, path, done=True)
        if point is not None:
            world.chaos.reach_disk(point)


class _Ghost(Actor):
    """A request that its sender has given up."""

    def __init__(self, world: World, disk: StoreDisk, path: str, content: bytes) -> None:
        self._world, self._disk, self._path, self._content = world, disk, path, content

    def wait(self) -> None:
        delay = self._world.random.random() * self._world.scenario.haunting
        self._world.scheduler.at(self._world.scheduler.clock.now() + delay, self)

    def act(self) -> None:
        self._world.scheduler.retire(self)
        self._world.story.tell(f"{self._path} takes effect at last")
        try:
            self._disk.create(self._path, self._content)
        except FileExistsError:
            self._world.story.tell(f"but {self._path} exists already")
        except OSError as error:
            self._world.story.tell(f"and nobody hears of {error}")


def _point(operation: str, path: str, done: bool) -> Point | None:
    match operation:
        case "write" if path.endswith(".data"):
            return Point.DATA_DONE if done else Point.DATA
        case "write" if path.endswith(".committables"):
            return None if done else Point.COMMITTABLES
        case "write" if path.startswith("checkpoints/"):
            return Point.METADATA_DONE if done else Point.METADATA
        case "create" if path.startswith("log/"):
            return Point.LOG_DONE if done else Point.LOG
        case "delete":
            return Point.DELETE_DONE if done else Point.DELETE
    return None
