"""Checkpoints, restart strategies and the pipeline's own settings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import penstock as ps
from penstock.core.restarts import ExponentialDelay, FailureRate, FixedDelay, NoRestart
from penstock.core.settings import CheckpointSettings, RocksDBSettings
from penstock.state.rocks.memory import check_installed


def test_checkpoints_without_options_have_the_defaults_of_the_core():
    assert ps.Checkpoints("dir").settings == CheckpointSettings()


def test_checkpoints_translate_every_option(tmp_path: Path):
    checkpoints = ps.Checkpoints(
        tmp_path, every="200ms", mode="at_least_once", alignment_timeout="1s", timeout="1min", minimum_pause="50ms",
        maximum_concurrent=3, tolerable_failures=2, keep=5,
    )  # fmt: skip
    assert checkpoints.directory == str(tmp_path)
    assert checkpoints.settings == CheckpointSettings(0.2, ps.Mode.AT_LEAST_ONCE, 1.0, 60.0, 0.05, 3, 2, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": "soon"}, "Checkpoints: every='soon' is no duration"),
        ({"every": 0}, "every=0 must be more than 0"),
        ({"mode": "sometimes"}, "mode='sometimes' does not exist; choose from 'aligned', 'at_least_once', 'unaligned'"),
        ({"keep": 0}, "keep=0 must be a whole number of at least 1"),
        ({"tolerable_failures": -1}, "tolerable_failures=-1 must be a whole number of at least 0"),
        ({"maximum_concurrent": 2}, "maximum_concurrent=2 needs mode 'aligned' or 'at_least_once'; with 'adaptive'"),
    ],
)
def test_a_bad_checkpoint_setting_is_refused_where_it_is_written(options, message):
    with pytest.raises(ps.PipelineError) as error:
        ps.Checkpoints("dir", **options)
    assert message in str(error.value)


def test_an_empty_checkpoint_path_is_refused():
    with pytest.raises(ps.PipelineError, match="the path is empty"):
        ps.Checkpoints("")


def test_restart_strategies_are_written_with_durations():
    assert ps.restart.none() == NoRestart()
    assert ps.restart.fixed_delay("2s", attempts=5) == FixedDelay(attempts=5, delay=2.0)
    assert ps.restart.exponential() == ExponentialDelay()
    assert ps.restart.failure_rate(4, per="1min", delay=0) == FailureRate(failures=4, per=60.0, delay=0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ps.restart.fixed_delay("later"),
        lambda: ps.restart.fixed_delay(attempts=0),
        lambda: ps.restart.exponential(multiplier=0.5),
        lambda: ps.restart.failure_rate(per=0),
    ],
)
def test_a_bad_restart_setting_is_refused(wrong):
    with pytest.raises(ps.PipelineError, match="restart: "):
        wrong()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "no/slashes"}, "Pipeline: name='no/slashes' is no usable name"),
        ({"parallelism": 0}, "parallelism=0 must be a whole number of at least 1"),
        ({"parallelism": 1.5}, "parallelism=1.5 must be"),
        ({"key_groups": 100}, "key_groups must be a power of two"),
        ({"key_groups": "many"}, "key_groups must be a power of two"),
        ({"spares": -1}, "spares=-1 must be a whole number of at least 0"),
        ({"checkpoints": "s3://bucket"}, "must be a Checkpoints object, for example checkpoints=ps.Checkpoints("),
        ({"restart": "always"}, "restart='always' is no restart strategy: use one of ps.restart.none()"),
        ({"runtime": {"linger": 1}}, "runtime={'linger': 1} must be a RuntimeSettings object"),
    ],
)
def test_a_bad_pipeline_setting_is_refused_where_it_is_written(options, message):
    with pytest.raises(ps.PipelineError) as error:
        ps.Pipeline(**{"name": "job", **options})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("said", "finer", "meant"), [("auto", None, None), ("auto", True, True), (True, None, True), (False, True, False)]
)
def test_local_copies_are_as_the_pipeline_says_or_else_as_the_finer_settings_do(said, finer, meant):
    pipeline = ps.Pipeline("orders", local_copies=said, runtime=ps.RuntimeSettings(local_copies=finer))
    assert pipeline._runtime.local_copies is meant


@pytest.mark.parametrize(
    ("memory", "expected"), [("256MB", 256 << 20), ("1.5 GB", 3 << 29), ("64MiB", 64 << 20), (1 << 30, 1 << 30)]
)
def test_the_memory_of_rocksdb_is_written_as_a_size(memory, expected):
    assert ps.RocksDB(memory=memory).settings.memory == expected


@pytest.mark.parametrize("memory", ["much", "-1GB", "1MB", 0, True, None, "256 MBit"])
def test_a_memory_that_is_none_is_refused_where_it_is_written(memory):
    with pytest.raises(ps.PipelineError, match=r"RocksDB: memory=.* must be a size of at least 16MB: write"):
        ps.RocksDB(memory=memory)


def test_the_backend_decides_where_state_and_its_snapshots_go(tmp_path: Path):
    def runtime(backend):
        return ps.Pipeline("p", backend=backend)._runtime

    assert runtime("memory") == ps.RuntimeSettings()
    assert runtime("files").layers.inline == 0
    assert runtime("rocksdb").rocksdb == RocksDBSettings()
    assert runtime(ps.RocksDB("1GB", tmp_path)).rocksdb == RocksDBSettings(1 << 30, str(tmp_path))


def test_a_backend_that_does_not_exist_is_refused():
    with pytest.raises(ps.PipelineError, match="backend='disk' does not exist; choose from 'memory', 'files'"):
        ps.Pipeline("p", backend="disk")


def test_rocksdb_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(ps.PipelineError, match=r"pip install penstock\[rocksdb\]"):
        ps.Pipeline("p", backend="rocksdb")
    with pytest.raises(ImportError, match=r"pip install penstock\[rocksdb\], on every worker"):
        check_installed()
