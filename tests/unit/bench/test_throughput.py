"""What workers say becomes rates by the second; Polars groups what the windows group."""

from __future__ import annotations

import numpy as np
import polars as pl

from penstock.bench.events import Events
from penstock.bench.reference import GROUPS
from penstock.bench.throughput import Sample, _per_second
from penstock.core.ids import Attempt, WorkerId
from penstock.runtime.control.messages import Figures

ONE, OTHER = WorkerId("one"), WorkerId("other")


def said(**workers: tuple[int, int]) -> Sample:
    """By worker: its clock in milliseconds, and the rows that its subtask has taken in."""
    return {
        WorkerId(worker): Figures(Attempt(1), at_ms, rows_in={"totals[0]": rows, "events[0]": 7}, rows_out={}, busy={})
        for worker, (at_ms, rows) in workers.items()
    }


def test_each_worker_counts_by_its_own_clock() -> None:
    samples = [said(one=(1_000, 0), other=(1_500, 0)), said(one=(2_000, 100), other=(3_500, 100))]
    assert _per_second(samples, "totals") == [(2.5, 150)]


def test_a_sample_without_news_of_every_worker_is_passed_over() -> None:
    samples = [
        said(one=(1_000, 0), other=(1_000, 0)),
        said(one=(2_000, 100), other=(1_000, 0)),
        said(one=(2_000, 100), other=(2_000, 50)),
    ]
    assert _per_second(samples, "totals") == [(1.0, 150)]


def test_polars_groups_by_key_and_window_where_the_workload_does() -> None:
    frame = pl.DataFrame(Events(100)(np.arange(3_000_000)))
    assert len(frame.group_by(GROUPS["w1"]).agg(pl.len())) == 100
    assert len(frame.group_by(GROUPS["w2"]).agg(pl.len())) == 300
