"""Time to live: what is over is not seen, and goes for good in the background, in snapshots and at a restore."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.state.harness import Job, ManualClock

from penstock.operators.keyed import KeyedContext, KeyedFunction
from penstock.operators.process import ProcessOperator
from penstock.state import declare as ps
from penstock.state.tables import read_table
from penstock.state.ttl import TTL

pytestmark = pytest.mark.usefixtures("every_backend")

INPUT = pa.schema([("user", pa.string()), ("do", pa.string()), ("amount", pa.int64())])
OUTPUT = pa.schema([("seen", pa.string())])
SECOND = 1000


def function(ttl: Any) -> type[KeyedFunction]:
    class Keeps(KeyedFunction):
        last = ps.value(int, ttl=ttl)
        tags = ps.value(set[int], default=set, ttl=ttl)
        items = ps.list(int, ttl=ttl)
        entries = ps.map(str, int, ttl=ttl)
        best = ps.reducing(int, max, ttl=ttl)
        total = ps.aggregating(tuple[int, ...], create=tuple, add=lambda acc, item: (*acc, item), result=sum, ttl=ttl)

        def process(self, row: Any, ctx: KeyedContext) -> None:
            if row.do == "write":
                self.last.value = row.amount
                self.tags.value.add(row.amount)
                self.items.append(row.amount)
                self.entries[f"k{row.amount}"] = row.amount
                self.best.add(row.amount)
                self.total.add(row.amount)
            elif row.do == "clear":
                for state in (self.last, self.tags, self.items, self.entries, self.best, self.total):
                    state.clear()
            seen = (
                self.last.get(),
                sorted(self.tags.value) if row.do == "all" else [],
                self.items.value,
                dict(self.entries.items()),
                self.best.get(),
                self.total.get(),
            )
            ctx.emit(seen=repr(seen))

    return Keeps


def job(ttl: Any = "10s", *, clock: ManualClock | None = None, **more: Any) -> Job:
    keeps = function(ttl)
    made = Job(
        lambda: ProcessOperator(keeps, ("user",), OUTPUT, INPUT), ("user",), clock=clock or ManualClock(), **more
    )
    return made


def do(running: Job, what: str, amount: int = 0, user: str = "a") -> tuple[Any, ...]:
    running.feed(pa.record_batch([[user], [what], [amount]], schema=INPUT))
    return eval(running.taken()[-1]["seen"])


def sizes(running: Job) -> list[int]:
    (operator,) = running.subtasks
    assert isinstance(operator, ProcessOperator)
    return [len(state.map) for state in operator.states]


NOTHING = (None, [], [], {}, None, 0)


def test_what_was_written_is_seen_until_its_time_is_over_and_never_after() -> None:
    running = job()
    do(running, "write", 5)
    running.clock.ms = 10 * SECOND - 1
    assert do(running, "look") == (5, [], [5], {"k5": 5}, 5, 5)
    running.clock.ms = 10 * SECOND
    assert do(running, "look") == NOTHING


def test_items_of_lists_and_entries_of_maps_live_one_by_one() -> None:
    running = job()
    do(running, "write", 1)
    running.clock.ms = 6 * SECOND
    do(running, "write", 2)
    running.clock.ms = 11 * SECOND
    last, _, items, entries, best, total = do(running, "look")
    assert (last, items, entries) == (2, [2], {"k2": 2})
    # A value lives as a whole: writing it has begun its life anew.
    assert (best, total) == (2, 3)


def test_reading_begins_a_life_anew_only_if_it_is_declared_so() -> None:
    running = job(TTL("10s", refresh="read"))
    do(running, "write", 5)
    for second in (8, 16, 24):
        running.clock.ms = second * SECOND
        assert do(running, "look") == (5, [], [5], {"k5": 5}, 5, 5)
    running.clock.ms = 34 * SECOND
    assert do(running, "look") == NOTHING


def test_reading_a_value_that_can_change_in_place_counts_as_writing_it() -> None:
    running = job()
    do(running, "write", 5)
    running.clock.ms = 8 * SECOND
    assert do(running, "all")[1] == [5]
    running.clock.ms = 12 * SECOND
    assert do(running, "all")[1] == [5]
    running.clock.ms = 30 * SECOND
    assert do(running, "all")[1] == []


def test_what_is_over_may_be_seen_until_it_is_cleaned_if_it_is_declared_so() -> None:
    running = job(TTL("10s", expired="until_cleaned"))
    do(running, "write", 5)
    running.clock.ms = 60 * SECOND
    assert do(running, "look") == (5, [], [5], {"k5": 5}, 5, 5)
    running.tick(60 * SECOND)
    assert do(running, "look") == NOTHING


def test_what_is_over_goes_in_the_background_without_any_record_coming_in() -> None:
    running = job()
    do(running, "write", 5, "a")
    running.clock.ms = 9 * SECOND
    do(running, "write", 6, "b")
    due = running.subtasks[0].next_timer()
    assert due is not None
    assert 10 * SECOND <= due <= 11 * SECOND
    running.tick(due)
    assert sizes(running) == [1] * 6
    running.tick(30 * SECOND)
    assert sizes(running) == [0] * 6
    assert running.subtasks[0].next_timer() is None


def test_cleared_state_is_gone_and_needs_no_cleaning() -> None:
    running = job()
    do(running, "write", 5)
    assert do(running, "clear") == NOTHING
    assert sizes(running) == [0] * 6
    running.tick(60 * SECOND)
    assert running.subtasks[0].next_timer() is None


def test_what_is_over_is_not_written_into_a_snapshot() -> None:
    running = job()
    do(running, "write", 5, "a")
    running.clock.ms = 9 * SECOND
    do(running, "write", 6, "b")
    running.clock.ms = 12 * SECOND
    (operator,) = running.subtasks
    assert isinstance(operator, ProcessOperator)
    rows = {
        part.name: sum(
            batch.num_rows for batch in read_table(part, operator._columns, running._context(0).key_groups)[1]
        )
        for part in running.snapshot()
        if part.key_groups is not None
    }
    assert rows == dict.fromkeys(("last", "tags", "items", "entries", "best", "total"), 1)
    assert sizes(running) == [2] * 6


def test_a_restored_life_goes_on_and_the_time_of_the_outage_counts() -> None:
    running = job()
    do(running, "write", 5)
    parts = running.snapshot()
    assert do(job(restored=parts, clock=ManualClock(9 * SECOND)), "look") == (5, [], [5], {"k5": 5}, 5, 5)
    late = job(restored=parts, clock=ManualClock(10 * SECOND))
    assert sizes(late) == [0] * 6
    again = job(restored=parts, clock=ManualClock(9 * SECOND))
    again.tick(30 * SECOND)
    assert sizes(again) == [0] * 6


def test_a_time_to_live_can_be_given_to_and_taken_from_state_that_exists() -> None:
    without = job(None)
    do(without, "write", 5)
    given = job("10s", restored=without.snapshot(), clock=ManualClock(100 * SECOND))
    given.clock.ms = 109 * SECOND
    assert do(given, "look") == (5, [], [5], {"k5": 5}, 5, 5)
    taken = job(None, restored=given.snapshot(), clock=ManualClock(900 * SECOND))
    assert do(taken, "look") == (5, [], [5], {"k5": 5}, 5, 5)
    given.clock.ms = 120 * SECOND
    assert do(given, "look") == NOTHING


STEPS = st.lists(
    st.tuples(st.integers(0, 4000), st.sampled_from(["write", "look", "clear", "tick", "restore"])), max_size=25
)


@given(STEPS)
def test_items_are_seen_exactly_as_long_as_they_live_whatever_is_cleaned_in_between(
    steps: list[tuple[int, str]],
) -> None:
    running, now, written = job("5s"), 0, list[tuple[int, int]]()
    for number, (wait, what) in enumerate(steps):
        now += wait
        running.clock.ms = now
        if what == "tick":
            running.tick(now)
        elif what == "restore":
            running = job("5s", restored=running.snapshot(), clock=ManualClock(now))
        else:
            written = [] if what == "clear" else [pair for pair in written if now < pair[1] + 5 * SECOND]
            if what == "write":
                written.append((number, now))
            _, _, items, entries, _, _ = do(running, what, number)
            assert items == [item for item, _ in written]
            assert sorted(entries.values()) == [item for item, _ in written]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lifetime": "soon"}, "ttl='soon' is no duration"),
        ({"lifetime": 0}, "must be more than 0"),
        ({"lifetime": "1s", "refresh": "never"}, "refresh='never' must be one of 'write', 'read'"),
        ({"lifetime": "1s", "expired": "later"}, "expired='later' must be one of 'never', 'until_cleaned'"),
    ],
)
def test_a_wrong_time_to_live_is_refused_where_it_is_written(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TTL(**wrong)
