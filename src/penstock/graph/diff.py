"""Would this program restore from that checkpoint? Per operator and state, and as a whole.

The same comparison answers `penstock diff` and decides before every restore: a checkpoint's metadata says of every
state what type it has, so nothing but the metadata is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from penstock.core.dropped import dropped_state, operators_of, without
from penstock.core.ids import ChainId, Uid
from penstock.core.record import CheckpointRecord, GraphRecord, OperatorRecord, StateRecord
from penstock.core.restore import DoesNotFit, check_fits
from penstock.graph.job import DeclaredState, JobGraph, OperatorSpec
from penstock.graph.record import graph_record
from penstock.state.schema import fits, show
from penstock.state.tables import StateMismatch


class Verdict(StrEnum):
    SAME = "same"
    CHANGED = "changed"
    """Of another type, which can be read."""
    MOVED = "moved"
    """The same, in another chain of operators."""
    NEW = "new"
    DROPPED = "dropped"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True)
class Difference:
    uid: Uid
    operator: str
    state: str | None
    """None: the operator as a whole, whose states are not declared by the user."""
    verdict: Verdict
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "uid": self.uid,
            "operator": self.operator,
            "state": self.state,
            "verdict": str(self.verdict),
            "why": self.why,
        }


@dataclass(frozen=True)
class Diff:
    differences: tuple[Difference, ...]
    problem: str = ""
    """Why the checkpoint as a whole does not fit (key groups, records in flight, parallelism); empty if it does."""

    @property
    def restorable(self) -> bool:
        """Without dropping anything."""
        bad = (Verdict.INCOMPATIBLE, Verdict.DROPPED)
        return not self.problem and all(one.verdict not in bad for one in self.differences)


def diff(record: CheckpointRecord, graph: JobGraph) -> Diff:
    differences = tuple(_differences(record, graph))
    now = graph_record(graph)
    try:
        check_fits(without(record, dropped_state(record, now)), now)
    except DoesNotFit as reason:
        return Diff(differences, str(reason))
    return Diff(differences)


def restorable(record: CheckpointRecord, graph: JobGraph, *, allow_dropped_state: bool = False) -> CheckpointRecord:
    """The checkpoint as it is to be restored. Raises `DoesNotFit` if a state cannot be read as it is declared now, or
    has no place any more and may not be dropped."""
    bad = [one.why for one in _differences(record, graph) if one.verdict is Verdict.INCOMPATIBLE]
    where = f"checkpoint {record.checkpoint}"
    if bad:
        raise DoesNotFit(f"{where} holds state that this program cannot read:\n" + "\n".join(f"- {why}" for why in bad))
    dropped = dropped_state(record, graph_record(graph))
    if not dropped:
        return record
    if not allow_dropped_state:
        raise DoesNotFit(
            f"{where} holds state that this program has no place for: {'; '.join(map(str, dropped))}. Declare it "
            "again, or give the operator that should take it over the uid that it had; to restore without it, start "
            "with allow_dropped_state=True."
        )
    return without(record, dropped)


def _differences(record: CheckpointRecord, graph: JobGraph) -> Iterator[Difference]:
    old, old_chains = operators_of(record.graph), _chains(record.graph)
    new = {spec.uid: (spec, chain.id) for chain in graph.chains for spec in chain.operators}
    for uid, operator in old.items():
        if uid not in new:
            yield from _gone(operator)
        elif operator.stateful or new[uid][0].stateful:
            spec, chain = new[uid]
            yield from _compared(operator, spec, moved=old_chains[uid] != chain)
    for uid, (spec, _) in new.items():
        if uid not in old and spec.stateful:
            for name in _names(spec.states):
                yield Difference(uid, spec.name, name, Verdict.NEW)


def _chains(graph: GraphRecord) -> dict[Uid, ChainId]:
    return {operator.uid: chain.id for chain in graph.chains for operator in chain.operators}


def _gone(operator: OperatorRecord) -> Iterator[Difference]:
    if operator.stateful:
        for name in _names(operator.states):
            yield Difference(operator.uid, operator.name, name, Verdict.DROPPED, "the program has no such operator")


def _names(states: Sequence[StateRecord | DeclaredState]) -> Sequence[str | None]:
    """Of the states; of an operator that declares none, the one that stands for all it keeps."""
    return [state.name for state in states] or (None,)


def _compared(old: OperatorRecord, new: OperatorSpec, *, moved: bool) -> Iterator[Difference]:
    same = Verdict.MOVED if moved else Verdict.SAME
    if old.key and new.key and tuple(old.key) != new.key:
        why = (
            f"operator {old.uid!r}: its state was stored under the key ({', '.join(old.key)}), but the program keys "
            f"the stream by ({', '.join(new.key)}): key it as before, or give the operator another uid to start empty"
        )
        yield Difference(old.uid, new.name, None, Verdict.INCOMPATIBLE, why)
        return
    stored, declared = {state.name: state for state in old.states}, {state.name: state for state in new.states}
    if not stored and not declared:
        yield Difference(old.uid, new.name, None, same)
    for name, state in stored.items():
        if name not in declared:
            yield Difference(old.uid, new.name, name, Verdict.DROPPED, "the operator no longer declares it")
            continue
        try:
            declared[name].check(old.uid, state.kind, dict(state.description))
        except StateMismatch as reason:
            yield Difference(old.uid, new.name, name, Verdict.INCOMPATIBLE, str(reason))
            continue
        why = _change(state, declared[name].kind, declared[name].description)
        yield Difference(old.uid, new.name, name, Verdict.CHANGED if why else same, why)
    yield from (Difference(old.uid, new.name, name, Verdict.NEW) for name in declared if name not in stored)


def _change(stored: StateRecord, kind: str, description: dict[str, Any]) -> str:
    if stored.kind == kind and fits(dict(stored.description), description):
        return ""
    return f"{show(dict(stored.description))} is read as {show(description)}"
