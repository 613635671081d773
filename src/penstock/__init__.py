"""Penstock: fault-tolerant stateful streaming on PySpark.

Every public name is here and is loaded when it is first used: `import penstock` itself loads nothing of Arrow, Polars,
Numba or PySpark.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock import restart, sinks, sources
    from penstock.api.backends import RocksDB
    from penstock.api.checkpoints import Checkpoints
    from penstock.api.keyed import KeyedStream
    from penstock.api.pipeline import Pipeline
    from penstock.api.stream import Stream
    from penstock.api.windowed import WindowedStream
    from penstock.core.barrier import Mode
    from penstock.core.settings import InFlightSettings, RuntimeSettings
    from penstock.graph.errors import PipelineError, UnnamedOperatorWarning
    from penstock.operators.aggregation.declare import (
        approx_count_distinct,
        collect,
        count,
        count_distinct,
        first,
        last,
        max,
        mean,
        min,
        quantile,
        std,
        sum,
        top_n,
        user_defined,
        var,
    )
    from penstock.operators.keyed import KeyedContext, KeyedFunction, Row, Timer
    from penstock.operators.stream_function import StreamContext, StreamFunction
    from penstock.operators.windows.declare import (
        count_window,
        every,
        every_count,
        global_window,
        session,
        sliding,
        tumbling,
    )
    from penstock.runtime.network.tls import TlsFiles
    from penstock.runtime.outcome import JobResult
    from penstock.spark.job import CheckpointFailed, Job, JobFailed, RescaleFailed
    from penstock.state.declare import aggregating, list, map, reducing, value
    from penstock.state.operator_state import operator_broadcast, operator_list, operator_union, raw
    from penstock.state.timers import TimerKind
    from penstock.state.ttl import TTL

__version__ = "0.1.0"

_MODULES = ("restart", "sinks", "sources")
_HOME_OF = {
    "CheckpointFailed": "penstock.spark.job",
    "RescaleFailed": "penstock.spark.job",
    "Checkpoints": "penstock.api.checkpoints",
    "InFlightSettings": "penstock.core.settings",
    "Job": "penstock.spark.job",
    "JobFailed": "penstock.spark.job",
    "JobResult": "penstock.runtime.outcome",
    "KeyedContext": "penstock.operators.keyed",
    "KeyedFunction": "penstock.operators.keyed",
    "KeyedStream": "penstock.api.keyed",
    "Mode": "penstock.core.barrier",
    "Pipeline": "penstock.api.pipeline",
    "PipelineError": "penstock.graph.errors",
    "RocksDB": "penstock.api.backends",
    "Row": "penstock.operators.keyed",
    "RuntimeSettings": "penstock.core.settings",
    "Stream": "penstock.api.stream",
    "StreamContext": "penstock.operators.stream_function",
    "StreamFunction": "penstock.operators.stream_function",
    "TTL": "penstock.state.ttl",
    "TlsFiles": "penstock.runtime.network.tls",
    "Timer": "penstock.operators.keyed",
    "TimerKind": "penstock.state.timers",
    "UnnamedOperatorWarning": "penstock.graph.errors",
    "WindowedStream": "penstock.api.windowed",
    "aggregating": "penstock.state.declare",
    "list": "penstock.state.declare",
    "map": "penstock.state.declare",
    "operator_broadcast": "penstock.state.operator_state",
    "operator_list": "penstock.state.operator_state",
    "operator_union": "penstock.state.operator_state",
    "raw": "penstock.state.operator_state",
    "reducing": "penstock.state.declare",
    "value": "penstock.state.declare",
    "approx_count_distinct": "penstock.operators.aggregation.declare",
    "collect": "penstock.operators.aggregation.declare",
    "count": "penstock.operators.aggregation.declare",
    "count_distinct": "penstock.operators.aggregation.declare",
    "first": "penstock.operators.aggregation.declare",
    "last": "penstock.operators.aggregation.declare",
    "max": "penstock.operators.aggregation.declare",
    "mean": "penstock.operators.aggregation.declare",
    "min": "penstock.operators.aggregation.declare",
    "quantile": "penstock.operators.aggregation.declare",
    "std": "penstock.operators.aggregation.declare",
    "sum": "penstock.operators.aggregation.declare",
    "top_n": "penstock.operators.aggregation.declare",
    "user_defined": "penstock.operators.aggregation.declare",
    "var": "penstock.operators.aggregation.declare",
    "count_window": "penstock.operators.windows.declare",
    "every": "penstock.operators.windows.declare",
    "every_count": "penstock.operators.windows.declare",
    "global_window": "penstock.operators.windows.declare",
    "session": "penstock.operators.windows.declare",
    "sliding": "penstock.operators.windows.declare",
    "tumbling": "penstock.operators.windows.declare",
}

__all__ = [
    "TTL",
    "CheckpointFailed",
    "Checkpoints",
    "InFlightSettings",
    "Job",
    "JobFailed",
    "JobResult",
    "KeyedContext",
    "KeyedFunction",
    "KeyedStream",
    "Mode",
    "Pipeline",
    "PipelineError",
    "RescaleFailed",
    "RocksDB",
    "Row",
    "RuntimeSettings",
    "Stream",
    "StreamContext",
    "StreamFunction",
    "Timer",
    "TimerKind",
    "TlsFiles",
    "UnnamedOperatorWarning",
    "WindowedStream",
    "aggregating",
    "approx_count_distinct",
    "collect",
    "count",
    "count_distinct",
    "count_window",
    "every",
    "every_count",
    "first",
    "global_window",
    "last",
    "list",
    "map",
    "max",
    "mean",
    "min",
    "operator_broadcast",
    "operator_list",
    "operator_union",
    "quantile",
    "raw",
    "reducing",
    "restart",
    "session",
    "sinks",
    "sliding",
    "sources",
    "std",
    "sum",
    "top_n",
    "tumbling",
    "user_defined",
    "value",
    "var",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"penstock.{name}")
    if name in _HOME_OF:
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> Iterable[str]:
    return sorted(__all__)
