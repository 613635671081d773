"""Random schedules of a real graph with checkpoints, aborts, crashes and restores: nothing lost, nothing twice."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.runtime.task.harness import SCHEMA, Job, ManualClock, Numbers, Seen, chain, graph, pairs

from penstock.core.barrier import Mode
from penstock.core.ids import SubtaskId, Uid
from penstock.core.settings import InFlightSettings, RuntimeSettings
from penstock.graph.job import JobGraph, Partitioning
from penstock.runtime import channel_state
from penstock.runtime.task import RestoredSubtask

EXACT = [mode for mode in Mode if mode.exactly_once]
ROWS = {"left": 30, "right": 17}


def two_sources(rng: random.Random) -> JobGraph:
    batch = rng.choice([1, 2, 5])
    wide = rng.choice([Partitioning.HASH, Partitioning.REBALANCE])
    return graph(
        [
            chain("left", [lambda: Numbers(ROWS["left"], batch)], 2),
            chain("right", [lambda: Numbers(ROWS["right"], batch)], 1),
            chain("middle", [Seen], 2),
            chain("sink", [Seen], rng.choice([1, 2])),
        ],
        [("left", "middle", wide), ("right", "middle", wide), ("middle", "sink", Partitioning.HASH)],
    )


def settings(rng: random.Random) -> RuntimeSettings:
    capacity = rng.choice([2, 5, 40])
    return RuntimeSettings(
        in_flight=InFlightSettings(target=None, min_rows=1, max_rows=capacity),
        linger=rng.choice([0.0, 0.01]),
        small_batch_rows=rng.choice([1, 4]),
    )


class Story:
    """One job through several attempts, with a coordinator that is as simple as it can be."""

    def __init__(self, seed: int, mode: Mode) -> None:
        self.rng = random.Random(f"{seed} {mode}")
        self.mode = mode
        self.graph = two_sources(self.rng)
        self.settings = settings(self.rng)
        self.clock = ManualClock()
        self.next_id = 1
        self.pending: int | None = None
        self.restore_from: dict[SubtaskId, RestoredSubtask] | None = None
        self.completed = 0
        self.job = self._start()

    def _start(self) -> Job:
        return Job(self.graph, settings=self.settings, restored=self.restore_from, clock=self.clock)

    def run(self, crashes: int) -> Job:
        for _ in range(20_000):
            if self._over():
                return self.job
            self._act(crashes > 0)
            crashes -= self._maybe_crash() if crashes > 0 else 0
        raise AssertionError(
            "the job does not end\n" + "\n".join(f"{s} {t.story()}" for s, t in self.job.tasks.items())
        )

    def _over(self) -> bool:
        return all("finished" in report.events for report in self.job.reports.values())

    def _act(self, may_abort: bool) -> None:
        moves = self.job.moves()
        choice = self.rng.random()
        if choice < 0.03 or not moves:
            self.clock.advance(self.rng.choice([0.001, 0.02, 0.2]))
            self._coordinate(may_abort)
        else:
            self.rng.choice(moves)()
        for subtask, report in self.job.reports.items():
            assert report.error is None, f"{subtask}: {report.error}"

    def _coordinate(self, may_abort: bool) -> None:
        if self.pending is None:
            self.pending, self.next_id = self.next_id, self.next_id + 1
            running = {s.chain for s, r in self.job.reports.items() if "finished" not in r.events}
            for name in self.graph.chains:
                if not any(edge.source in running for edge in self.graph.inputs(name.id)):
                    self.job.trigger(self.pending, self.mode, self.rng.choice([0.0, 5.0, 100.0]), name.id)
            self.finished_before = {s for s, r in self.job.reports.items() if "finished" in r.events}
        elif self._declined() or (may_abort and self.rng.random() < 0.1):
            self.job.abort(self.pending)
            self.pending = None
        elif self.job.fully_acknowledged(self.pending) and self._all_running_acknowledged():
            self.check_consistent(self.pending)
            self.restore_from = self.job.restore(self.pending)
            self.job.complete(self.pending)
            self.completed += 1
            self.pending = None

    def _declined(self) -> bool:
        finished_now = {s for s, r in self.job.reports.items() if "finished" in r.events}
        missing = finished_now - self.finished_before - self.job.acknowledged(self.pending or 0)
        return bool(missing) or any(
            d[0] == self.pending for report in self.job.reports.values() for d in report.declines
        )

    def _all_running_acknowledged(self) -> bool:
        assert self.pending is not None
        return self.job.acknowledged(self.pending) | self.finished_before == set(self.job.tasks)

    def _maybe_crash(self) -> int:
        if self.rng.random() > 0.003:
            return 0
        self.pending = None
        self.job = self._start()
        return 1

    def check_consistent(self, id: int) -> None:
        """What the middle had seen, and what was in flight to it, is what the sources had emitted at their barrier."""
        emitted: Counter[tuple[int, int]] = Counter()
        known: Counter[tuple[int, int]] = Counter()
        for subtask, restored in self.job.restore(id).items():
            if restored.finished or not self.mode.exactly_once:
                return
            if subtask.chain in ROWS:
                emitted.update((subtask.index, n) for n in range(state_of(subtask, restored)))
            elif subtask.chain == "middle":
                known.update((s, n) for s, n in state_of(subtask, restored))
            for part in restored.channels:
                assert part.channel is not None
                if self.graph.edges[part.channel.edge].target == "middle":
                    for element in channel_state.restore(part, SCHEMA):
                        known.update(pairs(element) if isinstance(element, pa.RecordBatch) else ())
        assert known == emitted


def state_of(subtask: SubtaskId, restored: RestoredSubtask) -> Any:
    (part,) = restored.operator_parts(Uid(subtask.chain))
    return json.loads(bytes(part.read()))


def expected() -> Counter[tuple[int, int]]:
    rows = Counter((source, n) for source in range(2) for n in range(ROWS["left"]))
    rows.update((0, n) for n in range(ROWS["right"]))
    return rows


def output(job: Job) -> Counter[tuple[int, int]]:
    return Counter(
        tuple(pair)
        for op in job.operators("sink")
        for pair in op.state  # type: ignore[attr-defined]
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("mode", EXACT)
def test_exactly_once_output_survives_any_schedule_of_checkpoints_aborts_and_crashes(mode: Mode, seed: int) -> None:
    story = Story(seed, mode)
    job = story.run(crashes=3)
    assert output(job) == expected()


@pytest.mark.parametrize("seed", range(12))
def test_at_least_once_output_has_every_row_after_crashes(seed: int) -> None:
    story = Story(seed, Mode.AT_LEAST_ONCE)
    job = story.run(crashes=3)
    assert not expected() - output(job)
