"""Checkpoints built upon earlier ones: whatever completes, fails and is cleaned, what is retained can be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.store.samples import JOB, SUBTASKS, content_of, part, read_all, record_of

from penstock.core.handles import PartHandle
from penstock.core.ids import Attempt, CheckpointId, Generation, SubtaskId, Uid
from penstock.core.record import CheckpointRecord, SubtaskRecord
from penstock.simulation.files import MemoryFiles
from penstock.store import layout
from penstock.store.checkpoints import CheckpointStore
from penstock.store.errors import CorruptCheckpoint
from penstock.store.parts import reader, write_parts

Layers = dict[SubtaskId, tuple[PartHandle, ...]]


@dataclass
class Driver:
    """Takes checkpoints of which each names the layers of the one before, whatever became of that, then its own."""

    files: MemoryFiles = field(default_factory=MemoryFiles)
    keep: int = 1
    complete: dict[CheckpointId, Layers] = field(default_factory=dict)
    base: CheckpointId | None = None
    chain: Layers = field(default_factory=dict)
    aborted: set[CheckpointId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.store = CheckpointStore(self.files, JOB, self.keep)
        claim = self.store.claim()
        self.generation, self.next = claim.generation, claim.next_id
        self.base = claim.newest.checkpoint if claim.newest else None
        self.chain = {} if self.base is None else self.complete[self.base]

    def write(self, whole: bool = False) -> CheckpointRecord:
        checkpoint, self.next = self.next, CheckpointId(self.next + 1)
        subtasks = []
        for subtask in SUBTASKS:
            below = () if whole else self.chain.get(subtask, ())
            own = self._written(checkpoint, subtask, len(below))
            subtasks.append(SubtaskRecord(subtask, (*below, own)))
        self.chain = _seen_from_later(checkpoint, subtasks)
        return record_of(checkpoint, self.generation, subtasks)

    def _written(self, checkpoint: CheckpointId, subtask: SubtaskId, layer: int) -> PartHandle:
        path = layout.data_path(checkpoint, Generation(self.generation), Attempt(1), subtask, 0)
        content = part("state", content_of(checkpoint, subtask))
        return replace(write_parts(self.files, path, {Uid(subtask.chain): [content]})[0], layer=layer)

    def finish(self, record: CheckpointRecord) -> None:
        self.store.complete(record)
        self.base = record.checkpoint
        self.complete[record.checkpoint] = _seen_from_later(record.checkpoint, record.subtasks)

    def check(self) -> None:
        """Every layer of every checkpoint that is still there can be read and is what was written."""
        for checkpoint in self.store.completed():
            record = self.store.load(checkpoint)
            directory = layout.checkpoint_directory(checkpoint)
            for entry in record.subtasks:
                for handle in entry.handles:
                    origin = handle.origin or checkpoint
                    assert bytes(reader(self.files, directory, handle)()) == content_of(origin, entry.subtask)


def _seen_from_later(checkpoint: CheckpointId, subtasks: Sequence[SubtaskRecord]) -> Layers:
    return {entry.subtask: tuple(handle.seen_from_later(checkpoint) for handle in entry.handles) for entry in subtasks}


Step = tuple[str, bool]
STEPS = st.lists(
    st.tuples(st.sampled_from(["complete", "complete", "fail", "begin", "end", "clean", "driver"]), st.booleans())
)


@given(STEPS, st.integers(1, 3))
def test_nothing_that_a_retained_checkpoint_is_built_upon_is_ever_deleted(steps: list[Step], keep: int) -> None:
    driver = Driver(keep=keep)
    pending: tuple[CheckpointRecord, CheckpointId | None] | None = None
    for action, whole in steps:
        match action:
            case "complete":
                driver.finish(driver.write(whole))
                if pending is not None:
                    driver.aborted.add(pending[0].checkpoint)
                    pending = None
            case "fail":
                driver.aborted.add(driver.write(whole).checkpoint)
            case "begin" if pending is None:
                pending = (driver.write(whole), driver.base)
            case "end" if pending is not None:
                if driver.base is None or pending[0].checkpoint > driver.base:
                    driver.finish(pending[0])
                pending = None
            case "clean":
                bases = {b for b in (driver.base, pending[1] if pending else None) if b is not None}
                driver.store.clean(driver.aborted, bases, Attempt(1))
            case "driver":
                pending = None
                driver.start()
        driver.check()
    driver.start()
    report = driver.store.clean()
    driver.check()
    needed = {
        layout.part_path(layout.checkpoint_directory(checkpoint), handle)
        for checkpoint in report.retained
        for entry in driver.store.load(checkpoint).subtasks
        for handle in entry.handles
    }
    assert {file.path for file in driver.files.list("checkpoints") if file.path.endswith(".data")} == needed


def test_a_checkpoint_under_way_keeps_its_base_from_being_cleaned() -> None:
    driver = Driver(keep=1)
    driver.finish(driver.write(None))
    base = driver.base
    assert base is not None
    under_way = driver.write()
    later = driver.write(None)
    driver.store.clean(bases=[base], oldest_writer=Attempt(1))
    driver.finish(under_way)
    driver.check()
    driver.finish(later)
    driver.store.clean()
    assert driver.store.completed() == [later.checkpoint]


def test_a_missing_file_of_an_earlier_checkpoint_is_named() -> None:
    driver = Driver(keep=1)
    driver.finish(driver.write(None))
    driver.finish(driver.write())
    victim = next(file.path for file in driver.files.list("checkpoints/1") if file.path.endswith(".data"))
    driver.files.delete(victim)
    with pytest.raises(CorruptCheckpoint, match=f"{victim}: the file is missing; checkpoint 2 needs it"):
        driver.store.load()


def test_metadata_tells_layers_and_origins_back() -> None:
    driver = Driver()
    driver.finish(driver.write(None))
    record = driver.write()
    driver.finish(record)
    assert driver.store.load() == record
    assert [(handle.layer, handle.origin) for handle in record.subtasks[0].handles] == [(0, 1), (1, None)]
    assert read_all(driver.files, record)
