"""`Pipeline`: sources, streams and sinks that run together as one job."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from penstock.api.backends import RocksDB, with_backend
from penstock.api.checkpoints import Checkpoints
from penstock.api.stream import Stream
from penstock.core.ids import CheckpointId
from penstock.core.restarts import RestartSettings
from penstock.core.settings import RuntimeSettings
from penstock.graph import nodes
from penstock.graph.build import build
from penstock.graph.errors import PipelineError, UnnamedOperatorWarning
from penstock.graph.explain import explain
from penstock.graph.job import JobGraph
from penstock.graph.places import calling_place
from penstock.graph.plan import Plan
from penstock.graph.shipping import check_shippable
from penstock.graph.uids import assign_uids, check_uid, unnamed_warning
from penstock.graph.validate import check_key_groups, check_parallelism

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.connectors.base import Source
    from penstock.runtime.network.tls import TlsFiles
    from penstock.runtime.outcome import JobResult
    from penstock.spark.job import Job


_captured: ContextVar[list[Pipeline] | None] = ContextVar("captured", default=None)


class _Captured(BaseException):
    """Ends a program at the point where it would start its pipeline."""


@contextmanager
def captured_start() -> Iterator[list[Pipeline]]:
    """Within, a pipeline that would be started is put into the list instead, and the program that starts it ends."""
    found: list[Pipeline] = []
    token = _captured.set(found)
    try:
        yield found
    except _Captured:
        pass
    finally:
        _captured.reset(token)


class Pipeline:
    """A job to be: give it sources, connect them to sinks, then `run()` or `start()` it.

    `name`: of the job; its checkpoints carry it.
    `parallelism`: how many subtasks every operator has that says nothing else.
    `checkpoints`: None runs without any: after a failure the job begins from scratch.
    `spark`: the session to run on; None starts an embedded local one.
    `restart`: what to do after a failure, see `ps.restart`; None for the default, exponential delays.
    `key_groups`: into how many groups keys are divided, the highest parallelism that keyed state can ever have; it can
    only be raised, and only offline (`penstock rehash`).
    `spares`: workers that wait idle to take over from a lost one.
    `backend`: where state is kept: "memory"; "files", which is the same with every snapshot in files, even small ones,
    and nothing inside the metadata; "rocksdb", or `ps.RocksDB(memory="1GB")`, for user state larger than memory.
    `local_copies`: whether workers keep copies of what they write for checkpoints on their own disk, and restore from
    there what they need; "auto": if the checkpoint directory is not on a local disk.
    `tls`: certificates for the connections between machines, see `ps.TlsFiles`; None: not encrypted.
    `runtime`: all finer settings.
    """

    def __init__(
        self,
        name: str,
        *,
        parallelism: int = 2,
        checkpoints: Checkpoints | None = None,
        spark: SparkSession | None = None,
        restart: RestartSettings | None = None,
        key_groups: int = 128,
        spares: int = 0,
        backend: str | RocksDB = "memory",
        local_copies: bool | Literal["auto"] = "auto",
        tls: TlsFiles | None = None,
        runtime: RuntimeSettings | None = None,
    ) -> None:
        _check_numbers(name, parallelism, key_groups, spares)
        _check_objects(checkpoints, restart, runtime)
        self._plan = Plan(name, parallelism, key_groups)
        self._checkpoints, self._spark, self._restart, self._tls = checkpoints, spark, restart, tls
        if not isinstance(local_copies, bool) and local_copies != "auto":
            raise PipelineError(f'local_copies={local_copies!r} must be True, False or "auto"')
        self._runtime = with_backend(replace(runtime or RuntimeSettings(), spares=spares), backend)
        if local_copies != "auto":
            self._runtime = replace(self._runtime, local_copies=local_copies)
        self._warned = False

    @property
    def name(self) -> str:
        return self._plan.name

    def source(self, source: Source, *, uid: str | None = None, parallelism: int | None = None) -> Stream:
        """A stream of the source's records."""
        return Stream(self._plan, nodes.add_source(self._plan, source, uid, parallelism))

    def graph(self) -> JobGraph:
        """The job as it would run: checked, named, cut into chains. Raises a `PipelineError` if it could not."""
        graph = build(self._plan)
        check_shippable(self._plan)
        self._warn_of_unnamed()
        return graph

    def explain(self) -> str:
        """The graph as text: chains, their operators and schemas, and how they are connected."""
        return explain(build(self._plan))

    def start(
        self,
        *,
        restore: CheckpointId | int | str | None = None,
        claim: bool = False,
        allow_dropped_state: bool = False,
    ) -> Job:
        """Starts the job and returns at once. It goes on from the newest complete checkpoint, or from what `restore`
        names: one of its retained checkpoints by number, or by path a savepoint, another job's checkpoint directory
        (its newest checkpoint) or one checkpoint in it (`.../checkpoints/12`). What comes from elsewhere is copied into
        the job's own directory first and is not touched any more; with `claim` the savepoint is removed then. State
        that the pipeline has no place for is refused unless `allow_dropped_state`."""
        captured = _captured.get()
        if captured is not None:
            captured.append(self)
            raise _Captured
        graph = self.graph()
        from penstock.spark.job import start_job  # PySpark is loaded only to run

        return start_job(
            graph,
            spark=self._spark,
            checkpoints=self._checkpoints.settings if self._checkpoints else None,
            directory=self._checkpoints.directory if self._checkpoints else None,
            runtime=self._settings(allow_dropped_state),
            restarts=self._restart,
            restore=CheckpointId(restore) if isinstance(restore, int) else restore,
            claim=claim,
            tls=self._tls,
        )

    def _settings(self, allow_dropped_state: bool) -> RuntimeSettings:
        layers = self._runtime.layers
        if self._checkpoints is not None:
            layers = self._checkpoints.layers(layers)
        return replace(self._runtime, layers=layers, allow_dropped_state=allow_dropped_state)

    def run(
        self,
        *,
        restore: CheckpointId | int | str | None = None,
        claim: bool = False,
        allow_dropped_state: bool = False,
    ) -> JobResult:
        """Starts the job and waits for its end. Raises `JobFailed` if it fails. Ctrl-C cancels the job."""
        job = self.start(restore=restore, claim=claim, allow_dropped_state=allow_dropped_state)
        try:
            return job.wait()
        finally:
            if not job.done():
                job.cancel()

    def _warn_of_unnamed(self) -> None:
        message = unnamed_warning(self._plan, assign_uids(self._plan))
        if message is not None and not self._warned:
            self._warned = True
            place = calling_place()
            warnings.warn_explicit(message, UnnamedOperatorWarning, place.file, place.line)

    def __repr__(self) -> str:
        return f"<Pipeline {self.name!r}: {len(self._plan.nodes)} operators>"


