"""Event time from a column."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from penstock.core.barrier import Barrier, Mode
from penstock.core.ids import Attempt, CheckpointId, Generation, Uid
from penstock.operators.base import Emitted, OperatorContext
from penstock.operators.watermark import WatermarkOperator, latest_ms
from penstock.runtime.elements import MAX_WATERMARK
from penstock.state.parts import KeyGroupRange, PartKind, RestoredPart
from penstock.state.tables import StateMismatch


class NoClock:
    def now(self) -> float:
        raise AssertionError("a watermark takes no notice of the clock")

    def wall_ms(self) -> int:
        raise AssertionError("a watermark takes no notice of the clock")


def opened(
    subtask: int = 0, parallelism: int = 1, restored: tuple[RestoredPart, ...] = (), delay: int = 0
) -> WatermarkOperator:
    operator = WatermarkOperator("ts", delay)
    operator.open(
        OperatorContext(
            Uid("time"), "with_watermark", subtask, parallelism, KeyGroupRange(0, 128), 128, Attempt(1), Generation(1),
            NoClock(), restored,
        )
    )  # fmt: skip
    return operator


def times(*milliseconds: int | None) -> pa.RecordBatch:
    return pa.record_batch({"ts": pa.array(milliseconds, pa.timestamp("ms"))})


def after(operator: WatermarkOperator, *milliseconds: int | None) -> int | None:
    out = Emitted()
    batch = times(*milliseconds)
    operator.process(batch, 0, out)
    assert out.batches == [batch]
    return operator.emitted_watermark()


def stored(operator: WatermarkOperator, subtask: int) -> RestoredPart:
    (part,) = operator.snapshot(Barrier(CheckpointId(1), Mode.ALIGNED)).parts
    content = b"".join(bytes(chunk) for chunk in part.encode())
    assert part.kind is PartKind.UNION
    return RestoredPart(part.name, part.kind, subtask, lambda: memoryview(content))


def test_time_is_the_highest_seen_less_delay_less_one_millisecond():
    operator = opened(delay=100)
    assert operator.emitted_watermark() is None
    assert after(operator, 1_000, 5_000, 3_000) == 4_899


def test_time_never_goes_back():
    operator = opened()
    assert after(operator, 5_000) == 4_999
    assert after(operator, 1_000) == 4_999


def test_nulls_say_nothing_about_time():
    operator = opened()
    assert after(operator, None, None) is None
    assert after(operator, None, 10) == 9


def test_upstream_watermarks_are_replaced_except_for_the_end_of_time():
    operator = opened()
    after(operator, 5_000)
    operator.on_watermark(9_000, Emitted())
    assert operator.emitted_watermark() == 4_999
    operator.on_watermark(MAX_WATERMARK, Emitted())
    assert operator.emitted_watermark() == MAX_WATERMARK
    assert not operator.passes_watermarks


@pytest.mark.parametrize(
    ("column", "milliseconds"),
    [
        (pa.array([1, 2, None], pa.int64()), 2),
        (pa.array([-1, -2], pa.int32()), -1),
        (pa.array([3], pa.timestamp("s")), 3_000),
        (pa.array([1_999], pa.timestamp("us")), 1),
        (pa.array([-1], pa.timestamp("us")), -1),
        (pa.array([5_999_999], pa.timestamp("ns", "Europe/Paris")), 5),
        (pa.array([dt.date(1970, 1, 2), None]), 86_400_000),
        (pa.array([dt.date(1970, 1, 2)], pa.date64()), 86_400_000),
        (pa.array([None], pa.timestamp("ms")), None),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_every_type_of_time_is_read_as_milliseconds_rounded_down(column, milliseconds):
    assert latest_ms(column) == milliseconds


def test_after_a_restart_each_subtask_takes_up_its_own_time():
    first, second = opened(0, 2), opened(1, 2)
    after(first, 1_000)
    after(second, 9_000)
    parts = (stored(first, 0), stored(second, 1))
    assert opened(0, 2, parts).emitted_watermark() == 999
    assert opened(1, 2, parts).emitted_watermark() == 8_999


@pytest.mark.parametrize("parallelism", [1, 3])
def test_at_another_parallelism_every_subtask_starts_with_the_lowest_time(parallelism: int):
    first, second = opened(0, 2), opened(1, 2)
    after(first, 9_000)
    after(second, 1_000)
    parts = (stored(first, 0), stored(second, 1))
    restored = [opened(subtask, parallelism, parts).emitted_watermark() for subtask in range(parallelism)]
    assert restored == [999] * parallelism


def test_a_subtask_that_knew_no_time_restores_as_knowing_none():
    assert opened(0, 1, (stored(opened(), 0),)).emitted_watermark() is None


def test_a_snapshot_is_not_changed_by_what_comes_later():
    operator = opened()
    after(operator, 1_000)
    part = stored(operator, 0)
    after(operator, 9_000)
    assert opened(0, 1, (part,)).emitted_watermark() == 999


def test_a_state_of_an_unknown_version_is_refused():
    part = stored(opened(), 0)
    changed = bytes([9]) + bytes(part.read())[1:]
    from_the_future = RestoredPart(part.name, part.kind, 0, lambda: memoryview(changed), path="checkpoints/7/x.data")
    with pytest.raises(StateMismatch, match=r"in checkpoints/7/x.data is stored in format 9.* reads format 1.* newer"):
        opened(0, 1, (from_the_future,))


# ---- splits and idleness ----
class Wall:
    """A wall clock that a test sets."""

    ms = 0

    def now(self) -> float:
        return self.ms / 1000

    def wall_ms(self) -> int:
        return self.ms


def timed(idle_ms: int | None = 100) -> tuple[WatermarkOperator, Wall]:
    operator, clock = WatermarkOperator("ts", 0, idle_ms), Wall()
    operator.open(
        OperatorContext(
            Uid("time"), "with_watermark", 0, 1, KeyGroupRange(0, 128), 128, Attempt(1), Generation(1), clock
        )
    )  # fmt: skip
    return operator, clock


def expire(operator: WatermarkOperator, clock: Wall, ms: int) -> None:
    """The clock reaches `ms`; what is due happens."""
    clock.ms = ms
    while (due := operator.next_timer()) is not None and due <= ms:
        operator.on_timer(ms, Emitted())


def test_of_several_splits_the_slowest_says_how_late_it_is():
    operator, _ = timed(None)
    both = frozenset({"p0", "p1"})
    operator.on_split("p0", both)
    assert after(operator, 5_000) is None
    operator.on_split("p1", both)
    assert after(operator, 1_000) == 999
    assert after(operator, 2_000) == 1_999
    operator.on_split("p0", both)
    assert after(operator, 9_000) == 1_999
    operator.on_split("p0", frozenset({"p0"}))
    assert after(operator, 9_500) == 9_499


def test_a_split_that_is_new_holds_time_but_never_turns_it_back():
    operator, _ = timed(None)
    operator.on_split("p0", frozenset({"p0"}))
    assert after(operator, 5_000) == 4_999
    operator.on_split("p0", frozenset({"p0", "p1"}))
    assert after(operator, 8_000) == 4_999
    operator.on_split("p1", frozenset({"p0", "p1"}))
    assert after(operator, 1_000) == 4_999
    assert after(operator, 7_000) == 6_999


def test_an_idle_split_is_not_waited_for_until_it_has_records_again():
    operator, clock = timed(100)
    both = frozenset({"p0", "p1"})
    operator.on_split("p0", both)
    after(operator, 5_000)
    expire(operator, clock, 99)
    assert operator.emitted_watermark() is None
    clock.ms = 90
    after(operator, 6_000)
    expire(operator, clock, 100)
    assert operator.emitted_watermark() == 5_999
    assert not operator.is_idle(False)
    expire(operator, clock, 190)
    assert operator.is_idle(False)
    assert operator.next_timer() is None
    operator.on_split("p1", both)
    assert after(operator, 6_500) == 6_499
    assert not operator.is_idle(False)


def test_without_a_limit_nothing_becomes_idle_by_itself():
    operator = opened()
    after(operator, 5_000)
    assert operator.next_timer() is None
    assert (operator.is_idle(False), operator.is_idle(True)) == (False, True)


def test_a_source_that_is_too_far_ahead_of_the_slowest_waits_and_is_not_taken_for_idle():
    operator, clock = WatermarkOperator("ts", 0, idle_ms=100, drift_ms=1_000), Wall()
    context = OperatorContext(
        Uid("time"), "with_watermark", 0, 1, KeyGroupRange(0, 128), 128, Attempt(1), Generation(1), clock
    )
    operator.open(context)
    assert (operator.aligned_time, operator.is_ahead) == (None, False)
    after(operator, 5_000)
    assert (operator.aligned_time, operator.is_ahead) == (4_999, False)
    operator.align(3_998)
    assert operator.is_ahead
    expire(operator, clock, 150)
    assert (operator.aligned_time, operator.is_idle(False)) == (4_999, False)
    operator.align(3_999)
    assert not operator.is_ahead
    expire(operator, clock, 300)
    assert (operator.aligned_time, operator.is_idle(False)) == (None, True)


def test_the_end_of_time_waits_for_nobody():
    operator, _ = timed(None)
    aligned = WatermarkOperator("ts", 0, None, 10)
    aligned.align(0)
    aligned.on_watermark(MAX_WATERMARK, Emitted())
    assert (aligned.is_ahead, aligned.aligned_time, operator.is_aligned) == (False, None, False)
