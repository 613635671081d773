"""`Checkpoints`: where a job's checkpoints go, how often and how they are taken."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TypedDict

from penstock.api.durations import Duration, seconds
from penstock.core.barrier import Mode
from penstock.core.settings import CheckpointSettings, LayerSettings
from penstock.graph.errors import PipelineError, listed


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints of a pipeline.

    >>> Checkpoints("/data/orders", every="500ms", mode="unaligned").settings.every
    0.5
    """

    path: str | os.PathLike[str]
    """A directory or URL (`s3://bucket/orders`) that belongs to this one job."""
    every: Duration = "1s"
    mode: Mode | str = Mode.ADAPTIVE
    """`adaptive`, `aligned`, `unaligned`, `at_least_once` or `stop_the_world`."""
    alignment_timeout: Duration = "100ms"
    """`adaptive`: how long barriers may wait for each other before they overtake the records in flight."""
    timeout: Duration = "10min"
    """A checkpoint that takes longer is given up."""
    minimum_pause: Duration = 0
    """Between the end of one checkpoint and the start of the next."""
    maximum_concurrent: int = 1
    tolerable_failures: int = 0
    """How many checkpoints in a row may fail before the job restarts."""
    keep: int = 3
    """How many complete checkpoints are retained."""
    incremental: bool = True
    """Whether a checkpoint writes only what has changed in a state since the last one."""
    changelog: bool = False
    """Whether changes are also written between two checkpoints, so that these have little left to do, and the whole
    state seldom: for short intervals and large states. A restore reads more then."""

    def __post_init__(self) -> None:
        if not os.fspath(self.path):
            raise PipelineError(
                'Checkpoints: the path is empty; give a directory or URL, for example "s3://bucket/orders"'
            )
        _ = self.settings  # every value is checked where it was written
        for name, value in (("incremental", self.incremental), ("changelog", self.changelog)):
            if not isinstance(value, bool):
                raise PipelineError(f"Checkpoints: {name}={value!r} must be True or False")
        if self.changelog and not self.incremental:
            raise PipelineError("Checkpoints: changelog=True is about changes: it does not go with incremental=False")

    @property
    def directory(self) -> str:
        return os.fspath(self.path)

    @property
    def settings(self) -> CheckpointSettings:
        try:
            return CheckpointSettings(
                every=seconds(self.every, "every", positive=True),
                mode=self._checked_mode(),
                alignment_timeout=seconds(self.alignment_timeout, "alignment_timeout"),
                timeout=seconds(self.timeout, "timeout", positive=True),
                minimum_pause=seconds(self.minimum_pause, "minimum_pause"),
                maximum_concurrent=self._checked_concurrency(),
                tolerable_failures=_at_least(0, self.tolerable_failures, "tolerable_failures"),
                keep=_at_least(1, self.keep, "keep"),
            )
        except ValueError as error:
            raise PipelineError(f"Checkpoints: {error}") from None

    def layers(self, settings: LayerSettings) -> LayerSettings:
        """How state is written, given the finer settings."""
        settings = replace(settings, incremental=settings.incremental and self.incremental)
        return settings.as_changelog() if self.changelog else settings

    def _checked_mode(self) -> Mode:
        try:
            return Mode(self.mode)
        except ValueError:
            raise ValueError(
                f"mode={self.mode!r} does not exist; choose from {listed(mode.value for mode in Mode)}"
            ) from None

    def _checked_concurrency(self) -> int:
        concurrent = _at_least(1, self.maximum_concurrent, "maximum_concurrent")
        if concurrent > 1 and self._checked_mode() in (Mode.UNALIGNED, Mode.ADAPTIVE, Mode.STOP_THE_WORLD):
            raise ValueError(
                f"maximum_concurrent={concurrent} needs mode 'aligned' or 'at_least_once'; with {str(self.mode)!r} "
                "checkpoints are taken one at a time"
            )
        return concurrent


class CheckpointOptions(TypedDict, total=False):
    """What can be changed while the job runs."""

    every: Duration
    mode: Mode | str
    alignment_timeout: Duration
    timeout: Duration
    minimum_pause: Duration
    maximum_concurrent: int
    tolerable_failures: int
    keep: int


def changed_settings(settings: CheckpointSettings, options: CheckpointOptions) -> CheckpointSettings:
    """The settings with some options changed, in the words and with the checks of `Checkpoints`.

    >>> changed_settings(CheckpointSettings(), {"every": "5s"}).every
    5.0
    """
    unknown = options.keys() - CheckpointOptions.__annotations__.keys()
    if unknown:
        known = listed(CheckpointOptions.__annotations__)
        raise PipelineError(f"Checkpoints: {listed(sorted(unknown))} cannot be configured; choose from {known}")
    merged = {name: getattr(settings, name) for name in CheckpointOptions.__annotations__} | options
    made = Checkpoints("unused", **merged).settings  # type: ignore[arg-type]
    return replace(settings, **{name: getattr(made, name) for name in options})


def _at_least(least: int, value: int, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{what}={value!r} must be a whole number of at least {least}")
    return value
