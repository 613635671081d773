"""Processors that were written for Spark's transformWithState run unchanged on keyed streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, Row, StringType, StructField, StructType
from tests.unit.state.harness import Job, ManualClock

import penstock as ps
from penstock.graph.errors import PipelineError
from penstock.spark.stateful_processor import StatefulProcessorOperator, TimeMode, states_of
from penstock.spark.types import schema_of

pytestmark = pytest.mark.usefixtures("every_backend")

INPUT = pa.schema([("user", pa.string()), ("amount", pa.int64())])
OUTPUT = pa.schema([("user", pa.string()), ("what", pa.string())])


class Everything(StatefulProcessor):
    """As one would write it for Spark: nothing in it knows of Penstock."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.total = handle.getValueState(
            "total", StructType([StructField("n", LongType()), StructField("s", LongType())])
        )
        self.items = handle.getListState("items", "amount LONG")
        self.by_parity = handle.getMapState("by_parity", "parity STRING", "amount LONG")
        self.recent = handle.getValueState("recent", "amount LONG", 1000)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self.total.get() if self.total.exists() else (0, 0)
        recent = self.recent.get()
        for row in rows:
            n, total = n + 1, total + row.amount
            self.items.appendValue((row.amount,))
            parity = ("odd" if row["amount"] % 2 else "even",)
            before = self.by_parity.getValue(parity) if self.by_parity.containsKey(parity) else (0,)
            self.by_parity.updateValue(parity, (before[0] + row.amount,))
            self.recent.update((row.amount,))
            if row.amount >= 100:
                self.handle.registerTimer(row.amount)
            if row.amount == 0:
                for timer in self.handle.listTimers():
                    self.handle.deleteTimer(timer)
        self.total.update((n, total))
        parities = sorted((k[0], v[0]) for k, v in self.by_parity.iterator())
        what = f"{n} {total} {[item[0] for item in self.items.get()]} {parities} {recent and recent[0]}"
        yield Row(user=key[0], what=what)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        times = (timerValues.getCurrentWatermarkInMs(), timerValues.getCurrentProcessingTimeInMs())
        self.items.clear()
        yield Row(user=key[0], what=f"timer {expiredTimerInfo.getExpiryTimeInMs()} at {times}")

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        self.total.update((initialState.orders, 1000))


def job(parallelism: int = 1, mode: TimeMode = TimeMode.EVENT_TIME, initial: Any = None, **more: Any) -> Job:
    def make() -> StatefulProcessorOperator:
        return StatefulProcessorOperator(Everything(), mode, ("user",), OUTPUT, INPUT, initial)

    return Job(make, ("user",), parallelism, **more)


def rows(*records: tuple[str, int]) -> pa.RecordBatch:
    return pa.record_batch([[user for user, _ in records], [amount for _, amount in records]], schema=INPUT)


def said(running: Job) -> list[tuple[str, str]]:
    return sorted((row["user"], row["what"]) for row in running.taken())


def test_all_rows_of_a_key_come_with_one_call_and_state_is_kept_per_key() -> None:
    running = job().feed(rows(("a", 1), ("b", 5), ("a", 2)), rows(("a", 3)))
    assert said(running) == [
        ("a", "2 3 [1, 2] [('even', 2), ('odd', 1)] None"),
        ("a", "3 6 [1, 2, 3] [('even', 2), ('odd', 4)] 2"),
        ("b", "1 5 [5] [('odd', 5)] None"),
    ]


@pytest.mark.parametrize("after", [1, 3])
def test_its_state_is_restored_at_any_parallelism(after: int) -> None:
    first = job(2).feed(rows(("a", 1), ("b", 5)))
    again = job(after, restored=first.snapshot()).feed(rows(("a", 2), ("b", 1)))
    assert said(again) == [("a", "2 3 [1, 2] [('even', 2), ('odd', 1)] 1"), ("b", "2 6 [5, 1] [('odd', 6)] 5")]


def test_timers_of_event_time_fire_by_the_watermark_and_can_be_listed_and_taken_back() -> None:
    running = job().feed(rows(("a", 100), ("b", 200), ("c", 150)), rows(("c", 0)))
    said(running)
    assert said(running.watermark(199)) == [("a", "timer 100 at (199, 0)")]
    resumed = job(2, restored=running.snapshot())
    assert said(resumed.watermark(500)) == [("b", "timer 200 at (500, 0)")]


