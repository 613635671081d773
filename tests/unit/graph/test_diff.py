"""Whether a program restores from a checkpoint: per operator and state, decided from the metadata alone."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.core.barrier import Mode, Purpose
from penstock.core.handles import PartHandle, PartKind
from penstock.core.ids import Attempt, CheckpointId, Generation, SubtaskId, Uid
from penstock.core.record import CheckpointRecord, SubtaskRecord
from penstock.core.restore import DoesNotFit
from penstock.graph.diff import Verdict, diff, restorable
from penstock.graph.job import JobGraph
from penstock.graph.record import graph_record
from penstock.store.documents import Metadata, seal, to_metadata, to_record, unseal


class Old(ps.KeyedFunction):
    total = ps.value(int, default=0)
    names = ps.list(str)
    seen = ps.operator_list(int)

    def process(self, row: Any, ctx: ps.KeyedContext) -> None: ...


def graph(function: Any, *, key: str = "user", uid: str = "keep") -> JobGraph:
    p = ps.Pipeline("job", parallelism=1)
    rows = p.source(ps.sources.Generator(10, {"user": lambda i: i, "shop": lambda i: i % 3}), uid="in")
    kept = rows.key_by(key).process(function, returns={"user": int}, uid=uid)
    kept.sink(ps.sinks.Discard(), uid="out")
    return p.graph()


def checkpoint(of: JobGraph) -> CheckpointRecord:
    """One in which every declared state has a part, as it is read back from its metadata."""
    subtasks = tuple(
        SubtaskRecord(
            SubtaskId(chain.id, 0),
            tuple(
                PartHandle(spec.uid, name, PartKind.KEYED, "file", 0, 1, 0)
                for spec in chain.operators
                for name in [state.name for state in spec.states] or ["splits"]
                if spec.stateful
            ),
        )
        for chain in of.chains
    )
    record = CheckpointRecord(
        CheckpointId(3), Generation(1), Attempt(1), Mode.ALIGNED, Purpose.CHECKPOINT, 0, 0, graph_record(of), subtasks
    )
    content = memoryview(seal(to_metadata(record, None)))
    read = to_record(unseal("metadata", content, Metadata), {})
    assert read == record
    return read


def verdicts(function: Any, **more: Any) -> dict[tuple[str, str | None], Verdict]:
    found = diff(checkpoint(graph(Old)), graph(function, **more))
    return {(one.uid, one.state): one.verdict for one in found.differences}


def test_the_same_program_restores() -> None:
    record = checkpoint(graph(Old))
    assert diff(record, graph(Old)).restorable
    assert set(verdicts(Old).values()) == {Verdict.SAME}
    assert restorable(record, graph(Old)) is record


class Changed(ps.KeyedFunction):
    total = ps.value(float, default=0.0)
    names = ps.list(int)
    extra = ps.map(str, int)

    def process(self, row: Any, ctx: ps.KeyedContext) -> None: ...


def test_every_state_has_its_verdict() -> None:
    assert verdicts(Changed) == {
        ("in", None): Verdict.SAME,
        ("out", None): Verdict.SAME,
        ("keep", "total"): Verdict.CHANGED,
        ("keep", "names"): Verdict.INCOMPATIBLE,
        ("keep", "seen"): Verdict.DROPPED,
        ("keep", "extra"): Verdict.NEW,
    }


def test_a_state_that_cannot_be_read_is_refused_with_both_types() -> None:
    with pytest.raises(
        DoesNotFit, match=r"'names' was stored as list state of list\[str\], but is declared as list"
    ) as e:
        restorable(checkpoint(graph(Old)), graph(Changed), allow_dropped_state=True)
    assert "str cannot become int" in str(e.value)


class Smaller(ps.KeyedFunction):
    total = ps.value(int, default=0)
    names = ps.list(str)

    def process(self, row: Any, ctx: ps.KeyedContext) -> None: ...


def test_state_is_dropped_only_if_that_is_allowed() -> None:
    record = checkpoint(graph(Old))
    with pytest.raises(DoesNotFit, match=r"the state 'seen' of operator 'keep' .* allow_dropped_state=True"):
        restorable(record, graph(Smaller))
    left = restorable(record, graph(Smaller), allow_dropped_state=True)
    assert {handle.name for entry in left.subtasks for handle in entry.handles if handle.uid == Uid("keep")} == {
        "total",
        "names",
    }


def test_an_operator_of_another_uid_is_new_and_the_old_one_is_dropped() -> None:
    found = verdicts(Old, uid="other")
    assert found["keep", "total"] is Verdict.DROPPED
    assert found["other", "total"] is Verdict.NEW
    with pytest.raises(DoesNotFit, match="all state of operator 'keep'"):
        restorable(checkpoint(graph(Old)), graph(Old, uid="other"))


def test_another_key_makes_the_state_unreadable() -> None:
    found = diff(checkpoint(graph(Old)), graph(Old, key="shop"))
    (bad,) = [one for one in found.differences if one.verdict is Verdict.INCOMPATIBLE]
    assert "stored under the key (user: int64), but the program keys the stream by (shop: int64)" in bad.why
    assert not found.restorable


def test_what_does_not_fit_as_a_whole_is_told_too() -> None:
    record = checkpoint(graph(Old))
    other = ps.Pipeline("another")
    other.source(ps.sources.Generator(1, {"user": lambda i: i}), uid="in").sink(ps.sinks.Discard(), uid="out")
    assert "belongs to job 'job', this is job 'another'" in diff(record, other.graph()).problem
