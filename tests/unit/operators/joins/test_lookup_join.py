"""The lookup join against a dictionary: the last row of a key at every moment, with restores at any moment and at any
parallelism."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operators.windows.harness import WindowJob

from penstock.operators.joins import lookup
from penstock.operators.joins.lookup import LookupJoinOperator
from penstock.operators.joins.shape import How, JoinSide
from penstock.state.parts import PartKind, RestoredPart
from penstock.state.tables import StateMismatch

FACTS = JoinSide(pa.schema([("n", pa.int64()), ("product", pa.string()), ("size", pa.int8())]), ("product", "size"))
SCHEMA = pa.schema([("id", pa.string()), ("size", pa.int8()), ("n", pa.int64()), ("tags", pa.list_(pa.string()))])
TABLE = JoinSide(SCHEMA, ("id", "size"))
CHANGES = JoinSide(SCHEMA.append(pa.field("op", pa.string())), ("id", "size"), changelog=True)

PRODUCTS = st.none() | st.sampled_from("abc")
SIZES = st.none() | st.integers(0, 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("facts"), st.lists(st.tuples(PRODUCTS, SIZES), min_size=1, max_size=6)),
        st.tuples(
            st.just("table"),
            st.lists(
                st.tuples(
                    PRODUCTS, SIZES, st.none() | st.lists(st.sampled_from("xy")), st.sampled_from(["insert", "delete"])
                ),
                min_size=1,
                max_size=6,
            ),
        ),
        st.tuples(st.just("restart"), st.integers(1, 3)),
    ),
    max_size=16,
)


class LookupJob(WindowJob):
    """Facts go to the subtasks in turn, the table to all."""

    def facts(self, *keys: tuple[Any, Any]) -> LookupJob:
        products, sizes = zip(*keys, strict=True)
        batch = pa.RecordBatch.from_pydict(
            {"n": list(range(len(keys))), "product": products, "size": sizes}, schema=FACTS.schema
        )
        for index, subtask in enumerate(self.subtasks):
            own = batch.take(pa.array(range(index, len(keys), self.parallelism), pa.int64()))
            if own.num_rows:
                subtask.operator.process(own, 0, subtask.out)
        return self

    def table(self, rows: list[tuple[Any, ...]], *, changelog: bool = False) -> LookupJob:
        columns = [*zip(*rows, strict=True)]
        columns.insert(2, [0] * len(rows))  # type: ignore[arg-type]
        schema = (CHANGES if changelog else TABLE).schema
        batch = pa.RecordBatch.from_pydict(dict(zip(schema.names, columns, strict=False)), schema=schema)
        for subtask in self.subtasks:
            subtask.operator.process(batch, 1, subtask.out)
        return self

    def restart_with_own_copies(self, parallelism: int) -> None:
        """As a restore deals out broadcast parts: its own copy to each, or the first one's."""
        parts = self.checkpoint()
        assert {part.kind for part in parts} == {PartKind.BROADCAST}
        before = [subtask.out for subtask in self.subtasks]
        self.parallelism, copies = parallelism, {part.subtask: part for part in parts}
        self.start(parallelism, [])
        for subtask in self.subtasks:
            own: list[RestoredPart] = [copies.get(subtask.index, parts[0])]
            subtask.operator = self.make()
            subtask.operator.open(self._context(subtask, own))
        for out in before:
            self.subtasks[0].out.batches.extend(out.batches)


def job_of(how: str = "left", table: JoinSide = TABLE, parallelism: int = 1) -> LookupJob:
    return LookupJob(lambda: LookupJoinOperator(FACTS, table, How(how)), (), parallelism)


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("changelog", [False, True])
@given(steps=STEPS, parallelism=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_each_row_is_joined_with_the_last_row_of_its_key(
    how: str, changelog: bool, steps: list[Any], parallelism: int
) -> None:
    job, known, wanted = job_of(how, CHANGES if changelog else TABLE, parallelism), dict[Any, Any](), list[Any]()
    for kind, what in steps:
        if kind == "restart":
            job.restart_with_own_copies(what)
        elif kind == "table":
            job.table(what if changelog else [row[:3] for row in what], changelog=changelog)
            for product, size, tags, operation in what:
                if changelog and operation == "delete":
                    known.pop((product, size), None)
                elif product is not None and size is not None:
                    known[product, size] = tags
        else:
            job.facts(*what)
            for n, key in enumerate(what):
                if key in known or how == "left":
                    there = key in known
                    wanted.append((n, *key, 0 if there else None, repr(known.get(key))))
    found = [(*list(row.values())[:4], repr(row["tags"])) for row in job.rows()]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


def test_an_update_of_a_changelog_is_never_half_done() -> None:
    job = job_of(table=CHANGES).table([("a", 1, ["old"], "insert")], changelog=True)
    job.table([("a", 1, ["old"], "update_before")], changelog=True).facts(("a", 1))
    job.table([("a", 1, ["new"], "update_after")], changelog=True).facts(("a", 1))
    assert [row["tags"] for row in job.rows()] == [["old"], ["new"]]


def test_the_table_does_not_grow_with_the_number_of_its_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "_SPARE_ROWS", 8)
    job = job_of()
    for turn in range(100):
        job.table([(key, 0, [str(turn)]) for key in "abc"])
    table = job.subtasks[0].operator._table  # type: ignore[attr-defined]
    assert len(table._pile) <= 20
    assert job.facts(("b", 0)).rows()[0]["tags"] == ["99"]


def test_a_table_with_other_columns_is_refused() -> None:
    parts = job_of().table([("a", 1, None)]).checkpoint()
    other = JoinSide(SCHEMA.remove(3), ("id", "size"))
    with pytest.raises(
        StateMismatch, match="stored is a table with the columns id: string, size: int8, n: int64, tags"
    ):
        job_of(table=other).start(1, parts)
