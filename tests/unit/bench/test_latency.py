"""What the latency benchmark's sink measures comes out of it to a hundredth."""

from __future__ import annotations

import time
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from penstock.bench.latency import Ages, quantile_ms
from penstock.core.ids import CheckpointId


def test_quantiles_of_measured_ages_are_right_to_a_hundredth(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_700_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    ages_ms = np.random.default_rng(1).exponential(20.0, 10_000) + 0.1
    sink = Ages()
    writer = sink.writer()
    for part in np.array_split(now * 1000 - ages_ms, 3):
        writer.write(pa.record_batch({"newest": part}))
    sink.add(writer.prepare(CheckpointId(1)))
    assert int(sink.counts.sum()) == 10_000
    for share in (0.5, 0.99, 0.999):
        assert quantile_ms(sink.counts, share) == pytest.approx(cast(float, np.quantile(ages_ms, share)), rel=0.02)


def test_a_writer_hands_every_age_over_once() -> None:
    sink = Ages()
    writer = sink.writer()
    writer.write(pa.record_batch({"newest": [time.time() * 1000]}))
    assert len(writer.prepare(CheckpointId(1))) == 1
    assert writer.prepare(CheckpointId(2)) == ()
