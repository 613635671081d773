"""The benchmarks run on real Spark and tell what they promise; small, for their figures are of no interest here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli import app


def told(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["bench", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def test_a_workload_tells_its_rate_its_checkpoints_and_its_memory(spark: Any) -> None:
    figures = told("w1", "--keys", "1000", "--seconds", "2", "--every", "200ms")
    assert figures["events_per_s"] > 0
    assert (figures["keys"], figures["workers"], figures["failed_checkpoints"]) == (1_000, 2, 0)
    assert figures["checkpoints"] == len(figures["checkpoints_at"]) > 0
    assert 0 < figures["checkpoint_ms_p50"] <= figures["checkpoint_ms_p99"]
    assert figures["bytes"] > 0
    assert figures["memory_bytes"] == sum(figures["worker_memory_bytes"]) > 0
    assert figures["own_memory_bytes"] > 0 and 0 < figures["proportional_memory_bytes"] <= figures["memory_bytes"]


def test_latency_is_measured_at_a_tenth_of_a_full_load_that_is_measured_first(spark: Any) -> None:
    figures = told("latency", "--keys", "1000", "--seconds", "2", "--every", "200ms")
    assert figures["full_load"] > 0
    assert figures["rate"] == pytest.approx(figures["full_load"] / 10, abs=1)
    assert figures["outputs"] > 0
    assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["p999_ms"] <= figures["max_ms"]
    assert figures["checkpoints"] > 0
