"""Functions whose state is kept in columns, against a plain dict: any program of reading, setting and clearing over
batches, with captures that are written later, restores at any parallelism, and tables that are made anew meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.state.harness import Captured, Job, written

from penstock.core.ids import Cut
from penstock.kernels import loading
from penstock.operators.keyed import KeyedContext, KeyedFunction
from penstock.operators.process import ProcessOperator
from penstock.state import captures, columnmap
from penstock.state import declare as ps
from penstock.state.columnmap import ColumnMap
from penstock.state.kinds import KeyedState

INPUT = pa.schema([("key", pa.string()), ("action", pa.string()), ("number", pa.int64())])
OUTPUT = pa.schema([("key", pa.string()), ("before", pa.string())])
Rows = list[tuple[str | None, str, int]]


class Single(KeyedFunction):
    """Tells what it has kept, then does what the row says."""

    kept: Any = ps.value(tuple[int, str | None], default=(0, "nothing"))

    def process(self, row: Any, ctx: KeyedContext) -> None:
        ctx.emit(key=row.key, before=self.shown())
        if row.action == "set":
            self.kept.value = (row.number, None if row.number % 3 == 0 else f"text {row.number}")
        elif row.action == "add":
            self.kept.value = (self.kept.value[0] + row.number, "sum")
        elif row.action == "clear":
            self.kept.clear()
        elif row.action == "timer":
            ctx.timer_at(row.number)

    def on_timer(self, timer: Any, ctx: KeyedContext) -> None:
        self.kept.value = (timer.time, "timer")

    def shown(self) -> str:
        return repr(self.kept.value)


class Several(Single):
    """The same beside states that are kept in other ways, so that keys are loaded one by one."""

    seen: Any = ps.list(int)
    highest: Any = ps.reducing(int, max)
    sums: Any = ps.aggregating(tuple[int, int], create=lambda: (0, 0), add=lambda kept, n: (kept[0] + 1, kept[1] + n))

    def process(self, row: Any, ctx: KeyedContext) -> None:
        super().process(row, ctx)
        if row.action == "clear":
            self.seen.clear()
            self.highest.clear()
            self.sums.clear()
        elif row.action != "read":
            self.seen.append(row.number)
            self.highest.add(row.number)
            self.sums.add(row.number)

    def shown(self) -> str:
        return repr((self.kept.value, self.highest.get(), self.sums.get()))


class Model:
    """What a function keeps, in a dict."""

    def __init__(self, several: bool) -> None:
        self.several = several
        self.kept: dict[str | None, tuple[int, str | None]] = {}
        self.numbers: dict[str | None, list[int]] = {}
        self.timers: dict[str | None, set[int]] = {}
        self.watermark = 0

    def feed(self, rows: Rows) -> list[tuple[str | None, str]]:
        out = []
        for key in {key for key, _, _ in rows}:
            self._fire(key)
        for key, action, number in rows:
            out.append((key, self.shown(key)))
            if action == "set":
                self.kept[key] = (number, None if number % 3 == 0 else f"text {number}")
            elif action == "add":
                self.kept[key] = (self.kept.get(key, (0, ""))[0] + number, "sum")
            elif action == "clear":
                self.kept.pop(key, None)
            elif action == "timer":
                self.timers.setdefault(key, set()).add(number)
            if action == "clear":
                self.numbers.pop(key, None)
            elif action != "read":
                self.numbers.setdefault(key, []).append(number)
        return out

    def advance(self, time: int) -> int:
        self.watermark = max(time, self.watermark)
        for key in self.timers:
            self._fire(key)
        return self.watermark

    def _fire(self, key: str | None) -> None:
        due = {time for time in self.timers.get(key, ()) if time <= self.watermark}
        if due:
            self.kept[key] = (max(due), "timer")
            self.timers[key] -= due

    def shown(self, key: str | None) -> str:
        kept, numbers = self.kept.get(key, (0, "nothing")), self.numbers.get(key, [])
        sums = (len(numbers), sum(numbers))
        return repr((kept, max(numbers, default=None), sums) if self.several else kept)


def batch(rows: Rows) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(INPUT.names, row, strict=True)) for row in rows], schema=INPUT)


def job(function: type[KeyedFunction], parallelism: int = 1, **more: Any) -> Job:
    return Job(lambda: ProcessOperator(function, ("key",), OUTPUT, INPUT), ("key",), parallelism, **more)


def told(under_test: Job) -> dict[str | None, list[str]]:
    out: dict[str | None, list[str]] = {}
    for row in under_test.taken():
        out.setdefault(row["key"], []).append(row["before"])
    return out


def by_key(told: list[tuple[str | None, str]]) -> dict[str | None, list[str]]:
    out: dict[str | None, list[str]] = {}
    for key, before in told:
        out.setdefault(key, []).append(before)
    return out


@contextmanager
def limits(compiled: bool, frozen: bool) -> Iterator[None]:
    """Tables are made anew all the time; captures are copies or not."""
    with (
        mock.patch.object(columnmap, "LEAST_ABSENT", 1),
        mock.patch.object(loading, "COMPILED_FROM_ROWS", 0 if compiled else 1 << 30),
        mock.patch.object(captures, "COPIED", 0 if frozen else captures.COPIED),
    ):
        yield


KEYS = st.sampled_from([None, "", "a", "b", "c", "d", "ä" * 20])
ROWS: st.SearchStrategy[Any] = st.lists(
    st.tuples(KEYS, st.sampled_from(["read", "set", "add", "clear", "clear", "timer"]), st.integers(1, 20)),
    min_size=1,
    max_size=10,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), ROWS),
        st.tuples(st.just("feed"), ROWS),
        st.tuples(st.just("capture"), st.just(0)),
        st.tuples(st.just("restore"), st.integers(1, 3)),
        st.tuples(st.just("watermark"), st.integers(1, 20)),
    ),
    max_size=25,
)


@pytest.mark.parametrize("function", [Single, Several])
@given(steps=STEPS, compiled=st.booleans(), frozen=st.booleans())
def test_any_program_sees_what_a_dict_would_hold(
    function: type[KeyedFunction], steps: list[Any], compiled: bool, frozen: bool
) -> None:
    model, under_test = Model(function is Several), job(function)
    last: Rows = [(key, "read", 1) for key in [None, "", "a", "b", "c", "d"]]
    with limits(compiled, frozen):
        pending: list[Captured] = []
        for action, argument in [*steps, ("feed", last)]:
            match action:
                case "feed":
                    under_test.feed(batch(argument))
                    assert told(under_test) == by_key(model.feed(argument))
                case "capture":
                    pending += under_test.capture()  # to be written later
                case "watermark":
                    under_test.watermark(model.advance(argument))
                case "restore":
                    stored = written(under_test.capture())
                    under_test = job(function, argument, restored=stored)
                    under_test.watermark(model.advance(0))
        written(pending)


@given(st.lists(ROWS, min_size=1, max_size=4), st.lists(ROWS, min_size=1, max_size=4), st.booleans(), st.booleans())
def test_a_capture_that_is_written_later_holds_what_was_there_when_it_was_taken(
    before: list[Rows], after: list[Rows], compiled: bool, frozen: bool
) -> None:
    model, under_test = Model(several=False), job(Single)
    with limits(compiled, frozen):
        for rows in before:
            under_test.feed(batch(rows))
            model.feed(rows)
        taken = under_test.capture()
        under_test.feed(*map(batch, after))
        restored = job(Single, restored=written(taken))
        probes: Rows = [(key, "read", 1) for key in [None, "", "a", "b", "c", "d", "ä" * 20]]
        assert told(restored.feed(batch(probes))) == by_key(model.feed(probes))


def entries_of(under_test: Job) -> ColumnMap:
    operator = under_test.subtasks[0]
    assert isinstance(operator, ProcessOperator)
    state: KeyedState = operator.states[0]
    assert isinstance(state.map, ColumnMap)
    return state.map


def numbered(numbers: range, action: str) -> pa.RecordBatch:
    return batch([(str(number), action, number + 1) for number in numbers])


def test_keys_that_are_only_read_take_no_room_and_count_as_unchanged() -> None:
    under_test = job(Single).feed(numbered(range(10), "set"))
    entries = entries_of(under_test)
    entries.mark(Cut(1), Cut(1))
    under_test.feed(numbered(range(1_000), "read"))
    under_test.feed(numbered(range(3), "set"))
    entries.mark(Cut(2), Cut(1))
    assert (entries.size, len(entries), entries.changed_since(Cut(1))) == (10, 10, 3)


def test_changes_name_each_key_once_however_it_was_changed() -> None:
    under_test = job(Single).feed(numbered(range(10), "set"))
    entries = entries_of(under_test)
    entries.mark(Cut(1), Cut(1))
    under_test.feed(numbered(range(5), "set"), numbered(range(3, 12), "set"), numbered(range(2), "clear"))
    entries.mark(Cut(2), Cut(1))
    section, removals = entries.changes(Cut(1))
    assert sorted(section.keys()[0].to_pylist(), key=int) == [str(number) for number in range(12)]
    assert removals


@pytest.mark.parametrize("with_checkpoints", [False, True])
def test_keys_that_come_and_go_leave_no_slots_behind(with_checkpoints: bool) -> None:
    under_test = job(Single).feed(numbered(range(10), "set"))
    entries = entries_of(under_test)
    for cut, start in enumerate(range(10, 200_010, 5_000)):
        under_test.feed(numbered(range(start, start + 5_000), "set"))
        under_test.feed(numbered(range(start, start + 5_000), "clear"))
        if with_checkpoints:
            entries.mark(Cut(cut), Cut(max(0, cut - 1)))
    assert entries.size == 10
    assert len(entries._table) < 30_000
    assert sorted(int(key) for key, _ in entries.items()) == list(range(10))


def test_removals_are_named_until_the_floor_has_passed_them() -> None:
    under_test = job(Single).feed(numbered(range(10), "set"))
    entries = entries_of(under_test)
    with mock.patch.object(columnmap, "LEAST_ABSENT", 1):
        entries.mark(Cut(1), Cut(1))
        under_test.feed(numbered(range(9), "clear"))
        for cut in (2, 3):
            entries.mark(Cut(cut), Cut(1))
            under_test.feed(numbered(range(9, 10), "set"))
        section, removals = entries.changes(Cut(1))
        assert removals
        assert len(section.keys()[0]) == 10
        entries.mark(Cut(4), Cut(3))
        assert len(entries._table) == 1


def test_slots_of_a_frozen_capture_keep_their_old_values() -> None:
    under_test = job(Single).feed(numbered(range(1_000), "set"))
    with mock.patch.object(captures, "COPIED", 0):
        entries = entries_of(under_test)
        entries.mark(Cut(1), Cut(1))
        section = entries.whole()
        under_test.feed(numbered(range(0, 1_000, 2), "add"), numbered(range(1, 1_000, 2), "clear"))
        column = section.values(np.arange(1_000, dtype=np.int32))[0]
    assert [one["f0"] for one in column.to_pylist()] == list(range(1, 1_001))
