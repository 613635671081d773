"""A driver dies before each single file operation: the directory is then in the old state or in the new one."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable

import pytest
from tests.unit.store.samples import (
    JOB,
    SUBTASKS,
    Crash,
    content_of,
    crash_at,
    expected,
    operations,
    paths,
    read_all,
    record_of,
    take,
    write_data,
)

from penstock.core.ids import CheckpointId
from penstock.simulation.files import MemoryFiles
from penstock.store.checkpoints import CheckpointStore, Claim, Fenced

KEEP = 2
Prepare = Callable[[MemoryFiles], CheckpointStore]
Act = Callable[[CheckpointStore, MemoryFiles], object]


def nothing(operation: str, path: str) -> None:
    pass


def running(files: MemoryFiles) -> CheckpointStore:
    """A driver with three complete checkpoints, of which the oldest is due to go, an aborted and a pending one."""
    store = CheckpointStore(files, JOB, KEEP)
    store.claim()
    for number in (1, 2, 3):
        take(store, files, number, 1)
    write_data(files, 4, 1)
    write_data(files, 5, 1)
    return store


def empty(files: MemoryFiles) -> CheckpointStore:
    return CheckpointStore(files, JOB, KEEP)


def restarted(files: MemoryFiles) -> CheckpointStore:
    running(files)
    return CheckpointStore(files, JOB, KEEP)


def claim(store: CheckpointStore, files: MemoryFiles) -> object:
    return store.claim()


def complete(store: CheckpointStore, files: MemoryFiles) -> object:
    return take(store, files, 6, 1)


def clean(store: CheckpointStore, files: MemoryFiles) -> object:
    return store.clean(aborted=[CheckpointId(4)])


def crash_points(prepare: Prepare, act: Act) -> range:
    files = MemoryFiles()
    store = prepare(files)
    return range(operations(lambda _: act(store, files), files))


def after_crash(prepare: Prepare, act: Act, point: int, error: BaseException | None = None) -> MemoryFiles:
    files = MemoryFiles()
    store = prepare(files)
    files.before = crash_at(point, error)
    with pytest.raises(BaseException) as raised:
        act(store, files)
    assert isinstance(raised.value, Crash if error is None else type(error))
    files.before = nothing
    return files


def takes_over(files: MemoryFiles) -> tuple[CheckpointStore, Claim]:
    store = CheckpointStore(files, JOB, KEEP)
    return store, store.claim()


def check_life_goes_on(files: MemoryFiles, store: CheckpointStore, taken: Claim) -> None:
    """The new driver restores, takes a checkpoint and cleans; nothing is left over then."""
    if taken.newest is not None:
        assert read_all(files, taken.newest) == expected(taken.newest.checkpoint)
    record = take(store, files, taken.next_id, taken.generation)
    store.clean()
    assert store.load() == record
    retained = store.completed()
    assert len(retained) <= KEEP
    for checkpoint in retained:
        assert read_all(files, store.load(checkpoint)) == expected(checkpoint)
    assert len(paths(files, "checkpoints")) == len(retained) * (len(SUBTASKS) + 2), "no file is left over"


@pytest.mark.parametrize("point", crash_points(empty, claim))
def test_a_crash_in_the_first_claim_leaves_a_directory_that_can_be_claimed(point: int) -> None:
    files = after_crash(empty, claim, point)
    store, taken = takes_over(files)
    assert taken.newest is None
    assert taken.generation in (1, 2)
    check_life_goes_on(files, store, taken)


@pytest.mark.parametrize("point", crash_points(restarted, claim))
def test_a_crash_in_a_later_claim_loses_no_checkpoint(point: int) -> None:
    files = after_crash(restarted, claim, point)
    store, taken = takes_over(files)
    assert taken.newest is not None
    assert taken.newest.checkpoint == 3
    assert (taken.generation, taken.next_id) in ((2, 6), (3, 6))
    check_life_goes_on(files, store, taken)


@pytest.mark.parametrize("point", crash_points(running, complete))
def test_a_crash_while_completing_leaves_the_old_or_the_new_checkpoint(point: int) -> None:
    files = after_crash(running, complete, point)
    store, taken = takes_over(files)
    assert taken.newest is not None
    assert taken.newest.checkpoint in (3, 6)
    assert taken.next_id > 5
    check_life_goes_on(files, store, taken)


def test_the_log_entry_is_what_completes() -> None:
    """The state changes exactly once over all crash points, from old to new."""
    newest = []
    for point in crash_points(running, complete):
        _, taken = takes_over(after_crash(running, complete, point))
        assert taken.newest is not None
        newest.append(taken.newest.checkpoint)
    assert newest == sorted(newest)
    assert set(newest) == {3, 6}


@pytest.mark.parametrize("point", crash_points(running, clean))
def test_a_crash_while_cleaning_keeps_the_retained_and_the_next_driver_goes_on(point: int) -> None:
    files = after_crash(running, clean, point)
    store, taken = takes_over(files)
    assert taken.newest is not None
    assert taken.newest.checkpoint == 3
    assert read_all(files, store.load(CheckpointId(2))) == expected(2)
    if CheckpointId(1) in store.completed():
        assert read_all(files, store.load(CheckpointId(1))) == expected(1), "metadata goes before the data it names"
    check_life_goes_on(files, store, taken)


@pytest.mark.parametrize("point", crash_points(running, complete))
def test_a_full_disk_while_completing_fails_this_checkpoint_only(point: int) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    files = MemoryFiles()
    store = running(files)
    files.before = crash_at(point, full)
    with pytest.raises(OSError, match="No space left"):
        complete(store, files)
    files.before = nothing
    known = store.is_complete(CheckpointId(6))
    assert store.completed() == ([1, 2, 3, 6] if known else [1, 2, 3])
    take(store, files, 7, 1)
    store.clean(aborted=[CheckpointId(6)])
    assert store.load().checkpoint == 7
    assert store.completed() == ([6, 7] if known else [3, 7])


@pytest.mark.parametrize("point", crash_points(running, clean))
def test_a_cleaning_that_failed_is_repeated_by_the_same_driver(point: int) -> None:
    files = MemoryFiles()
    store = running(files)
    files.before = crash_at(point, OSError(errno.EIO, "the network is gone"))
    with pytest.raises(OSError, match="network is gone"):
        clean(store, files)
    files.before = nothing
    clean(store, files)
    assert {path.split("/")[1] for path in paths(files, "checkpoints")} == {"2", "3", "5"}


@pytest.mark.parametrize("point", crash_points(running, complete))
def test_a_lost_answer_while_completing_never_loses_or_doubles_the_checkpoint(point: int) -> None:
    """Every operation has its effect, but from one on the driver gets errors back; then the network recovers."""
    files = MemoryFiles()
    store = running(files)
    files.after = crash_at(point, OSError(errno.ETIMEDOUT, "no answer"))
    record = record_of(6, 1, [])
    try:
        record = record_of(6, 1, write_data(files, 6, 1))
        store.complete(record)
    except OSError:
        files.after = nothing
        record = record_of(6, 1, write_data(files, 6, 1))
        store.complete(record)
    files.after = nothing
    assert store.completed() == [1, 2, 3, 6]
    assert read_all(files, store.load()) == {subtask: content_of(6, subtask) for subtask in SUBTASKS}


@pytest.mark.parametrize("point", crash_points(restarted, claim))
def test_a_second_driver_at_any_moment_of_a_claim_leaves_one_owner(point: int) -> None:
    files = MemoryFiles()
    first = restarted(files)
    seen = 0
    others: list[CheckpointStore] = []

    def overtake(operation: str, path: str) -> None:
        nonlocal seen
        seen += 1
        if seen == point + 1:
            files.before = nothing
            other = CheckpointStore(files, JOB, KEEP)
            other.claim()
            others.append(other)

    files.before = overtake
    with contextlib.suppress(Fenced):
        first.claim()
    assert _can_complete(first, files) + _can_complete(others[0], files) == 1


def _can_complete(store: CheckpointStore, files: MemoryFiles) -> bool:
    """Whether a driver that believes to own the directory does."""
    generation = store._generation
    if generation is None:
        return False
    try:
        take(store, files, 10 + generation, generation)
    except Fenced:
        return False
    return True
