"""The simulation must be able to fail: each rule of the product, broken on purpose, is found out within a few runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

import penstock.core.store
from penstock.core import restore
from penstock.core.barrier import Mode
from penstock.core.handles import PartKind
from penstock.core.ids import CheckpointId, Generation
from penstock.core.pending import PendingCheckpoint, Phase
from penstock.core.record import SubtaskRecord
from penstock.core.store import Classified, Completed, Facts, Fate, Log
from penstock.core.watermarks import WatermarkCombiner
from penstock.operators.sink import SinkOperator
from penstock.runtime import channel_state, statelog
from penstock.runtime.commits import Commits
from penstock.runtime.inputs import Inputs
from penstock.runtime.master import Master
from penstock.runtime.outputs import Outputs
from penstock.runtime.ports import Written
from penstock.runtime.records import RecordWriter
from penstock.runtime.restored import RestoredSubtask, TaskMemory
from penstock.runtime.snapshot import Snapshots
from penstock.runtime.task import Task
from penstock.runtime.taskcheckpoints import TaskCheckpoints
from penstock.simulation.faults import CRASHES, Action, Point
from penstock.simulation.run import simulate
from penstock.simulation.scenario import Scenario, random_scenario
from penstock.simulation.topology import Kind
from penstock.state import conversion, timers
from penstock.state.expiring import ExpiringState
from penstock.state.layers import LayeredMap, Picture
from penstock.state.operator_state import OperatorListDeclaration, OperatorUnionDeclaration, RawDeclaration
from penstock.state.timers import Timers

SEEDS = 6000
"""So many scenarios are looked at; those that can show the mutation are run, until it is found."""

Fits = Callable[[Scenario], bool]


def first_violation(fits: Fits, runs: int = 100) -> str | None:
    """Of the runs whose scenario fits; or what production code raised because of the mutation."""
    for scenario in islice(filter(fits, map(random_scenario, range(SEEDS))), runs):
        try:
            violation = simulate(scenario.seed).violation
        except Exception as error:
            violation = f"{type(error).__name__}: {error}"
        if violation is not None:
            return violation
    return None


def in_modes(*modes: Mode) -> Fits:
    """With a crash after the first checkpoint, so that there is something to restore."""

    def fits(scenario: Scenario) -> bool:
        crashes = any(fault.action in CRASHES and fault.after for fault in scenario.faults)
        return crashes and scenario.checkpoints is not None and scenario.checkpoints.mode in modes

    return fits


def with_fault(*actions: Action) -> Fits:
    return lambda scenario: any(fault.action in actions for fault in scenario.faults)


ALIGNED = in_modes(Mode.ALIGNED, Mode.STOP_THE_WORLD)
OVERTAKING = in_modes(Mode.UNALIGNED, Mode.ADAPTIVE)
EXACTLY_ONCE = in_modes(*(mode for mode in Mode if mode.exactly_once))


def fan_in(fits: Fits) -> Fits:
    return lambda scenario: fits(scenario) and any(len(node.links) > 1 for node in scenario.topology.nodes)


def stateful(fits: Fits) -> Fits:
    return lambda scenario: fits(scenario) and any(node.kind is Kind.PROCESS for node in scenario.topology.nodes)


def with_failed_writes(fits: Fits) -> Fits:
    """And a loss later on, after which what was written is read."""

    def fails(scenario: Scenario) -> bool:
        failing = any(f.action is Action.STORE_ERROR and f.point is Point.DATA for f in scenario.faults)
        return fits(scenario) and failing and scenario.runtime.layers.inline < 2_000

    return fails


def layered(fits: Fits) -> Fits:
    """With user state of which mostly the changes are written."""

    def and_layered(scenario: Scenario) -> bool:
        layers = scenario.runtime.layers
        many = layers.worth > 1 and layers.share > 1 and layers.most > 2
        return stateful(fits)(scenario) and layers.incremental and many

    return and_layered


def long(scenario: Scenario) -> bool:
    return scenario.long


def with_node(kind: Kind, fits: Fits) -> Fits:
    return lambda scenario: fits(scenario) and any(node.kind is kind for node in scenario.topology.nodes)


def with_rules(fits: Fits) -> Fits:
    return lambda scenario: fits(scenario) and any(node.rules is not None for node in scenario.topology.nodes)


def rescaled(fits: Fits) -> Fits:
    return lambda scenario: fits(scenario) and scenario.rescaling


def evolving(fits: Fits) -> Fits:
    """With another driver, whose state is of other types."""
    return lambda scenario: fits(scenario) and scenario.evolving and with_fault(Action.KILL_DRIVER)(scenario)


def both(one: Fits, other: Fits) -> Fits:
    return lambda scenario: one(scenario) and other(scenario)


def without_effect(*arguments: Any, **options: Any) -> None:
    pass


def do_not_hold_channels(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Inputs, "hold", without_effect)


def drop_overtaken_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(channel_state, "capture", _capture_nothing(channel_state.capture))


def _capture_nothing(capture: Callable[..., Any]) -> Callable[..., Any]:
    return lambda kind, channel, elements: capture(kind, channel, [])


def send_rows_before_the_barrier_that_came_first(patch: pytest.MonkeyPatch) -> None:
    def overtaking(self: Outputs, barrier: Any, deadline: float | None) -> None:
        self.forward_overtaking(barrier)

    patch.setattr(Outputs, "forward", overtaking)


def commit_before_the_record_is_written(patch: pytest.MonkeyPatch) -> None:
    def told_too_early(self: RecordWriter, record: Any) -> None:
        self._outcomes.record_written(record.checkpoint)

    patch.setattr(RecordWriter, "write", told_too_early)


def restore_from_an_older_checkpoint(patch: pytest.MonkeyPatch) -> None:
    original = Master.completed

    def forgetting(self: Master, record: Any) -> None:
        older = self._restore_point
        original(self, record)
        self._restore_point = older

    patch.setattr(Master, "completed", forgetting)


def let_a_fenced_driver_go_on(patch: pytest.MonkeyPatch) -> None:
    """The driver that was overtaken completes its checkpoint as if it still owned the store."""
    original = penstock.core.store.complete

    def owner_anyway(log: Log, generation: Generation, *rest: Any) -> Completed:
        made = original(log, log.generation, *rest)
        return made

    patch.setattr(penstock.core.store, "check_owner", without_effect)
    patch.setattr(penstock.core.store, "complete", owner_anyway)


def forget_what_an_aborted_checkpoint_prepared(patch: pytest.MonkeyPatch) -> None:
    original = SinkOperator.snapshot

    def forgetful(self: SinkOperator, barrier: Any) -> Any:
        self._unconfirmed.clear()
        return original(self, barrier)

    patch.setattr(SinkOperator, "snapshot", forgetful)


def do_not_replay_records_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Task, "_preload", without_effect)


def do_not_restore_timers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Timers, "restore", without_effect)


def do_not_restore_event_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WatermarkCombiner, "restore", without_effect)
    patch.setattr(RestoredSubtask, "memory", lambda self, head, subtask: TaskMemory())


def delete_what_is_still_needed(patch: pytest.MonkeyPatch) -> None:
    original = penstock.core.store.deletions

    def greedy(classified: Classified, metadata: Any) -> Sequence[str]:
        return (*original(classified, metadata), *sorted(metadata))

    patch.setattr(penstock.core.store, "deletions", greedy)


def tell_of_completion_twice(patch: pytest.MonkeyPatch) -> None:
    original = TaskCheckpoints.complete

    def twice(self: TaskCheckpoints, checkpoint: CheckpointId) -> None:
        if checkpoint in self._taken:
            self._chain.complete(checkpoint)
        original(self, checkpoint)

    patch.setattr(TaskCheckpoints, "complete", twice)


def take_a_failed_write_for_done(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Snapshots, "failed", lambda self, note: self.written(Written(note.write, (), 0.0)))


def complete_without_the_last_acknowledgement(patch: pytest.MonkeyPatch) -> None:
    original = PendingCheckpoint.acknowledge

    def generous(self: PendingCheckpoint, record: Any, committables: Any) -> None:
        original(self, record, committables)
        if len(self.waiting) == 1:
            missing = self.waiting.pop()
            self.acknowledged[missing] = SubtaskRecord(missing)
            self.phase = Phase.READY

    patch.setattr(PendingCheckpoint, "acknowledge", generous)


def do_not_commit_again_after_a_restore(patch: pytest.MonkeyPatch) -> None:
    original = Commits.recover

    def forgetful(self: Commits, checkpoint: Any, committables: Any, *rest: Any) -> None:
        original(self, checkpoint, {}, *rest)

    patch.setattr(Commits, "recover", forgetful)


def write_the_newest_layer_only(patch: pytest.MonkeyPatch) -> None:
    original = LayeredMap.picture

    def newest_layer_only(self: LayeredMap, since: int | None = None) -> Picture:
        picture = original(self, since)
        return picture if since is None else Picture(picture._layers[-1:], since)

    patch.setattr(LayeredMap, "picture", newest_layer_only)


def forget_the_layers_below(patch: pytest.MonkeyPatch) -> None:
    original = statelog.Captured.handles

    def top_only(self: Any) -> Any:
        last = max((handle.layer for handle in original(self)), default=0)
        return [handle for handle in original(self) if handle.layer == last or handle.origin is None]

    patch.setattr(statelog.Captured, "handles", top_only)


def acknowledge_before_the_layers_below_are_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(statelog.Captured, "writes", property(lambda self: {self.own} if self.own else set()))


def keep_layers_above_one_that_failed(patch: pytest.MonkeyPatch) -> None:
    def failed(self: statelog._Chain, write: statelog.Write) -> None:
        self.layers = [layer for layer in self.layers if write not in layer.writes]

    patch.setattr(statelog._Chain, "failed", failed)


def take_a_rewritten_state_for_newer_than_it_is(patch: pytest.MonkeyPatch) -> None:
    """The layers above it are dropped as if it held them. (Where they are dropped, but its cut is known, the next layer
    holds their changes again.)"""

    def settle(self: statelog._Chain) -> None:
        rewritten = self.rewriting
        if rewritten is not None and rewritten.durable:
            self.rewriting = None
            if self.layers:
                rewritten.cut = self.layers[-1].cut
                self.replace([rewritten])

    patch.setattr(statelog._Chain, "settle", settle)


def delete_what_running_subtasks_have_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Facts, "is_being_written", lambda self, file: False)


def do_not_remember_removals(patch: pytest.MonkeyPatch) -> None:
    original = timers.present_and_removed

    def only_present(batch: Any) -> Any:
        return original(batch)[0], None

    patch.setattr(timers, "present_and_removed", only_present)


def clean_by_age_instead_of_by_reference(patch: pytest.MonkeyPatch) -> None:
    original = penstock.core.store.classify

    def by_age(facts: Facts) -> Classified:
        classified = original(facts)
        own = {file.path for file in facts.files if file.checkpoint in classified.retained}
        files = {
            path: fate if path in own or fate is not Fate.KEPT else Fate.SUBSUMED
            for path, fate in classified.files.items()
        }
        return replace(classified, files=files)

    patch.setattr(penstock.core.store, "classify", by_age)


def give_every_list_to_everybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OperatorListDeclaration, "restore", OperatorUnionDeclaration.restore)


def do_not_restore_raw_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RawDeclaration, "restore", without_effect)


def continue_another_copy_of_broadcast_state(patch: pytest.MonkeyPatch) -> None:
    """Than the one whose records in flight are replayed."""
    original = restore._dealt

    def last_copy(parts: Any, *rest: Any) -> Any:
        yield from original([written for written in parts if written[1].kind is not PartKind.BROADCAST], *rest)
        yield from {
            handle.name: (writer, handle) for writer, handle in parts if handle.kind is PartKind.BROADCAST
        }.values()

    patch.setattr(restore, "_dealt", last_copy)


def let_restored_state_live_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ExpiringState, "_is_over", lambda self, stamp, now: False)


def begin_lives_anew_at_a_restore(patch: pytest.MonkeyPatch) -> None:
    def stamped_now(self: Any, keys: Any, values: Any) -> None:
        fresh = [(value[0], self._now()) for value in values] if self.kind == "value" else values
        original(self, keys, fresh)

    original = ExpiringState.take_up
    patch.setattr(ExpiringState, "take_up", stamped_now)


def give_renamed_fields_their_default(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(conversion, "_record", _without_renames(conversion._record))


def _without_renames(convert: Callable[..., Any]) -> Callable[..., Any]:
    return lambda stored, declared, renamed, place: convert(stored, declared, {}, place)


ABORTS = both(EXACTLY_ONCE, with_fault(Action.SNAPSHOT_ERROR, Action.STORE_ERROR, Action.STALL, Action.CONFIGURE))

MUTATIONS: list[tuple[Callable[[pytest.MonkeyPatch], None], Fits]] = [
    (do_not_hold_channels, fan_in(ALIGNED)),
    (drop_overtaken_records, OVERTAKING),
    (do_not_replay_records_in_flight, OVERTAKING),
    (send_rows_before_the_barrier_that_came_first, ALIGNED),
    (commit_before_the_record_is_written, EXACTLY_ONCE),
    (complete_without_the_last_acknowledgement, EXACTLY_ONCE),
    (restore_from_an_older_checkpoint, EXACTLY_ONCE),
    (let_a_fenced_driver_go_on, with_fault(Action.SECOND_DRIVER)),
    (forget_what_an_aborted_checkpoint_prepared, with_fault(Action.SNAPSHOT_ERROR, Action.STORE_ERROR)),
    (do_not_commit_again_after_a_restore, with_fault(Action.KILL_DRIVER)),
    (do_not_restore_timers, stateful(EXACTLY_ONCE)),
    (do_not_restore_event_time, EXACTLY_ONCE),
    (delete_what_is_still_needed, EXACTLY_ONCE),
    (tell_of_completion_twice, EXACTLY_ONCE),
    (write_the_newest_layer_only, layered(with_failed_writes(EXACTLY_ONCE))),
    (forget_the_layers_below, layered(EXACTLY_ONCE)),
    (acknowledge_before_the_layers_below_are_written, layered(ABORTS)),
    (keep_layers_above_one_that_failed, long),
    (take_a_rewritten_state_for_newer_than_it_is, long),
    (delete_what_running_subtasks_have_written, layered(ABORTS)),
    (do_not_remember_removals, layered(EXACTLY_ONCE)),
    (clean_by_age_instead_of_by_reference, layered(EXACTLY_ONCE)),
    (take_a_failed_write_for_done, with_failed_writes(EXACTLY_ONCE)),
    (give_every_list_to_everybody, with_node(Kind.KEEP, EXACTLY_ONCE)),
    (do_not_restore_raw_state, with_node(Kind.KEEP, EXACTLY_ONCE)),
    (continue_another_copy_of_broadcast_state, with_rules(rescaled(OVERTAKING))),
    (let_restored_state_live_for_ever, with_node(Kind.RECALL, EXACTLY_ONCE)),
    (begin_lives_anew_at_a_restore, with_node(Kind.RECALL, EXACTLY_ONCE)),
    (give_renamed_fields_their_default, stateful(evolving(EXACTLY_ONCE))),
]


@pytest.mark.parametrize(("mutate", "fits"), MUTATIONS, ids=[mutate.__name__ for mutate, _ in MUTATIONS])
def test_a_broken_rule_is_found(
    mutate: Callable[[pytest.MonkeyPatch], None], fits: Fits, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    assert first_violation(fits) is not None
