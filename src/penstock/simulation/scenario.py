"""Everything that a seed decides before its run begins: job, settings, character of the cluster, faults.

Durations are multiples of the `tick` that one action takes, so that a timeout means a number of actions whatever the
tick is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from penstock.core.barrier import Mode
from penstock.core.settings import CheckpointSettings, InFlightSettings, LayerSettings, RuntimeSettings
from penstock.simulation.faults import Fault, random_faults, random_rescale, random_write_errors
from penstock.simulation.topology import Kind, Node, Topology, longer, random_topology, without_copies


@dataclass(frozen=True)
class Scenario:
    seed: int
    topology: Topology
    checkpoints: CheckpointSettings | None
    """None: at-most-once."""
    runtime: RuntimeSettings
    faults: tuple[Fault, ...]
    tick: float
    haunting: float
    """How long, at most, a process lives on after its peers have given it up."""
    slow: float
    """How likely a task, a channel or a write is a slow one."""
    encoded: bool
    """Whether elements go through the wire format."""
    idle: bool
    """Whether sources declare themselves idle while they pause."""
    drain_at: int | None
    """The step at which the job is asked to stop reading and finish; None: never."""
    rescaling: bool = False
    """Whether the job comes back at another parallelism now and then."""
    evolving: bool = False
    """Whether it comes back with state of other types."""
    writing: float = 1.0
    """How eager those are who write state, beside others."""
    long: bool = False
    """Whether it lives for so many checkpoints that state is written in many layers, and rewritten."""

    @property
    def exactly_once(self) -> bool:
        """Whether state sees every record exactly once. Without checkpoints every attempt starts afresh, which comes
        to the same."""
        return self.checkpoints is None or self.checkpoints.mode.exactly_once

    def keeps_order(self, node: Node) -> bool:
        """Whether records of equal origin and route come to the node in order. At another parallelism this holds key by
        key, and not behind a rebalance: what was in flight on several channels there may meet on one."""
        return not self.rescaling or self.topology.in_order(node)

    def describe(self) -> list[str]:
        return [
            f"seed {self.seed}: {self.topology.describe()}",
            f"checkpoints: {self.checkpoints}",
            f"in flight: {self.runtime.in_flight}, spares {self.runtime.spares}, drain at {self.drain_at}",
            f"rescaling: {self.rescaling}, evolving: {self.evolving}, long: {self.long}",
            f"faults: {'; '.join(map(str, self.faults)) or 'none'}",
        ]


_MODES = (
    (Mode.ADAPTIVE, 26),
    (Mode.UNALIGNED, 26),
    (Mode.ALIGNED, 22),
    (Mode.AT_LEAST_ONCE, 12),
    (Mode.STOP_THE_WORLD, 8),
    (None, 6),
)


_LONG: Final = 0.05
"""How likely a job is a long one."""
_LONGER: Final = 4
"""How many times the records it has."""
_MOST_NODES: Final = 4
_FEWEST: Final = 15
"""Nodes and records of a job before it becomes a long one."""


def random_scenario(seed: int) -> Scenario:
    scenario = _short_scenario(seed)
    random = Random(f"long {seed}")
    return _longer(random, scenario) if random.random() < _LONG else scenario


def _longer(random: Random, scenario: Scenario) -> Scenario:
    """More records of so many keys that most of the state stays as it is from one checkpoint to the next. Writes are
    slow, so that several are under way at a time, and some of them fail."""
    topology = longer(_with_keyed_state(random), _LONGER)
    topology = replace(topology, keys=random.choice((30, 100)))
    mode = random.choice([mode for mode in Mode if mode.exactly_once])
    layers = replace(
        scenario.runtime.layers,
        incremental=True,
        most=random.choice((3, 6, 16)),
        share=1000.0,
        worth=10.0,
        inline=0,
        changelog=random.random() < 0.5,
    )
    return replace(
        scenario,
        topology=without_copies(topology) if scenario.rescaling else topology,
        checkpoints=replace(
            _checkpoints(random, mode, scenario.tick),
            every=scenario.tick * random.choice((40, 100)),
            minimum_pause=0.0,
            maximum_concurrent=random.choice((2, 3)),
            tolerable_failures=1000,
        ),
        runtime=replace(scenario.runtime, layers=layers),
        faults=(*random_write_errors(random), *random_write_errors(random, checkpoints=8)),
        writing=random.choice((0.01, 0.03)),
        drain_at=None,
        long=True,
    )


def _with_keyed_state(random: Random) -> Topology:
    """The first of many random ones that is small and has state of users' functions."""
    while True:
        topology = random_topology(random)
        keyed = any(node.kind is Kind.PROCESS for node in topology.nodes)
        if keyed and len(topology.nodes) <= _MOST_NODES and sum(sum(node.rows) for node in topology.sources) > _FEWEST:
            return topology


