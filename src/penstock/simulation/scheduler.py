"""Who acts next: a seeded choice among everybody who could, and a clock that jumps when nobody can.

Everything that could happen next in the job is an `Actor`: a task that has notes, a channel with an element under
way, a connection with a message, a write that has not finished, a worker about to register. `Scheduler.step` lets one
of the ready ones act. What must keep its order (a channel, a connection) is one actor with a queue of its own;
everything else happens in any order that the seed gives.

Time passes a little with every action, and jumps to the next timer when nobody is ready. An `eagerness` below 1 makes
an actor slow: when it is drawn it acts only with that probability, so that queues build up behind it.
"""

from __future__ import annotations

import heapq
from random import Random

from penstock.simulation.story import Story


class SimulatedClock:
    """Implements `operators.base.Clock`; only the scheduler moves it."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self.time * 1000)


class Actor:
    """Something that can happen next."""

    eagerness: float = 1.0
    _slot: int = -1
    _due: float | None = None

    @property
    def ready(self) -> bool:
        return self._slot >= 0

    def act(self) -> None:
        raise NotImplementedError


class Stuck(Exception):
    """Nobody is ready and nobody waits for a time: the job hangs."""


class Scheduler:
    def __init__(self, random: Random, story: Story, tick: float) -> None:
        self.random, self.story, self.clock = random, story, SimulatedClock()
        self.steps = 0
        self._tick = tick
        self._ready: list[Actor] = []
        self._timers: list[tuple[float, int, Actor]] = []
        self._sequence = 0

    def wake(self, actor: Actor) -> None:
        """The actor is ready to act; no harm if it was already."""
        if actor._slot < 0:
            actor._slot = len(self._ready)
            self._ready.append(actor)

    def rest(self, actor: Actor) -> None:
        """The actor is not ready any more; its timer stays."""
        slot = actor._slot
        if slot >= 0:
            last = self._ready.pop()
            if last is not actor:
                self._ready[slot] = last
                last._slot = slot
            actor._slot = -1

    def at(self, time: float | None, actor: Actor) -> None:
        """Wakes the actor at `time`; replaces its earlier timer. None: no timer."""
        if time == actor._due:
            return
        actor._due = time
        if time is not None:
            self._sequence += 1
            heapq.heappush(self._timers, (time, self._sequence, actor))

    def retire(self, actor: Actor) -> None:
        self.rest(actor)
        actor._due = None

    def step(self) -> None:
        """Lets one actor act."""
        self.steps += 1
        clock, timers = self.clock, self._timers
        clock.time += self._tick
        if timers and timers[0][0] <= clock.time:
            self._fire_timers()
        while not self._ready:
            clock.time = max(clock.time, self._next_timer())
            self._fire_timers()
        self._draw().act()

    def _draw(self) -> Actor:
        ready, random = self._ready, self.random.random
        actor = ready[int(random() * len(ready))]
        tries = 8
        while actor.eagerness < 1.0 and tries and random() >= actor.eagerness:
            actor = ready[int(random() * len(ready))]
            tries -= 1
        return actor

    def _fire_timers(self) -> None:
        now = self.clock.time
        while self._timers and self._timers[0][0] <= now:
            time, _, actor = heapq.heappop(self._timers)
            if actor._due == time:
                actor._due = None
                self.wake(actor)

    def _next_timer(self) -> float:
        while self._timers:
            time, _, actor = self._timers[0]
            if actor._due == time:
                return time
            heapq.heappop(self._timers)
        raise Stuck("nobody is ready and no timer is set")