def test_timers_of_processing_time_fire_by_the_clock() -> None:
    running = job(mode=TimeMode.PROCESSING_TIME).feed(rows(("a", 100)))
    said(running)
    running.watermark(10_000)
    assert said(running.tick(99)) == []
    assert said(running.tick(100)) == [("a", "timer 100 at (-1, 100)")]


def test_a_timer_without_a_time_mode_is_refused() -> None:
    with pytest.raises(ValueError, match='needs time_mode="eventtime" or "processingtime"'):
        job(mode=TimeMode.NONE).feed(rows(("a", 100)))


def test_state_with_a_time_to_live_is_gone_when_it_is_over() -> None:
    running = job(clock=ManualClock(0)).feed(rows(("a", 1)))
    said(running)
    running.clock.ms = 1000
    assert said(running.feed(rows(("a", 2))))[0][1].endswith(" None")


def test_an_initial_state_is_taken_up_by_the_owner_of_its_key_and_only_on_a_fresh_start() -> None:
    initial = pa.table({"user": ["a", "b"], "orders": pa.array([7, 8], pa.int64())})
    running = job(3, initial=initial)
    running.feed(rows(("a", 1), ("c", 1)))
    assert said(running) == [("a", "8 1001 [1] [('odd', 1)] None"), ("c", "1 1 [1] [('odd', 1)] None")]
    again = job(2, initial=initial, restored=running.snapshot()).feed(rows(("a", 1), ("b", 1)))
    assert [what.split(" [")[0] for _, what in said(again)] == ["9 1002", "9 1001"]


def test_it_ships_to_workers_and_a_pipeline_knows_its_states() -> None:
    processor = Everything()
    p = ps.Pipeline("job")
    orders = p.source(ps.sources.Generator(10, {"user": lambda i: i % 3, "amount": lambda i: i}), uid="in")
    kept = orders.key_by("user").transform_with_state(
        processor, returns={"user": int, "what": str}, time_mode="eventTime", uid="kept"
    )
    kept.sink(ps.sinks.Discard(), uid="out")
    spec = next(spec for chain in p.graph().chains for spec in chain.operators if spec.uid == "kept")
    assert [(state.name, state.kind) for state in spec.states] == [
        ("total", "value"),
        ("items", "list"),
        ("by_parity", "map"),
        ("recent", "value"),
    ]
    factory = cloudpickle.loads(cloudpickle.dumps(spec.factory))
    assert isinstance(factory(), StatefulProcessorOperator)
    assert cloudpickle.loads(cloudpickle.dumps(p.graph())).slots == 2
    with pytest.raises(PipelineError, match="time_mode='daily' must be one of"):
        orders.key_by("user").transform_with_state(processor, returns={"user": int}, time_mode="daily")
    with pytest.raises(PipelineError, match=r"takes a pyspark\.sql\.streaming\.StatefulProcessor"):
        orders.key_by("user").transform_with_state(print, returns={"user": int})  # type: ignore[arg-type]


class Wider(Everything):
    """The next version of the program."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        handle.getValueState("total", "n LONG, s DOUBLE, extra STRING")


def test_columns_of_its_states_may_be_added_and_widened() -> None:
    old, new = states_of(Everything())["total"], states_of(Wider())["total"]
    decode = new.evolution.decoder("value", old.description, 0)
    assert decode(old.codec.encode([old.type(1, 2)])) == [(1, 2.0, None)]


def test_schemas_in_sparks_notation_are_read_without_a_jvm() -> None:
    schema = schema_of(
        "a INT NOT NULL, `b c` DECIMAL(10,2), d ARRAY<STRING>, e MAP<STRING, BIGINT>, f STRUCT<x: INT, y: DATE>"
    )
    assert (
        schema.simpleString()
        == "struct<a:int,b c:decimal(10,2),d:array<string>,e:map<string,bigint>,f:struct<x:int,y:date>>"
    )
    assert not schema["a"].nullable
    assert schema_of(StructType([StructField("n", StringType())])).names == ["n"]
    for wrong in ("", "a", "a WHAT", "a INT b", "a ARRAY<INT", "a-b INT"):
        with pytest.raises(ValueError, match="is no schema in Spark's DDL"):
            schema_of(wrong)