def _short_scenario(seed: int) -> Scenario:
    random = Random(f"scenario {seed}")
    tick = random.choice((0.0001, 0.0005, 0.001))
    drains = random.random() < 0.08
    mode = random.choices([mode for mode, _ in _MODES], [weight for _, weight in _MODES])[0]
    rescaling = mode is not None and random.random() < 0.4
    topology = _only_scripted(random_topology(random)) if drains else random_topology(random)
    faults = random_faults(random, mode is not None)
    if mode is not None and random.random() < 0.15:
        faults += random_write_errors(random)
    if rescaling:
        faults += (random_rescale(random),)
    return Scenario(
        seed=seed,
        topology=without_copies(topology) if rescaling else topology,
        checkpoints=None if mode is None else _checkpoints(random, mode, tick),
        runtime=_runtime(random, tick),
        faults=faults,
        tick=tick,
        haunting=tick * random.choice((50, 200, 600)),
        slow=random.choice((0.0, 0.1, 0.3)),
        encoded=random.random() < 0.3,
        idle=random.random() < 0.1,
        drain_at=random.randint(20, 400) if drains else None,
        rescaling=rescaling,
        evolving=random.random() < 0.3,
    )


def other_checkpoints(random: Random, scenario: Scenario) -> CheckpointSettings:
    """Other settings for the running job, with the same guarantee."""
    modes = [mode for mode in Mode if mode.exactly_once] if scenario.exactly_once else [Mode.AT_LEAST_ONCE]
    return _checkpoints(random, random.choice(modes), scenario.tick)


def _only_scripted(topology: Topology) -> Topology:
    """Scripted sources tell where they stopped when the job is drained; generators do not."""
    nodes = (replace(node, kind=Kind.SOURCE) if node.kind.is_source else node for node in topology.nodes)
    return replace(topology, nodes=tuple(nodes))


def _checkpoints(random: Random, mode: Mode, tick: float) -> CheckpointSettings:
    return CheckpointSettings(
        every=tick * random.choice((200, 400) if mode is Mode.STOP_THE_WORLD else (15, 40, 100, 200)),
        mode=mode,
        alignment_timeout=tick * random.choice((0, 10, 50)),
        timeout=tick * random.choice((1_500, 5_000, 100_000)),
        minimum_pause=tick * random.choice((0, 0, 50)),
        maximum_concurrent=random.choice((1, 1, 2, 3)),
        tolerable_failures=random.choice((0, 2, 1000)),
        keep=random.choice((1, 2, 3)),
    )


def _runtime(random: Random, tick: float) -> RuntimeSettings:
    depth = random.choice((4, 12, 40))
    return RuntimeSettings(
        in_flight=InFlightSettings(
            target=random.choice((None, tick * 20)), initial_rows=depth, min_rows=random.choice((1, 4)), max_rows=depth
        ),
        layers=LayerSettings(
            incremental=random.random() < 0.9,
            most=random.choice((2, 4, 16)),
            share=random.choice((0.5, 1000.0, 1000.0)),
            worth=random.choice((0.5, 10.0, 10.0)),
            small=0,
            inline=random.choice((0, 0, 1_000, 1 << 20)),
            shared=random.choice((0, 1_000, 1 << 20)),
            wait_for_others=tick * random.choice((0, 20, 2_000)),
            changelog=random.random() < 0.4,
            flush_every=tick * random.choice((0, 10, 50)),
        ),
        linger=tick * random.choice((0, 3, 10)),
        small_batch_rows=random.choice((1, 4, 10)),
        source_batch_rows=random.choice((2, 8)),
        clean_every=tick * random.choice((0, 0, 300)),
        deploy_timeout=tick * 3_000,
        registration_timeout=tick * 100_000,
        spares=random.choice((0, 0, 1)),
    )
