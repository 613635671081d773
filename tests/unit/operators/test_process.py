"""The process operator: grouping, state, timers, snapshots, and restores at any parallelism."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from tests.unit.state.harness import Job, written

from penstock.operators import process as process_module
from penstock.operators.base import Operator
from penstock.operators.conform import SchemaMismatch
from penstock.operators.keyed import KeyedContext, KeyedFunction, PlainFunction, Timer
from penstock.operators.process import ProcessOperator
from penstock.runtime.elements import MAX_WATERMARK
from penstock.state import declare as ps
from penstock.state.errors import UnstorableValue, UnsupportedType
from penstock.state.tables import StateMismatch
from penstock.state.timers import TimerKind

pytestmark = pytest.mark.usefixtures("every_backend")

INPUT = pa.schema([("user", pa.string()), ("amount", pa.int64())])
OUTPUT = pa.schema([("user", pa.string()), ("total", pa.int64())])
Records = list[tuple[str | None, int]]


def batch(*records: tuple[str | None, int]) -> pa.RecordBatch:
    return pa.record_batch([[user for user, _ in records], [amount for _, amount in records]], schema=INPUT)


class Totals(KeyedFunction):
    total = ps.value(int, default=0)

    def process(self, row: Any, ctx: KeyedContext) -> None:
        self.total.value += row.amount
        ctx.emit(user=row.user, total=self.total.value)


class Everything(KeyedFunction):
    """Keeps all kinds of state, of types that can and cannot change in place."""

    count = ps.value(int, default=0)
    seen = ps.value(set[int], default=set)
    amounts = ps.list(int)
    by_parity = ps.map(str, list[int])

    def process(self, row: Any, ctx: KeyedContext) -> None:
        self.count.set(self.count.get() + 1)
        self.seen.value.add(row.amount)
        self.amounts.append(row.amount)
        self.by_parity.value.setdefault("odd" if row.amount % 2 else "even", []).append(row.amount)
        if row.amount == 0:
            self.amounts.clear()
            self.by_parity.pop("odd")
        ctx.emit(user=row.user, total=self.fingerprint())

    def fingerprint(self) -> int:
        parts = (self.count.value, sum(self.seen.value), sum(self.amounts), sum(map(sum, self.by_parity.values())))
        return sum(part * 1000**place for place, part in enumerate(parts))


def expected_of_everything(records: Records) -> dict[str | None, list[int]]:
    """The same, written down without Penstock."""
    states: dict[str | None, tuple[list[int], set[int], list[int], dict[str, list[int]]]] = {}
    out: dict[str | None, list[int]] = defaultdict(list)
    for user, amount in records:
        count, seen, amounts, parity = states.setdefault(user, ([], set(), [], {"odd": [], "even": []}))
        count.append(1)
        seen.add(amount)
        amounts.append(amount)
        parity["odd" if amount % 2 else "even"].append(amount)
        if amount == 0:
            amounts.clear()
            parity["odd"] = []
        sums = (len(count), sum(seen), sum(amounts), sum(parity["odd"]) + sum(parity["even"]))
        out[user].append(sum(part * 1000**place for place, part in enumerate(sums)))
    return out


def totals(parallelism: int = 1, **more: Any) -> Job:
    return Job(lambda: ProcessOperator(Totals, ("user",), OUTPUT, INPUT), ("user",), parallelism, **more)


def everything(parallelism: int = 1, **more: Any) -> Job:
    return Job(lambda: ProcessOperator(Everything, ("user",), OUTPUT, INPUT), ("user",), parallelism, **more)


def by_user(rows: list[dict[str, Any]]) -> dict[str | None, list[int]]:
    grouped: dict[str | None, list[int]] = defaultdict(list)
    for row in rows:
        grouped[row["user"]].append(row["total"])
    return grouped


# ---- rows ----
def test_rows_are_grouped_by_key_in_first_occurrence_order_and_keep_their_order() -> None:
    job = totals().feed(batch(("b", 1), ("a", 10), ("b", 2), ("c", 5), ("a", 20)))
    assert [(row["user"], row["total"]) for row in job.taken()] == [("b", 1), ("b", 3), ("a", 10), ("a", 30), ("c", 5)]


RECORDS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 9)), max_size=12)


@given(st.lists(RECORDS, min_size=1, max_size=6), st.integers(1, 4), st.integers(1, 4), st.data())
def test_state_survives_snapshot_and_restore_at_any_parallelism(
    batches: list[Records], before: int, after: int, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(batches)))
    first = everything(before)
    first.feed(*(batch(*records) for records in batches[:cut]))
    second = everything(after, restored=first.snapshot())
    second.feed(*(batch(*records) for records in batches[cut:]))
    produced = by_user([*first.taken(), *second.taken()])
    assert produced == expected_of_everything([record for records in batches for record in records])


@given(st.lists(RECORDS, min_size=2, max_size=6), st.data())
def test_what_happens_after_a_capture_never_leaks_into_it(batches: list[Records], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(batches)))
    job = everything()
    job.feed(*(batch(*records) for records in batches[:cut]))
    at_once = {part.name: bytes(part.read()) for part in job.snapshot()}
    captured = job.capture()
    job.feed(*(batch(*records) for records in batches[cut:]))
    assert {part.name: bytes(part.read()) for part in written(captured)} == at_once
    assert by_user(job.taken()) == expected_of_everything([record for records in batches for record in records])


def test_overlapping_captures_each_keep_their_own_moment() -> None:
    job, captured = everything(), []
    for amount in range(8):
        job.feed(batch(("a", amount)))
        captured.append(job.capture())
    for amount, capture in enumerate(captured):
        resumed = everything(restored=written(capture)).feed(batch(("a", 9)))
        assert by_user(resumed.taken())["a"] == [
            expected_of_everything([("a", n) for n in [*range(amount + 1), 9]])["a"][-1]
        ]


def test_state_that_returns_to_its_default_takes_no_room() -> None:
    job = totals().feed(batch(("a", 5), ("b", 7)), batch(("a", -5)))
    (operator,) = job.subtasks
    assert isinstance(operator, ProcessOperator)
    assert dict(operator.states[0].map.items()) == {"b": 7}


def test_a_key_that_is_cleared_while_a_snapshot_is_written_is_gone_afterwards_but_not_in_the_snapshot() -> None:
    job = totals().feed(batch(("a", 5)))
    captured = job.capture()
    job.feed(batch(("a", -5)))
    assert by_user(totals(restored=written(captured)).feed(batch(("a", 1))).taken()) == {"a": [6]}
    assert by_user(totals(restored=job.snapshot()).feed(batch(("a", 1))).taken()) == {"a": [1]}


KEYS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int32(), [3, None, -3]),
    (pa.float64(), [0.0, float("nan"), 1.5, None]),
    (pa.bool_(), [True, False, None]),
    (pa.date32(), [dt.date(2024, 2, 29), None]),
    (pa.timestamp("ns"), [1, 1_700_000_000_123_456_789, None]),
    (pa.timestamp("ms", "UTC"), [1_700_000_000_123, None]),
    (pa.decimal128(10, 2), [None, 7]),
    (pa.binary(), [b"", b"x", None]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None]),
]


@pytest.mark.parametrize(("kind", "values"), KEYS, ids=lambda part: str(part) if isinstance(part, pa.DataType) else "")
def test_keys_of_every_type_keep_their_state_over_a_restore(kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("key", kind), ("amount", pa.int64())])
    returns = pa.schema([("total", pa.int64())])

    class Count(KeyedFunction):
        n = ps.value(int, default=0)

        def process(self, row: Any, ctx: KeyedContext) -> None:
            self.n.value += 1
            ctx.emit(total=self.n.value)

    def make() -> Operator:
        return ProcessOperator(Count, ("key",), returns, schema)

    rows = pa.record_batch([pa.array(values, kind), pa.array([0] * len(values), pa.int64())], schema=schema)
    first = Job(make, ("key",), 3).feed(rows, rows)
    again = Job(make, ("key",), 2, restored=first.snapshot()).feed(rows)
    assert [row["total"] for row in again.taken()] == [3] * len(values)


def test_both_zeros_and_all_nans_are_one_key() -> None:
    schema = pa.schema([("key", pa.float64()), ("amount", pa.int64())])
    job = Job(lambda: ProcessOperator(CountByKey, ("key",), pa.schema([("total", pa.int64())]), schema), ("key",))
    job.feed(pa.record_batch([[0.0, -0.0, float("nan"), float("nan")], [0] * 4], schema=schema))
    assert [row["total"] for row in job.taken()] == [1, 2, 1, 2]


class CountByKey(KeyedFunction):
    n = ps.value(int, default=0)

    def process(self, row: Any, ctx: KeyedContext) -> None:
        self.n.value += 1
        ctx.emit(total=self.n.value)


def test_a_composite_key_is_a_tuple_and_keys_are_shown_as_users_expect_them() -> None:
    schema = pa.schema([("user", pa.string()), ("day", pa.date32())])
    shown = []

    class Show(KeyedFunction):
        def process(self, row: Any, ctx: KeyedContext) -> None:
            shown.append(ctx.key)

    job = Job(lambda: ProcessOperator(Show(), ("user", "day"), OUTPUT, schema), ("user", "day"))
    job.feed(pa.record_batch([["a", None], [dt.date(2024, 1, 2), dt.date(2024, 1, 3)]], schema=schema))
    assert shown == [("a", dt.date(2024, 1, 2)), (None, dt.date(2024, 1, 3))]


def test_rows_are_read_by_attribute_by_name_and_as_a_dict() -> None:
    schema = pa.schema([("user", pa.string()), ("unit price", pa.int64()), ("class", pa.int64())])
    rows = []

    class Keep(KeyedFunction):
        def process(self, row: Any, ctx: KeyedContext) -> None:
            rows.append((row.user, row["user"], row["unit price"], row["class"], dict(row), len(row)))
            with pytest.raises(KeyError, match="no column 'price'; it has"):
                row["price"]

    job = Job(lambda: ProcessOperator(Keep(), ("user",), OUTPUT, schema), ("user",))
    job.feed(pa.record_batch([["a"], [3], [4]], schema=schema))
    assert rows == [("a", "a", 3, 4, {"user": "a", "unit price": 3, "class": 4}, 3)]


# ---- forms of functions ----
def test_a_plain_function_gets_its_state_as_an_argument() -> None:
    def run(row: Any, state: Any, ctx: KeyedContext) -> None:
        state.value += row.amount
        ctx.emit(user=row.user, total=state.value)

    function = PlainFunction(run, ps.value(int, default=0))
    job = Job(lambda: ProcessOperator(function, ("user",), OUTPUT, INPUT), ("user",), 2)
    job.feed(batch(("a", 1), ("b", 2), ("a", 3)))
    resumed = Job(lambda: ProcessOperator(function, ("user",), OUTPUT, INPUT), ("user",), restored=job.snapshot())
    assert by_user(resumed.feed(batch(("a", 1), ("b", 1))).taken()) == {"a": [5], "b": [3]}


def test_subtasks_made_from_one_instance_do_not_share_it() -> None:
    function = Totals()
    job = Job(lambda: ProcessOperator(function, ("user",), OUTPUT, INPUT), ("user",), 2)
    one, other = (operator._function for operator in job.subtasks if isinstance(operator, ProcessOperator))
    assert one is not other
    assert one is not function


def test_functions_ship_to_workers_by_closure_serialisation() -> None:
    factory = cloudpickle.loads(cloudpickle.dumps(lambda: ProcessOperator(Everything, ("user",), OUTPUT, INPUT)))
    assert by_user(Job(factory, ("user",)).feed(batch(("a", 2))).taken()) == expected_of_everything([("a", 2)])


def test_open_and_close_are_called_once_and_state_is_declared_on_base_classes_too() -> None:
    calls = []

    class Lived(Totals):
        extra = ps.list(int)

        def open(self, ctx: KeyedContext) -> None:
            calls.append(("open", ctx.subtask))

        def close(self) -> None:
            calls.append(("close", 0))

    job = Job(lambda: ProcessOperator(Lived(), ("user",), OUTPUT, INPUT), ("user",))
    job.subtasks[0].close()
    assert calls == [("open", 0), ("close", 0)]
    assert [state.name for state in job.subtasks[0].logged()] == ["total", "extra", "penstock.timers"]


# ---- timers ----
class Reminders(KeyedFunction):
    """Emits what fires. An amount sets a timer of event time, a negative one of processing time; 1000 + t undoes t."""

    def process(self, row: Any, ctx: KeyedContext) -> None:
        if row.amount >= 1000:
            ctx.cancel_timer(row.amount - 1000)
        elif row.amount >= 0:
            ctx.timer_at(row.amount)
        else:
            ctx.timer_after(-row.amount)

    def on_timer(self, timer: Timer, ctx: KeyedContext) -> None:
        assert timer.key == ctx.key
        ctx.emit(user=ctx.key, total=timer.time if timer.kind is TimerKind.EVENT_TIME else -timer.time)


def reminders(parallelism: int = 1, **more: Any) -> Job:
    return Job(lambda: ProcessOperator(Reminders, ("user",), OUTPUT, INPUT), ("user",), parallelism, **more)


def fired(job: Job) -> list[tuple[str, int]]:
    return [(row["user"], row["total"]) for row in job.taken()]


def test_timers_fire_in_the_order_of_their_times_once_the_watermark_reaches_them() -> None:
    job = reminders().feed(batch(("a", 30), ("b", 10), ("a", 10), ("c", 20), ("b", 10)))
    assert fired(job.watermark(9)) == []
    assert fired(job.watermark(20)) == [("a", 10), ("b", 10), ("c", 20)]
    assert fired(job.watermark(1000)) == [("a", 30)]
    assert fired(job.watermark(2000)) == []


def test_a_timer_that_was_taken_back_does_not_fire_and_can_be_set_again() -> None:
    job = reminders().feed(batch(("a", 10), ("b", 10)), batch(("a", 1010)))
    assert fired(job.watermark(5)) == []
    job.feed(batch(("b", 1010)), batch(("b", 10)), batch(("c", 1010)))
    assert fired(job.watermark(10)) == [("b", 10)]


def test_processing_time_timers_fire_by_the_clock_and_not_by_the_watermark() -> None:
    job = reminders().feed(batch(("a", -50), ("b", -20)))
    assert job.subtasks[0].next_timer() == 20
    job.watermark(MAX_WATERMARK)
    assert fired(job.tick(19)) == []
    assert fired(job.tick(60)) == [("b", -20), ("a", -50)]
    assert job.subtasks[0].next_timer() is None


TIMERS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 30)), max_size=20)


@given(TIMERS, st.lists(st.integers(0, 35), max_size=4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_every_timer_fires_exactly_once_whatever_the_portions_and_restores(
    timers: list[tuple[str, int]], watermarks: list[int], before: int, after: int, portion: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_module, "PORTION", portion)
        job = reminders(before).feed(batch(*timers)) if timers else reminders(before)
        seen: list[tuple[str, int]] = []
        for time in sorted(watermarks):
            seen += fired(job.watermark(time))
        job = reminders(after, restored=job.snapshot())
        seen += fired(job.tick(0))
        seen += fired(job.watermark(MAX_WATERMARK))
    assert sorted(seen) == sorted(set(timers))
    for key in "abcd":
        own = [time for user, time in seen if user == key]
        assert own == sorted(own)


def test_many_due_timers_fire_in_portions_and_hold_the_watermark_back_until_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_module, "PORTION", 3)
    job = reminders().feed(batch(*((f"k{n}", n) for n in range(10))))
    (operator,) = job.subtasks
    assert operator.emitted_watermark() is None
    job.watermark(100)
    assert (len(fired(job)), operator.emitted_watermark(), operator.next_timer()) == (3, 2, 0)
    operator.on_timer(0, job.out[0])
    assert (len(fired(job)), operator.emitted_watermark()) == (3, 5)
    job.tick(0)
    assert (len(fired(job)), operator.emitted_watermark(), operator.next_timer()) == (4, 100, None)


def test_a_key_whose_rows_come_before_its_due_timers_fired_sees_the_timers_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_module, "PORTION", 1)
    seen = []

    class Order(Reminders):
        def process(self, row: Any, ctx: KeyedContext) -> None:
            seen.append((row.user, "row"))
            super().process(row, ctx)

        def on_timer(self, timer: Timer, ctx: KeyedContext) -> None:
            seen.append((timer.key, "timer"))

    job = Job(lambda: ProcessOperator(Order(), ("user",), OUTPUT, INPUT), ("user",))
    job.feed(batch(("a", 1), ("b", 2), ("c", 3)))
    seen.clear()
    job.watermark(10).feed(batch(("c", 50)))
    assert seen == [("a", "timer"), ("c", "timer"), ("c", "row")]
    job.tick(0)
    assert seen[3:] == [("b", "timer")]


def test_a_function_that_always_sets_its_next_timer_ends_with_its_input() -> None:
    class Heartbeat(Reminders):
        def on_timer(self, timer: Timer, ctx: KeyedContext) -> None:
            super().on_timer(timer, ctx)
            ctx.timer_at(timer.time + 10)

    job = Job(lambda: ProcessOperator(Heartbeat, ("user",), OUTPUT, INPUT), ("user",))
    assert fired(job.feed(batch(("a", 5))).watermark(25)) == [("a", 5), ("a", 15), ("a", 25)]
    assert fired(job.watermark(MAX_WATERMARK)) == [("a", 35)]


def test_timers_take_datetimes_and_round_up_to_milliseconds() -> None:
    class At(Reminders):
        def process(self, row: Any, ctx: KeyedContext) -> None:
            ctx.timer_at(dt.datetime(1970, 1, 1, microsecond=row.amount))
            ctx.timer_at(dt.datetime(1970, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))))

    job = Job(lambda: ProcessOperator(At, ("user",), OUTPUT, INPUT), ("user",)).feed(batch(("a", 1001)))
    assert fired(job.watermark(5)) == [("a", 0), ("a", 2)]


def test_event_time_does_not_go_back_over_a_restore() -> None:
    job = reminders(2).watermark(50)
    again = reminders(2, restored=job.snapshot())
    assert [operator.emitted_watermark() for operator in again.subtasks] == [50, 50]


# ---- errors ----
def test_an_error_in_the_function_names_the_row_it_was_called_with() -> None:
    class Fails(KeyedFunction):
        def process(self, row: Any, ctx: KeyedContext) -> None:
            if row.amount == 3:
                raise ZeroDivisionError("oh")

    job = Job(lambda: ProcessOperator(Fails(), ("user",), OUTPUT, INPUT), ("user",))
    with pytest.raises(ZeroDivisionError) as caught:
        job.feed(batch(("a", 1), ("b", 3), ("c", 2)))
    assert caught.value.__notes__ == ["The function was called with Row(user='b', amount=3)"]


def test_an_error_in_a_timer_names_the_timer() -> None:
    class NoTimers(KeyedFunction):
        def process(self, row: Any, ctx: KeyedContext) -> None:
            ctx.timer_at(row.amount)

    job = Job(lambda: ProcessOperator(NoTimers(), ("user",), OUTPUT, INPUT), ("user",)).feed(batch(("a", 1)))
    with pytest.raises(NotImplementedError, match=r"needs a method on_timer\(self, timer, ctx\)") as caught:
        job.watermark(1)
    assert "Timer(key='a', time=1" in caught.value.__notes__[0]


def test_a_row_that_does_not_fit_what_was_declared_is_refused() -> None:
    class Wrong(KeyedFunction):
        def process(self, row: Any, ctx: KeyedContext) -> None:
            ctx.emit(user=row.user, totl=1)

    job = Job(lambda: ProcessOperator(Wrong(), ("user",), OUTPUT, INPUT), ("user",))
    with pytest.raises(SchemaMismatch, match="total"):
        job.feed(batch(("a", 1)))


def test_a_value_of_another_type_than_declared_is_refused_by_the_snapshot_at_the_latest_naming_state_and_key() -> None:
    class Wrong(KeyedFunction):
        total = ps.value(int, default=0)

        def process(self, row: Any, ctx: KeyedContext) -> None:
            self.total.value = "many" if row.amount > 5 else row.amount  # type: ignore[assignment]

    job = Job(lambda: ProcessOperator(Wrong(), ("user",), OUTPUT, INPUT), ("user",))
    with pytest.raises(
        UnstorableValue, match="the value state 'total', declared as int, cannot be stored for the key 'b': 'many'"
    ):
        job.feed(batch(("a", 1), ("b", 6))).snapshot()


def test_what_is_kept_as_it_is_until_the_snapshot_is_refused_there_naming_state_and_key() -> None:
    class Wrong(KeyedFunction):
        seen = ps.value(dict[str, int], default=dict)

        def process(self, row: Any, ctx: KeyedContext) -> None:
            self.seen.value = "many" if row.amount > 5 else {"n": row.amount}  # type: ignore[assignment]

    job = Job(lambda: ProcessOperator(Wrong(), ("user",), OUTPUT, INPUT), ("user",))
    captured = job.feed(batch(("a", 1), ("b", 6))).capture()
    with pytest.raises(UnstorableValue, match=r"the value state 'seen', .* cannot be stored for the key 'b': 'many'"):
        written(captured)


def test_state_that_was_stored_as_another_type_is_refused_naming_both() -> None:
    class Other(KeyedFunction):
        total = ps.value(str, default="")

    stored = totals().feed(batch(("a", 1))).snapshot()
    with pytest.raises(
        StateMismatch,
        match="'op': the state 'total' was stored as value state of int, but is declared as value state of str",
    ):
        Job(lambda: ProcessOperator(Other, ("user",), OUTPUT, INPUT), ("user",), restored=stored)


def test_state_that_is_not_declared_any_more_is_refused_and_not_dropped() -> None:
    class Other(KeyedFunction):
        other = ps.value(int, default=0)

    stored = totals().feed(batch(("a", 1))).snapshot()
    with pytest.raises(StateMismatch, match="holds a state 'total' that is not declared any more"):
        Job(lambda: ProcessOperator(Other, ("user",), OUTPUT, INPUT), ("user",), restored=stored)


def test_state_of_another_key_is_refused() -> None:
    stored = totals().feed(batch(("a", 1))).snapshot()
    with pytest.raises(
        StateMismatch, match="under the key user: string, but the program keys the stream by amount: int64"
    ):
        Job(lambda: ProcessOperator(Totals, ("amount",), OUTPUT, INPUT), ("amount",), restored=stored)


def test_state_cannot_be_used_before_the_function_runs() -> None:
    with pytest.raises(RuntimeError, match=r"the state 'total' of Totals can be used once .* use open\(\)"):
        _ = Totals().total


def test_a_type_that_cannot_be_stored_is_refused_where_it_is_declared() -> None:
    with pytest.raises(UnsupportedType, match="value state of <class 'complex'>: complex cannot be stored"):
        ps.value(complex)


def test_a_default_that_all_keys_would_share_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"would be shared by all keys: give a function that makes it, such as default=list"
    ):
        ps.value(list[int], default=[])