def _check_numbers(name: str, parallelism: int, key_groups: int, spares: int) -> None:
    try:
        check_uid(name)
    except ValueError as error:
        raise PipelineError(f"Pipeline: {str(error).replace('uid=', 'name=', 1)}") from None
    check_parallelism(parallelism)
    check_key_groups(key_groups)
    if not isinstance(spares, int) or isinstance(spares, bool) or spares < 0:
        raise PipelineError(f"spares={spares!r} must be a whole number of at least 0")


def _check_objects(checkpoints: object, restart: object, runtime: object) -> None:
    if checkpoints is not None and not isinstance(checkpoints, Checkpoints):
        raise PipelineError(
            f"checkpoints={checkpoints!r} must be a Checkpoints object, "
            'for example checkpoints=ps.Checkpoints("s3://bucket/orders", every="1s")'
        )
    if restart is not None and not isinstance(restart, RestartSettings):
        raise PipelineError(
            f"restart={restart!r} is no restart strategy: use one of ps.restart.none(), ps.restart.fixed_delay(...), "
            "ps.restart.exponential(...), ps.restart.failure_rate(...)"
        )
    if runtime is not None and not isinstance(runtime, RuntimeSettings):
        raise PipelineError(f"runtime={runtime!r} must be a RuntimeSettings object: ps.RuntimeSettings(linger=0.001)")
