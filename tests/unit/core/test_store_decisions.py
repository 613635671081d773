"""What a job's directory means and what may be done with it: the pure decisions."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import CheckpointId, Generation
from penstock.core.store import (
    HISTORY,
    Claimed,
    Classified,
    Completed,
    DamagedLog,
    Facts,
    Fate,
    Fenced,
    Log,
    References,
    StoredFile,
    check_last,
    check_owner,
    claim,
    classify,
    complete,
    counting,
    deletions,
    next_checkpoint,
    read_log,
    restorable,
    void,
)


def claimed(number: int, generation: int, oldest: int = 1) -> Claimed:
    return Claimed(number, Generation(generation), oldest)


def completed(number: int, checkpoint: int, generation: int = 1, oldest: int = 1) -> Completed:
    metadata = f"checkpoints/{checkpoint}/g{generation}.json"
    return Completed(number, Generation(generation), oldest, CheckpointId(checkpoint), metadata, 0)


def log_of(*checkpoints: int) -> Log:
    """One driver that completed these."""
    return read_log([claimed(1, 1), *(completed(2 + at, number) for at, number in enumerate(checkpoints))])


# ---- the log ----
def test_an_empty_log_has_no_owner_and_no_checkpoint() -> None:
    log = read_log([])
    assert (log.generation, log.next_number, log.newest) == (0, 1, None)


def test_the_last_entry_tells_the_owner_and_the_newest_checkpoint_may_be_of_an_earlier_one() -> None:
    log = read_log([claimed(1, 1), completed(2, 7), claimed(3, 2)])
    assert (log.generation, log.next_number) == (2, 4)
    assert log.newest == completed(2, 7)


def test_entries_before_the_oldest_that_counts_are_ignored() -> None:
    stray = completed(3, 99)
    log = read_log([stray, completed(8, 5, oldest=8), completed(9, 6, oldest=8)])
    assert [entry.checkpoint for entry in log.completions] == [5, 6]


def test_a_hole_among_the_entries_that_count_is_damage() -> None:
    with pytest.raises(DamagedLog, match="log entry 2 is missing") as raised:
        read_log([claimed(1, 1), completed(3, 5)])
    assert raised.value.number == 2
    with pytest.raises(DamagedLog, match="log entry 4 is missing"):
        counting([1, 3, 5], claimed(5, 2, oldest=3))


@pytest.mark.parametrize(
    "entries",
    [
        [claimed(1, 2), claimed(2, 2)],
        [claimed(1, 2), claimed(2, 1)],
        [claimed(1, 2), completed(2, 5, generation=1)],
        [claimed(1, 2), completed(2, 5, generation=3)],
    ],
)
def test_generations_rise_with_claims_and_only_with_them(entries: list[Claimed | Completed]) -> None:
    with pytest.raises(DamagedLog, match="cannot follow"):
        read_log(entries)


def test_a_claim_takes_the_next_generation_and_number() -> None:
    assert claim(Log(), ()) == claimed(1, 1)
    assert claim(log_of(4), ()) == claimed(3, 2, oldest=2)


def test_an_entry_still_needs_every_completion_whose_metadata_is_there() -> None:
    log = log_of(4, 5, 6)
    assert claim(log, {"checkpoints/5/g1.json", "checkpoints/6/g1.json"}).oldest == 3
    assert claim(log, ()).oldest == 4, "the newest counts even if its metadata got lost"


def test_the_first_completion_needs_nothing_before_it() -> None:
    assert complete(log_of(), Generation(1), CheckpointId(1), "m", 7, ()).oldest == 2


def test_only_the_owner_completes() -> None:
    log = read_log([claimed(1, 1), claimed(2, 2)])
    with pytest.raises(Fenced, match="generation 2 is newer than this driver's 1"):
        complete(log, Generation(1), CheckpointId(1), "m", 0, ())
    with pytest.raises(Fenced):
        check_owner(log, Generation(1))
    check_owner(log, Generation(2))


def test_a_void_takes_the_next_number_and_changes_nothing_else() -> None:
    log = log_of(4, 5)
    existing = {entry.metadata for entry in log.completions}
    after = log.with_entry(void(log, Generation(1), existing))
    assert after.next_number == log.next_number + 1
    assert (after.generation, after.completions) == (log.generation, log.completions)
    with pytest.raises(Fenced):
        void(log.with_entry(claim(log, existing)), Generation(1), existing)


def test_an_append_that_is_not_the_last_entry_means_another_owner() -> None:
    check_last([1, 2, 3], 3)
    with pytest.raises(Fenced, match="entry 3 is already followed by entry 200"):
        check_last([3, 150, 200], 3)


def test_the_next_id_is_above_everything_seen() -> None:
    assert next_checkpoint(Log(), ()) == 1
    assert next_checkpoint(log_of(4), ()) == 5
    assert next_checkpoint(log_of(4), [CheckpointId(9), CheckpointId(2)]) == 10


# ---- cleaning ----
DATA, METADATA = "g1-a1-total-0-0.data", "g1.json"


def stored(checkpoint: int, name: str, generation: int = 1) -> StoredFile:
    return StoredFile(f"checkpoints/{checkpoint}/{name}", 10, CheckpointId(checkpoint), Generation(generation))


def files_of(checkpoint: int) -> list[StoredFile]:
    return [stored(checkpoint, METADATA), stored(checkpoint, DATA)]


def needs(checkpoint: int, *others: str) -> References:
    own = (f"checkpoints/{checkpoint}/{METADATA}", f"checkpoints/{checkpoint}/{DATA}")
    return dict.fromkeys((*own, *others), 10)


def cleaned(
    complete_ids: Collection[int],
    files: list[StoredFile],
    keep: int = 2,
    aborted: Collection[int] = (),
    pinned: Collection[int] = (),
    generation: int = 1,
    references: dict[CheckpointId, References | None] | None = None,
) -> Classified:
    log = log_of(*complete_ids)
    there = {file.path for file in files}
    known = {entry.checkpoint: needs(entry.checkpoint) for entry in log.completions if entry.metadata in there} | (
        references or {}
    )
    return classify(
        Facts(
            log,
            [entry.number for entry in log.entries],
            files,
            known,
            Generation(generation),
            keep,
            [CheckpointId(number) for number in aborted],
            [CheckpointId(number) for number in pinned],
        )
    )


def all_files(*checkpoints: int) -> list[StoredFile]:
    return [file for checkpoint in checkpoints for file in files_of(checkpoint)]


def test_metadata_is_deleted_before_the_data_that_it_names() -> None:
    result = cleaned([1, 2, 3, 4], all_files(1, 2, 3, 4))
    assert result.subsumed == (1, 2)
    metadata = {f"checkpoints/{number}/{METADATA}" for number in range(1, 5)}
    assert deletions(result, metadata) == (
        f"checkpoints/1/{METADATA}",
        f"checkpoints/2/{METADATA}",
        f"checkpoints/1/{DATA}",
        f"checkpoints/2/{DATA}",
    )


def test_a_file_that_a_retained_checkpoint_shares_stays() -> None:
    shared = f"checkpoints/1/{DATA}"
    result = cleaned([1, 2, 3], all_files(1, 2, 3), references={CheckpointId(3): needs(3, shared)})
    assert result.files[shared] is Fate.KEPT
    assert result.files[f"checkpoints/1/{METADATA}"] is Fate.SUBSUMED


def test_broken_checkpoints_subsume_nobody() -> None:
    without_data = [file for file in all_files(1, 2, 3) if file.path != f"checkpoints/3/{DATA}"]
    result = cleaned([1, 2, 3], without_data, keep=2)
    assert (result.retained, result.broken) == ((1, 2, 3), (3,))


def test_a_file_that_is_too_short_breaks_its_checkpoint() -> None:
    sizes = dict.fromkeys(needs(1), 9)
    assert not restorable(needs(1), sizes)
    assert restorable(needs(1), {path: 10 for path in sizes})
    assert not restorable(None, sizes)


def test_the_newest_checkpoint_is_not_touched_even_if_its_metadata_is_gone() -> None:
    result = cleaned([1, 2], [*files_of(1), stored(2, DATA)], keep=1)
    assert result.files == {
        f"checkpoints/1/{METADATA}": Fate.KEPT,
        f"checkpoints/1/{DATA}": Fate.KEPT,
        f"checkpoints/2/{DATA}": Fate.KEPT,
    }


def test_a_pinned_checkpoint_stays_whatever_its_age() -> None:
    assert cleaned([1, 2, 3], all_files(1, 2, 3), keep=1, pinned=[1]).retained == (1, 3)


def test_what_is_in_the_making_stays_until_it_is_aborted() -> None:
    files = [*files_of(1), stored(2, DATA), stored(3, DATA)]
    result = cleaned([1], files, aborted=[2])
    assert result.files[f"checkpoints/2/{DATA}"] is Fate.ABANDONED
    assert result.files[f"checkpoints/3/{DATA}"] is Fate.PENDING


def test_aborting_never_touches_files_of_a_newer_generation() -> None:
    newer = "g2-a1-total-0-0.data"
    result = cleaned([1], [*files_of(1), stored(2, newer, generation=2)], aborted=[2])
    assert result.files[f"checkpoints/2/{newer}"] is Fate.PENDING


def test_what_a_fenced_generation_wrote_is_abandoned() -> None:
    result = cleaned([1], [*files_of(1), stored(9, DATA)], generation=2)
    assert result.files[f"checkpoints/9/{DATA}"] is Fate.ABANDONED


def test_a_file_that_nobody_references_is_an_orphan_in_a_retained_checkpoint() -> None:
    stray = "g1-a1-total-0-7.data"
    result = cleaned([1], [*files_of(1), stored(1, stray)])
    assert result.files[f"checkpoints/1/{stray}"] is Fate.ORPHANED


def test_of_the_log_the_last_entries_and_all_that_count_stay() -> None:
    def history_of(last: Completed) -> tuple[int, ...]:
        entries = [completed(number, number, oldest=last.oldest) for number in range(last.oldest, last.number)]
        log = read_log([*entries, last])
        return classify(Facts(log, range(1, last.number + 1), [], {}, Generation(1), 1)).history

    assert history_of(completed(HISTORY, HISTORY, oldest=HISTORY)) == ()
    assert history_of(completed(HISTORY + 3, HISTORY + 3, oldest=HISTORY)) == (1, 2, 3)
    assert history_of(completed(HISTORY + 3, HISTORY + 3, oldest=2)) == (1,)


# ---- histories ----
@st.composite
def histories(draw: st.DrawFn) -> tuple[Log, Facts]:
    """Several drivers that complete, abort and die; files that get lost; a driver that cleans."""
    entries: list[Claimed | Completed] = []
    files: dict[str, StoredFile] = {}
    references: dict[CheckpointId, References | None] = {}
    generation, checkpoint = 0, 0
    for step in draw(st.lists(st.sampled_from(["claim", "complete", "start", "start"]), min_size=1, max_size=25)):
        number = len(entries) + 1
        if step == "claim" or generation == 0:
            generation += 1
            entries.append(claimed(number, generation))
            continue
        checkpoint += 1
        data = StoredFile(
            f"checkpoints/{checkpoint}/g{generation}-a1-t-0-0.data",
            10,
            CheckpointId(checkpoint),
            Generation(generation),
        )
        files[data.path] = data
        if step == "complete":
            entry = completed(number, checkpoint, generation)
            entries.append(entry)
            files[entry.metadata] = StoredFile(entry.metadata, 10, entry.checkpoint, entry.generation)
            shared = draw(st.sampled_from(sorted(files)))
            references[entry.checkpoint] = {
                **({shared: 1} if shared.endswith(".data") else {}),
                entry.metadata: 1,
                data.path: 10,
            }
    lost = draw(st.sets(st.sampled_from(sorted(files)), max_size=3)) if files else set()
    left = [file for path, file in sorted(files.items()) if path not in lost]
    log = read_log(entries)
    there = {entry.checkpoint: references[entry.checkpoint] for entry in log.completions if entry.metadata not in lost}
    unreadable = draw(st.sets(st.sampled_from(sorted(there)), max_size=1)) if there else set()
    facts = Facts(
        log,
        range(1, len(entries) + 1),
        left,
        {name: None if name in unreadable else known for name, known in there.items()},
        Generation(generation),
        draw(st.integers(1, 4)),
        draw(st.lists(st.integers(1, checkpoint + 1).map(CheckpointId), max_size=3)),
        draw(st.lists(st.integers(1, checkpoint + 1).map(CheckpointId), max_size=1)),
    )
    return log, facts


def whole(facts: Facts, files: Collection[StoredFile]) -> list[CheckpointId]:
    """The checkpoints that could be restored if these files were all there is."""
    sizes = {file.path: file.size for file in files}
    return [name for name, known in facts.references.items() if restorable(known, sizes)]


@given(histories())
def test_at_every_moment_of_cleaning_the_newest_restorable_checkpoints_stay_restorable(
    history: tuple[Log, Facts],
) -> None:
    _, facts = history
    before = sorted(whole(facts, facts.files))
    metadata = {entry.metadata for entry in facts.log.completions}
    doomed = deletions(classify(facts), metadata)
    left = {file.path: file for file in facts.files}
    for path in doomed:
        del left[path]
        now = sorted(whole(facts, left.values()))
        assert now[-facts.keep :] == before[-facts.keep :]
        complete_on_paper = [name for name in before if f"checkpoints/{name}/" in path]
        for name in complete_on_paper:
            if any(file in left for file in metadata if f"checkpoints/{name}/" in file):
                assert name in now, "a checkpoint whose metadata is there is whole"


@given(histories())
def test_every_file_has_one_fate_and_nothing_in_the_making_goes(history: tuple[Log, Facts]) -> None:
    log, facts = history
    result = classify(facts)
    assert set(result.files) == {file.path for file in facts.files}
    newest = log.newest.checkpoint if log.newest else 0
    for file in facts.files:
        if file.checkpoint >= newest and file.generation == facts.generation and file.checkpoint not in facts.aborted:
            if file.checkpoint == newest and file.checkpoint in facts.references:
                continue
            assert not result.files[file.path].deletable


@given(histories())
def test_cleaning_twice_finds_nothing_more_to_do(history: tuple[Log, Facts]) -> None:
    _, facts = history
    first = classify(facts)
    left = [file for file in facts.files if not first.files[file.path].deletable]
    paths = {file.path for file in left}
    known = {
        entry.checkpoint: facts.references[entry.checkpoint]
        for entry in facts.log.completions
        if entry.metadata in paths and entry.checkpoint in facts.references
    }
    again = classify(
        Facts(facts.log, facts.log_numbers, left, known, facts.generation, facts.keep, facts.aborted, facts.pinned)
    )
    assert not any(fate.deletable for fate in again.files.values())
    assert set(whole(facts, left)) >= set(whole(facts, facts.files)[-facts.keep :])


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 4))
def test_a_log_that_forgets_cleaned_checkpoints_always_reads_back(steps: list[bool], keep: int) -> None:
    """Claims and completions in any order, retention after each: what counts stays readable and short."""
    log = read_log([claim(Log(), ())])
    existing: list[str] = []
    checkpoint = 0
    for completes in steps:
        if completes:
            checkpoint += 1
            path = f"checkpoints/{checkpoint}/g{log.generation}.json"
            entry = complete(log, log.generation, CheckpointId(checkpoint), path, 0, existing)
            existing = [*existing, path][-keep:]
            log = log.with_entry(entry)
        else:
            log = log.with_entry(claim(log, existing))
        assert log == read_log(log.entries)
        assert {entry.metadata for entry in log.completions} >= set(existing)
        assert log.newest is None or log.newest.checkpoint == checkpoint
        assert len(log.completions) <= keep + 1
