"""What the latency benchmark's sink measures comes out of it to a hundredth."""

from __future__ import annotations

import time
from typing import cast
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest

from penstock.bench.events import Events
from penstock.bench.latency import Ages, Created, _figure, plot, quantile_ms
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


def test_an_event_is_created_when_its_turn_comes_however_late_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_700_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    created = Created(Events(10), rate=1_000.0)
    first = created(np.array([0, 1, 2])).column("created").to_numpy()
    now += 60.0
    second = created(np.array([3, 4])).column("created").to_numpy()
    assert np.diff(np.concatenate([first, second])) == pytest.approx(1.0, abs=0.001)


def test_no_event_is_younger_than_it_would_be_had_its_source_begun_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_700_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    created = Created(Events(10), rate=1_000.0)
    created(np.arange(1, 11))
    caught_up = created(np.arange(11, 501)).column("created").to_numpy()
    assert caught_up[-1] == pytest.approx(now * 1000, abs=0.001)
    now += 0.1
    in_time = created(np.arange(501, 601)).column("created").to_numpy()
    assert now * 1000 - in_time[[0, -1]] == pytest.approx([99.0, 0.0], abs=0.001)


def test_figures_are_those_of_the_counted_ages_and_the_completed_checkpoints() -> None:
    counts = np.zeros(2_000, np.int64)
    counts[[100, 500]] = 98, 2
    figure = _figure(counts, Events(10), 1e6, 1e7, 2, [])
    assert (figure.rate, figure.full_load, figure.outputs, figure.window_ms) == (1e6, 1e7, 100, 10.0)
    assert figure.p50_ms < figure.p99_ms == figure.p999_ms == figure.max_ms
    assert [share for _, share in figure.ages] == [0.98, 1.0]
    assert (figure.checkpoints, figure.checkpoint_ms_p50, figure.bytes) == (0, None, 0)
    ElementTree.fromstring(plot(figure))
