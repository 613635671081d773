from random import Random

import pytest

from penstock.simulation.scheduler import Actor, Scheduler, Stuck
from penstock.simulation.story import Story


class Counting(Actor):
    def __init__(self, scheduler: Scheduler, log: list[str], name: str, times: int = 1) -> None:
        self._scheduler, self._log, self._name, self._left = scheduler, log, name, times

    def act(self) -> None:
        self._log.append(self._name)
        self._left -= 1
        if not self._left:
            self._scheduler.rest(self)


def make(seed: int = 1) -> Scheduler:
    return Scheduler(Random(seed), Story(), tick=0.001)


def acted(seed: int) -> list[str]:
    scheduler, log = make(seed), list[str]()
    for name in "abcde":
        scheduler.wake(Counting(scheduler, log, name, times=3))
    for _ in range(15):
        scheduler.step()
    return log


def test_everybody_who_is_ready_acts_in_the_end() -> None:
    assert sorted(acted(1)) == sorted("abcde" * 3)


def test_one_seed_gives_one_order_and_another_seed_another() -> None:
    assert acted(1) == acted(1)
    assert acted(1) != acted(2)


def test_the_clock_jumps_to_the_next_timer_when_nobody_is_ready() -> None:
    scheduler, log = make(), list[str]()
    began = scheduler.clock.now()
    scheduler.at(began + 60, Counting(scheduler, log, "late"))
    scheduler.at(began + 30, Counting(scheduler, log, "early"))
    scheduler.step()
    assert log == ["early"]
    assert scheduler.clock.now() == began + 30


def test_a_timer_that_was_replaced_does_not_fire() -> None:
    scheduler, log = make(), list[str]()
    began = scheduler.clock.now()
    actor = Counting(scheduler, log, "moved")
    scheduler.at(began + 10, actor)
    scheduler.at(began + 20, actor)
    scheduler.step()
    assert scheduler.clock.now() == began + 20


def test_a_retired_actor_neither_acts_nor_keeps_the_world_going() -> None:
    scheduler, log = make(), list[str]()
    actor = Counting(scheduler, log, "gone")
    scheduler.wake(actor)
    scheduler.at(scheduler.clock.now() + 1, actor)
    scheduler.retire(actor)
    with pytest.raises(Stuck):
        scheduler.step()
    assert log == []
