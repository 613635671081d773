"""Rows through one task: slices, turns, grants, lingering, routing."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from tests.unit.runtime.task.harness import SETTINGS, ManualClock, Pass, Seen, in_flight, pairs, rows
from tests.unit.runtime.task.lone import IN, OUT, Lone

from penstock.core.settings import InFlightSettings
from penstock.graph.job import Partitioning
from penstock.operators.base import Collector, Operator, Polled, SourceOperator
from penstock.runtime.elements import EndOfData, Idle, Watermark

A, B = IN


class Sized(Operator):
    """Notes the sizes of the batches that it gets, and takes `cost` seconds for each row."""

    clock: ManualClock

    def __init__(self, cost: float = 0.0) -> None:
        self.cost = cost
        self.sizes: list[int] = []

    def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
        self.sizes.append(batch.num_rows)
        self.clock.advance(self.cost * batch.num_rows)
        out.emit(batch)


def sized(cost: float = 0.0) -> tuple[Lone, Sized]:
    lone = Lone(lambda: Sized(cost))
    operator = lone.operator
    assert isinstance(operator, Sized)
    operator.clock = lone.clock
    return lone, operator


# ---- slices and turns ----
def test_a_step_processes_one_slice() -> None:
    lone = Lone(Seen)
    lone.arrives(A, rows(0, range(2000)), rows(0, range(2000, 2001)))
    lone.step()
    assert lone.task.rows_in == 256
    lone.step()
    assert lone.task.rows_in == 256 + 512


def test_slices_grow_to_the_step_budget() -> None:
    lone, operator = sized(cost=1e-5)
    lone.arrives(A, rows(0, range(20_000)))
    lone.run()
    assert operator.sizes[:2] == [256, 512]
    assert 990 <= operator.sizes[2] <= 1000
    assert max(operator.sizes) <= 1000
    assert sum(operator.sizes) == 20_000


def test_small_batches_of_one_channel_are_joined() -> None:
    lone, operator = sized()
    lone.arrives(A, *(rows(0, [n]) for n in range(50)))
    lone.run()
    assert operator.sizes == [50]


def test_rows_are_not_joined_across_a_watermark() -> None:
    lone = Lone(Seen)
    lone.arrives(A, rows(0, [1]), Watermark(1), rows(0, [2])).arrives(B, Watermark(1))
    lone.run()
    assert lone.sent() == [[(0, 1)], Watermark(1), [(0, 2)]]


def test_channels_take_turns() -> None:
    lone = Lone(Pass)
    lone.arrives(A, rows(0, range(256)), rows(0, range(256, 5000)))
    lone.arrives(B, rows(1, range(256)), rows(1, range(256, 5000)))
    seen = []
    for _ in range(4):
        lone.step()
        seen += [{source for source, _ in batch} for batch in lone.sent()]  # type: ignore[attr-defined]
    assert seen == [{0}, {1}, {0}, {1}]


def test_a_task_without_anything_to_do_waits_for_a_note() -> None:
    lone = Lone(Pass)
    assert lone.step() is None
    lone.arrives(A, rows(0, [1]))
    lone.step()
    assert lone.step() is None


# ---- grants ----
def test_the_first_step_grants_every_channel_its_share() -> None:
    lone = Lone(Pass, settings=in_flight(100))
    lone.step()
    assert lone.granted(A) == [50]
    assert lone.granted(B) == [50]


def test_a_grant_follows_when_half_of_the_share_is_free() -> None:
    lone = Lone(Pass, settings=in_flight(100))
    lone.step()
    lone.granted(A)
    lone.arrives(A, rows(0, range(24)))
    lone.run()
    assert lone.granted(A) == []
    lone.arrives(A, rows(0, [24]))
    lone.run()
    assert lone.granted(A) == [75]


def test_a_channel_that_has_ended_leaves_its_share_to_the_others() -> None:
    lone = Lone(Pass, settings=in_flight(100))
    lone.step()
    lone.granted(A)
    lone.arrives(B, EndOfData())
    lone.arrives(A, rows(0, [1]))
    lone.run()
    assert lone.granted(A) == [101]


def test_capacity_follows_the_measured_rate() -> None:
    settings = replace(SETTINGS, in_flight=InFlightSettings(target=0.2, initial_rows=1000, min_rows=10))
    lone = Lone(lambda: Sized(1e-4), settings=settings)
    lone.operator.clock = lone.clock  # type: ignore[attr-defined]
    lone.arrives(A, rows(0, range(20_000))).arrives(B, EndOfData())
    lone.run()
    # 10,000 rows/s for 0.2 s; the last half of it may not have been announced yet.
    assert 20_000 + 950 < lone.granted(A)[-1] < 20_000 + 2050


def test_rows_leave_only_within_the_grant() -> None:
    lone = Lone(Pass, grant=0)
    lone.arrives(A, rows(0, range(10)))
    lone.run()
    assert lone.sent() == []
    lone.grant(OUT[0], 4)
    lone.run()
    assert lone.sent() == [[(0, n) for n in range(4)]]
    lone.grant(OUT[0], 4).grant(OUT[0], 3)
    lone.run()
    assert lone.sent() == []
    lone.grant(OUT[0], 20)
    lone.run()
    assert lone.sent() == [[(0, n) for n in range(4, 10)]]


def test_a_blocked_task_takes_no_more_input() -> None:
    lone = Lone(Seen, grant=0)
    lone.arrives(A, rows(0, [1]))
    lone.run()
    lone.arrives(A, rows(0, [2])).arrives(B, Watermark(5))
    assert lone.step() is None
    assert lone.operator.state == [[0, 1]]  # type: ignore[attr-defined]
    lone.grant(OUT[0], 10).grant(OUT[1], 10)
    lone.run()
    assert lone.operator.state == [[0, 1], [0, 2]]  # type: ignore[attr-defined]


def test_control_elements_need_no_grant_but_keep_their_order_behind_rows() -> None:
    lone = Lone(Pass, grant=0)
    lone.arrives(A, Watermark(1)).arrives(B, Watermark(1), rows(0, [7]))
    lone.run()
    lone.arrives(A, Watermark(2)).arrives(B, Watermark(2))
    lone.run()
    assert lone.sent() == [Watermark(1)]
    lone.grant(OUT[0], 1).grant(OUT[1], 1)
    lone.run()
    assert lone.sent() == [[(0, 7)], Watermark(2)]


# ---- lingering ----
LINGERING = replace(SETTINGS, linger=0.005, small_batch_rows=100)


def test_a_lone_row_leaves_when_its_time_is_up() -> None:
    lone = Lone(Pass, settings=LINGERING)
    lone.arrives(A, rows(0, [1]))
    assert lone.step() == lone.clock.now() + 0.005
    assert lone.sent() == []
    lone.step(0.005)
    assert lone.sent() == [[(0, 1)]]


def test_small_batches_leave_as_one() -> None:
    lone = Lone(Pass, settings=LINGERING)
    for n in range(3):
        lone.arrives(A, rows(0, [n]))
        lone.step()
    lone.step(0.005)
    assert lone.sent() == [[(0, 0), (0, 1), (0, 2)]]


def test_enough_rows_leave_at_once() -> None:
    lone = Lone(Pass, settings=LINGERING)
    lone.arrives(A, rows(0, range(60)))
    lone.step()
    lone.arrives(A, rows(0, range(60)))
    lone.step()
    assert [len(batch) for batch in lone.sent()] == [120]  # type: ignore[arg-type]


def test_a_watermark_waits_with_the_rows_before_it_and_never_passes_them() -> None:
    lone = Lone(Pass, settings=LINGERING)
    lone.arrives(A, rows(0, [1]), Watermark(1)).arrives(B, Watermark(1))
    lone.step()
    lone.step()
    lone.arrives(A, rows(0, [2]), Watermark(2)).arrives(B, Watermark(2))
    lone.step()
    lone.step()
    assert lone.sent() == []
    lone.step(0.005)
    assert lone.sent() == [[(0, 1), (0, 2)], Watermark(2)]


def test_an_idle_mark_does_not_let_rows_linger() -> None:
    lone = Lone(Pass, settings=LINGERING)
    lone.arrives(A, rows(0, [1]), Idle()).arrives(B, Idle())
    lone.step()
    lone.step()
    assert lone.sent() == [[(0, 1)], Idle(active=False)]


class Pausing(Seen, SourceOperator):
    """A row with every poll, then a pause."""

    pause = 0.0

    def poll(self, max_rows: int) -> Polled:
        return Polled(rows(0, [1]), idle_for=self.pause)


def pausing(seconds: float) -> Lone:
    class Source(Pausing):
        pause = seconds

    return Lone(Source, settings=LINGERING, source=True)


def test_rows_of_a_source_that_pauses_for_longer_than_they_may_linger_leave_at_once() -> None:
    lone = pausing(0.005)
    assert lone.step() == lone.clock.now() + 0.005
    assert lone.sent(lone.out[0]) == [[(0, 1)]]


def test_rows_of_a_source_that_is_polled_again_soon_linger() -> None:
    lone = pausing(0.002)
    assert lone.step() == lone.clock.now() + 0.002
    assert lone.sent(lone.out[0]) == []
    lone.step(0.002)
    lone.step(0.002)
    assert lone.sent(lone.out[0]) == [[(0, 1), (0, 1), (0, 1)]]


def test_watermarks_that_wait_behind_rows_become_one() -> None:
    lone = Lone(Pass, grant=0)
    lone.arrives(A, rows(0, [1]))
    lone.step()
    outputs = lone.task._outputs
    outputs.watermark(1)
    outputs.watermark(2)
    lone.grant(OUT[0], 1)
    lone.step()
    assert lone.sent() == [[(0, 1)], Watermark(2)]


# ---- routing ----
def test_broadcast_sends_every_row_to_everybody() -> None:
    lone = Lone(Pass, out=Partitioning.BROADCAST)
    lone.arrives(A, rows(0, [1, 2]))
    lone.run()
    assert lone.sent(OUT[0]) == lone.sent(OUT[1]) == [[(0, 1), (0, 2)]]


def test_rebalance_gives_small_batches_in_turn() -> None:
    lone = Lone(Pass, out=Partitioning.REBALANCE)
    for n in range(4):
        lone.arrives(A, rows(0, [n]))
        lone.step()
    assert lone.sent(OUT[0]) == [[(0, 0)], [(0, 2)]]
    assert lone.sent(OUT[1]) == [[(0, 1)], [(0, 3)]]


def test_rebalance_splits_large_batches() -> None:
    lone = Lone(Pass, out=Partitioning.REBALANCE)
    lone.step()
    lone.task._outputs.emit(rows(0, range(10_000)))
    assert [[len(batch) for batch in lone.sent(where)] for where in OUT] == [[5000], [5000]]  # type: ignore[arg-type]


def test_a_hash_edge_keeps_rows_of_a_key_together_and_in_order() -> None:
    lone = Lone(Pass, out=Partitioning.HASH)
    lone.arrives(A, rows(0, [*range(50), *range(50)]))
    lone.run()
    shares = [[row for batch in lone.sent(where) for row in batch] for where in OUT]  # type: ignore[attr-defined]
    assert sorted(shares[0] + shares[1]) == sorted([(0, n) for n in range(50)] * 2)
    assert not set(shares[0]) & set(shares[1])
    for share in shares:
        assert share == [row for row in pairs(rows(0, [*range(50), *range(50)])) if row in share]


def test_an_operator_that_emits_nothing_sends_nothing() -> None:
    class Nothing(Operator):
        def process(self, batch: pa.RecordBatch, input: int, out: Collector) -> None:
            out.emit(batch.slice(0, 0))

    lone = Lone(Nothing, Seen)
    lone.arrives(A, rows(0, [1]))
    lone.run()
    assert lone.sent() == []
