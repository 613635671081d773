"""The checkpoint store from a driver's view: claim, complete, load, clean."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable

import pytest
from tests.unit.store.samples import JOB, SUBTASKS, expected, paths, read_all, record_of, take, write_data

from penstock.core.ids import CheckpointId, Generation, Uid
from penstock.core.record import SubtaskRecord
from penstock.core.store import HISTORY
from penstock.simulation.files import MemoryFiles
from penstock.store import layout
from penstock.store.checkpoints import CheckpointStore, Claim, Fenced, NotComplete
from penstock.store.errors import CorruptCheckpoint, OtherJob


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def owned(files: MemoryFiles, keep: int = 3) -> CheckpointStore:
    store = CheckpointStore(files, JOB, keep)
    store.claim()
    return store


def test_the_first_claim_of_an_empty_directory_starts_at_one(files: MemoryFiles) -> None:
    claim = CheckpointStore(files, JOB).claim()
    assert (claim.generation, claim.newest, claim.next_id) == (1, None, 1)


def test_a_completed_checkpoint_is_what_the_next_driver_gets(files: MemoryFiles) -> None:
    record = take(owned(files), files, 1, 1)
    claim = CheckpointStore(files, JOB).claim()
    assert (claim.generation, claim.newest, claim.next_id) == (2, record, 2)
    assert claim.newest is not None
    assert read_all(files, claim.newest) == expected(1)


def test_committables_come_back_as_they_were_and_leave_no_file_when_there_are_none(files: MemoryFiles) -> None:
    store = owned(files)
    with_some = take(store, files, 1, 1)
    assert store.load().committables == with_some.committables
    store.complete(record_of(2, 1, write_data(files, 2, 1), {Uid("out"): ()}))
    assert store.load().committables == {}
    assert [path for path in paths(files) if path.endswith(".committables")] == ["checkpoints/1/g1.committables"]


def test_a_checkpoint_without_its_log_entry_is_not_complete(files: MemoryFiles) -> None:
    store = owned(files)
    take(store, files, 1, 1)
    write_data(files, 2, 1)
    assert store.completed() == [1]
    assert not store.is_complete(CheckpointId(2))
    assert store.load().checkpoint == 1


def test_ids_of_unfinished_checkpoints_are_not_given_out_again(files: MemoryFiles) -> None:
    take(owned(files), files, 1, 1)
    write_data(files, 7, 1)
    assert CheckpointStore(files, JOB).claim().next_id == 8


def test_a_named_checkpoint_is_loaded_instead_of_the_newest(files: MemoryFiles) -> None:
    store = owned(files)
    records = [take(store, files, number, 1) for number in (1, 2, 3)]
    assert store.load(CheckpointId(2)) == records[1]
    claim = CheckpointStore(files, JOB).claim(CheckpointId(1))
    assert claim.newest == records[0]
    assert claim.next_id == 4


def test_a_named_checkpoint_that_never_completed_is_refused_with_the_alternatives(files: MemoryFiles) -> None:
    store = owned(files)
    take(store, files, 1, 1)
    write_data(files, 2, 1)
    with pytest.raises(NotComplete, match=r"checkpoint 2 is not complete.*Complete ones: 1"):
        store.load(CheckpointId(2))
    with pytest.raises(NotComplete, match="no checkpoint of this job is complete"):
        CheckpointStore(MemoryFiles(), JOB).load()


def test_a_directory_of_another_job_is_refused(files: MemoryFiles) -> None:
    take(owned(files), files, 1, 1)
    before = paths(files)
    other = CheckpointStore(files, "payments")
    uses: list[Callable[[], object]] = [other.claim, other.load, other.completed]
    for use in uses:
        with pytest.raises(OtherJob, match=r"belongs to job 'orders', this is job 'payments'"):
            use()
    assert paths(files) == before


def test_completing_twice_changes_nothing(files: MemoryFiles) -> None:
    store = owned(files)
    record = take(store, files, 1, 1)
    before = {path: bytes(files.read(path)) for path in paths(files)}
    store.complete(record)
    assert {path: bytes(files.read(path)) for path in paths(files)} == before


def test_checkpoints_complete_in_the_order_of_their_numbers(files: MemoryFiles) -> None:
    store = owned(files)
    take(store, files, 2, 1)
    with pytest.raises(ValueError, match="checkpoint 1 cannot complete after 2"):
        take(store, files, 1, 1)
    take(store, files, 3, 1)
    assert store.completed() == [2, 3]


def test_nothing_is_completed_without_a_claim(files: MemoryFiles) -> None:
    with pytest.raises(RuntimeError, match=r"claim\(\)"):
        CheckpointStore(files, JOB).complete(record_of(1, 1, ()))


def test_retaining_nothing_is_refused(files: MemoryFiles) -> None:
    with pytest.raises(ValueError, match="keep must be at least 1"):
        CheckpointStore(files, JOB, keep=0)


# ---- two drivers ----
def test_an_overtaken_driver_can_neither_complete_nor_clean(files: MemoryFiles) -> None:
    old = owned(files)
    take(old, files, 1, 1)
    new = owned(files)
    with pytest.raises(Fenced, match="another driver has claimed"):
        take(old, files, 2, 1)
    with pytest.raises(Fenced, match="another driver has claimed"):
        old.clean(aborted=[CheckpointId(2)])
    take(new, files, 2, 2)
    assert new.completed() == [1, 2]
    assert read_all(files, new.load()) == expected(2)


def test_an_overtaken_driver_stays_fenced(files: MemoryFiles) -> None:
    old = owned(files)
    owned(files)
    for _ in range(3):
        with pytest.raises(Fenced):
            take(old, files, 1, 1)
    assert old.completed() == []


def test_a_driver_that_slept_past_the_cleaned_history_is_fenced_too(files: MemoryFiles) -> None:
    old = owned(files)
    new = owned(files, keep=1)
    for number in range(1, HISTORY + 20):
        take(new, files, number, 2)
        new.clean()
    assert layout.log_path(2) not in paths(files), "the entry that the old driver would write is deleted history"
    with pytest.raises(Fenced, match="already followed by entry"):
        take(old, files, 500, 1)
    newest = CheckpointId(HISTORY + 19)
    assert new.load().checkpoint == newest
    assert owned(files).load().checkpoint == newest
    assert not new.is_complete(CheckpointId(500))


def claim_before_the_next_create(files: MemoryFiles) -> list[Claim]:
    """Lets another driver claim just before the next conditional create; its claim will be in the list."""
    claims: list[Claim] = []

    def overtake(operation: str, path: str) -> None:
        if operation == "create":
            files.before = lambda operation, path: None
            claims.append(CheckpointStore(files, JOB).claim())

    files.before = overtake
    return claims


def test_of_two_drivers_that_claim_at_once_both_get_a_generation_of_their_own(files: MemoryFiles) -> None:
    owned(files)
    others = claim_before_the_next_create(files)
    first = CheckpointStore(files, JOB).claim()
    assert (others[0].generation, first.generation) == (2, 3)


def test_two_drivers_may_meet_in_an_empty_directory(files: MemoryFiles) -> None:
    others = claim_before_the_next_create(files)
    first = CheckpointStore(files, JOB).claim()
    assert (others[0].generation, first.generation) == (1, 2)


def test_a_completion_that_loses_the_race_against_a_claim_is_fenced(files: MemoryFiles) -> None:
    old = owned(files)
    others = claim_before_the_next_create(files)
    with pytest.raises(Fenced):
        take(old, files, 1, 1)
    assert others[0].newest is None


def test_a_record_of_another_generation_is_refused(files: MemoryFiles) -> None:
    store = owned(files)
    with pytest.raises(Fenced, match="taken in generation 9"):
        store.complete(record_of(1, 9, write_data(files, 1, 9)))


def test_both_generations_may_write_data_under_the_same_id(files: MemoryFiles) -> None:
    old = owned(files)
    new = owned(files)
    write_data(files, 1, 1)
    take(new, files, 1, 2)
    write_data(files, 1, 1)
    with pytest.raises(Fenced):
        old.complete(record_of(1, 1, write_data(files, 1, 1)))
    assert read_all(files, new.load()) == expected(1)
    new.clean()
    assert all("/g2" in path for path in paths(files, "checkpoints"))
    assert read_all(files, new.load()) == expected(1)


# ---- lost answers ----
def test_a_completion_whose_answer_was_lost_is_found_to_be_complete(files: MemoryFiles) -> None:
    store = owned(files)

    def lose_answer(operation: str, path: str) -> None:
        if operation == "create":
            raise OSError(errno.EIO, "connection reset", path)

    files.after = lose_answer
    with pytest.raises(OSError, match="connection reset"):
        take(store, files, 1, 1)
    files.after = lambda operation, path: None
    assert store.is_complete(CheckpointId(1))
    take(store, files, 2, 1)
    assert store.completed() == [1, 2]


def test_repeating_a_completion_whose_answer_was_lost_does_not_touch_what_is_complete(files: MemoryFiles) -> None:
    store = owned(files)
    record = record_of(1, 1, write_data(files, 1, 1))

    def lose_answer(operation: str, path: str) -> None:
        if operation == "create":
            raise OSError(errno.EIO, "connection reset", path)

    files.after = lose_answer
    with pytest.raises(OSError, match="connection reset"):
        store.complete(record)
    files.after = lambda operation, path: None
    later = record_of(1, 1, record.subtasks, {Uid("out"): (b"something else",)})
    store.complete(later)
    assert store.load() == record


class LateFiles(MemoryFiles):
    """A network that holds a request back: the client gives up, the request arrives later."""

    def __init__(self) -> None:
        super().__init__()
        self.hold = False
        self.held: list[tuple[str, bytes]] = []

    def create(self, path: str, content: bytes) -> None:
        if self.hold:
            self.held.append((path, content))
            raise TimeoutError(errno.ETIMEDOUT, "no answer", path)
        super().create(path, content)

    def arrive(self) -> None:
        for path, content in self.held:
            with contextlib.suppress(FileExistsError):
                super().create(path, content)


def test_a_completion_that_was_given_up_cannot_arrive_late() -> None:
    files = LateFiles()
    store = owned(files)
    take(store, files, 1, 1)
    files.hold = True
    with pytest.raises(TimeoutError):
        take(store, files, 2, 1)
    with pytest.raises(TimeoutError):
        store.is_complete(CheckpointId(2))
    files.hold = False
    assert not store.is_complete(CheckpointId(2))
    store.clean(aborted=[CheckpointId(2)])
    files.arrive()
    assert not store.is_complete(CheckpointId(2))
    assert CheckpointStore(files, JOB).load().checkpoint == 1
    take(store, files, 3, 1)
    assert store.completed() == [1, 3]


@pytest.mark.parametrize("arrives", ["before it is repeated", "while it is repeated", "later", "never"])
def test_a_repeated_completion_agrees_with_whichever_request_arrived(arrives: str) -> None:
    files = LateFiles()
    store = owned(files)
    first = record_of(1, 1, write_data(files, 1, 1))
    second = record_of(1, 1, first.subtasks, {Uid("out"): (b"something else",)})
    files.hold = True
    with pytest.raises(TimeoutError):
        store.complete(first)
    files.hold = False
    assert store.completed() == []
    if arrives == "before it is repeated":
        files.arrive()
    if arrives == "while it is repeated":
        files.before = lambda operation, path: files.arrive() if operation == "names" else None
    store.complete(second)
    if arrives == "later":
        files.arrive()
    assert store.load() == (second if arrives in ("later", "never") else first)
    assert owned(files).completed() == [1]


def test_cleaning_after_a_lost_answer_settles_it_first() -> None:
    files = LateFiles()
    store = owned(files)
    take(store, files, 1, 1)
    files.hold = True
    with pytest.raises(TimeoutError):
        take(store, files, 2, 1)
    files.hold = False
    store.clean(aborted=[CheckpointId(2)])
    files.arrive()
    assert read_all(files, owned(files).load()) == expected(1)


def test_a_completion_that_arrived_before_it_was_given_up_is_complete() -> None:
    files = LateFiles()
    store = owned(files)
    files.hold = True
    with pytest.raises(TimeoutError):
        take(store, files, 1, 1)
    files.hold = False
    files.arrive()
    assert store.is_complete(CheckpointId(1))
    store.clean(aborted=[CheckpointId(1)])
    assert read_all(files, store.load()) == expected(1)


def test_an_overtaken_driver_learns_the_fate_of_its_last_completion() -> None:
    files = LateFiles()
    old = owned(files)
    files.hold = True
    with pytest.raises(TimeoutError):
        take(old, files, 1, 1)
    files.hold = False
    owned(files)
    assert not old.is_complete(CheckpointId(1))
    files.arrive()
    assert not old.is_complete(CheckpointId(1))
    with pytest.raises(Fenced):
        take(old, files, 2, 1)


def test_a_client_that_repeats_requests_by_itself_does_not_fence_its_own_driver(files: MemoryFiles) -> None:
    """The first try created the entry, its answer got lost, the second try was refused."""
    store = owned(files)

    def refuse_repetition(operation: str, path: str) -> None:
        if operation == "create":
            files.after = lambda operation, path: None
            raise FileExistsError(errno.EEXIST, "exists already", path)

    files.after = refuse_repetition
    record = take(store, files, 1, 1)
    assert store.load() == record
    files.after = refuse_repetition
    claim = CheckpointStore(files, JOB).claim()
    assert (claim.generation, claim.newest) == (3, record), "the claim that it did not recognise stays unused"


def test_a_checkpoint_that_a_newer_driver_completed_is_not_taken_for_ones_own(files: MemoryFiles) -> None:
    old = owned(files)
    new = owned(files)
    take(new, files, 1, 2)
    assert not old.is_complete(CheckpointId(1))
    with pytest.raises(Fenced):
        take(old, files, 1, 1)
    assert new.is_complete(CheckpointId(1))
    assert owned(files).is_complete(CheckpointId(1)), "what earlier drivers completed is complete"


# ---- cleaning ----
def test_only_the_retained_checkpoints_stay(files: MemoryFiles) -> None:
    store = owned(files, keep=2)
    for number in range(1, 6):
        take(store, files, number, 1)
    report = store.clean()
    assert report.retained == (4, 5)
    assert store.completed() == [4, 5]
    assert {path.split("/")[1] for path in paths(files, "checkpoints")} == {"4", "5"}
    assert read_all(files, store.load(CheckpointId(4))) == expected(4)


def test_a_removed_checkpoint_is_named_as_such(files: MemoryFiles) -> None:
    store = owned(files, keep=1)
    for number in (1, 2):
        take(store, files, number, 1)
    store.clean()
    take(store, files, 3, 1)
    with pytest.raises(NotComplete, match="retention has removed it"):
        store.load(CheckpointId(1))


def test_unfinished_checkpoints_go_once_a_newer_one_is_complete(files: MemoryFiles) -> None:
    store = owned(files)
    write_data(files, 1, 1)
    store.clean()
    assert paths(files, "checkpoints/1"), "it may still complete"
    take(store, files, 2, 1)
    store.clean()
    assert not paths(files, "checkpoints/1")


def test_an_aborted_checkpoint_goes_at_once(files: MemoryFiles) -> None:
    store = owned(files)
    take(store, files, 1, 1)
    write_data(files, 2, 1)
    write_data(files, 3, 1)
    store.clean(aborted=[CheckpointId(2)])
    assert not paths(files, "checkpoints/2")
    assert len(paths(files, "checkpoints/3")) == len(SUBTASKS)


def test_calling_a_complete_checkpoint_aborted_does_not_delete_it(files: MemoryFiles) -> None:
    store = owned(files)
    take(store, files, 1, 1)
    store.clean(aborted=[CheckpointId(1)])
    assert read_all(files, store.load()) == expected(1)


def test_what_a_fenced_generation_left_behind_goes(files: MemoryFiles) -> None:
    old = owned(files)
    take(old, files, 1, 1)
    write_data(files, 9, 1)
    new = owned(files)
    write_data(files, 9, 2)
    new.clean()
    assert {path.split("/")[2][:2] for path in paths(files, "checkpoints/9")} == {"g2"}


def test_files_of_other_people_are_left_alone(files: MemoryFiles) -> None:
    store = owned(files, keep=1)
    for number in (1, 2):
        take(store, files, number, 1)
    files.write("checkpoints/1/notes.txt", [b"mine"])
    files.write("checkpoints/README", [b"mine"])
    store.clean()
    assert paths(files, "checkpoints/1") == ["checkpoints/1/notes.txt"]
    assert "checkpoints/README" in paths(files)


def test_a_broken_newest_checkpoint_does_not_cost_the_last_good_one(files: MemoryFiles) -> None:
    store = owned(files, keep=1)
    take(store, files, 1, 1)
    take(store, files, 2, 1)
    victim = next(path for path in paths(files, "checkpoints/2") if path.endswith(".data"))
    files.delete(victim)
    report = store.clean()
    assert report.broken == (2,)
    assert read_all(files, store.load(CheckpointId(1))) == expected(1)


def test_a_checkpoint_that_is_being_restored_from_stays_until_the_next_one_completes(files: MemoryFiles) -> None:
    first = owned(files)
    for number in (1, 2, 3):
        take(first, files, number, 1)
    store = CheckpointStore(files, JOB, keep=1)
    claim = store.claim(CheckpointId(1))
    store.clean()
    assert claim.newest is not None
    assert read_all(files, claim.newest) == expected(1)
    take(store, files, 4, 2)
    assert store.clean().retained == (4,)


def test_the_log_stays_short_and_keeps_its_last_entries(files: MemoryFiles) -> None:
    store = owned(files, keep=2)
    for number in range(1, 2 * HISTORY):
        take(store, files, number, 1)
        store.clean()
    assert len(paths(files, "log")) == HISTORY
    claim = CheckpointStore(files, JOB).claim()
    assert (claim.generation, claim.next_id) == (2, 2 * HISTORY)


def test_a_claim_reads_only_the_entries_that_count(files: MemoryFiles) -> None:
    store = owned(files, keep=2)
    for number in range(1, 50):
        take(store, files, number, 1)
        store.clean()
    read = []
    files.before = lambda operation, path: read.append(path) if operation == "read" else None
    CheckpointStore(files, JOB).claim()
    assert len([path for path in read if path.startswith("log/")]) < 10


def test_a_subtask_without_state_needs_no_file(files: MemoryFiles) -> None:
    store = owned(files)
    record = record_of(1, 1, [SubtaskRecord(subtask, finished=True) for subtask in SUBTASKS])
    store.complete(record)
    assert store.load() == record
    assert paths(files, "checkpoints") == ["checkpoints/1/g1.committables", "checkpoints/1/g1.json"]


# ---- identity ----
def test_a_log_without_an_owner_is_refused(files: MemoryFiles) -> None:
    take(owned(files), files, 1, 1)
    files.delete(layout.IDENTITY)
    with pytest.raises(CorruptCheckpoint, match=r"penstock\.json: the file is missing"):
        CheckpointStore(files, JOB).claim()


def test_a_generation_is_never_given_out_twice(files: MemoryFiles) -> None:
    generations = [CheckpointStore(files, JOB).claim().generation for _ in range(5)]
    assert generations == [Generation(number) for number in range(1, 6)]
