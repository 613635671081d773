"""How each system is started for one case, and how long that may take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .cases import Case, System, Variant, Workload
from .environments import BENCH, interpreter

Say = Callable[[str], None]
MANY_KEYS = 10_000_000


@dataclass(frozen=True)
class Settings:
    """Of a whole comparison. Results of different settings are not put together."""

    seconds: float = 15.0
    """How long a measurement counts, once the system is warm."""
    warm: float = 60.0
    """How long a JVM runs before that: it is still getting faster after a minute."""
    keys: int = 1_000_000
    workers: int = 2


QUICK = Settings(seconds=7.0, warm=12.0)
PYFLINK_MODES = {Variant.LARGE_BUNDLES: "large-bundles", Variant.THREADS: "thread"}
START_SECONDS = 240.0
"""What a system may take beside the time that it is warmed up and measured: PyFlink starts for up to a minute, Spark
fills its state first, and Bytewax works off what its sources have read ahead."""


def timeout(settings: Settings) -> float:
    return START_SECONDS + 2 * (settings.warm + settings.seconds)


def command(case: Case, settings: Settings, scratch: Path, full_load: float | None, say: Say) -> list[str]:
    """`full_load`: events per second, where the latency of this system is measured at a tenth of it."""
    if case.system is System.PENSTOCK:
        return _penstock(case, settings)
    if case.system is System.POLARS:
        return [*_own(), "polars", "--json", "--workload", case.workload, "--keys", str(settings.keys)]
    python = interpreter(case.system, say)
    started = [str(python), str(BENCH / "peers" / f"run_{case.system}.py"), case.workload]
    started += ["--keys", str(settings.keys), "--workers", str(settings.workers), "--scratch", str(scratch)]
    started += ["--seconds", f"{settings.seconds:g}", "--warm", f"{settings.warm:g}"]
    if case.variant in PYFLINK_MODES:
        started += ["--mode", PYFLINK_MODES[case.variant]]
    if case.workload is Workload.LATENCY:
        if full_load is None:
            raise ValueError(f"the latency of {case.system} is measured at a tenth of its full load, and w2 told none")
        started += ["--rate", f"{full_load / 10:.0f}"]
    return started


def _penstock(case: Case, settings: Settings) -> list[str]:
    keys = MANY_KEYS if case.variant is Variant.MANY_KEYS else settings.keys
    started = [*_own(), case.workload, "--json", "--keys", str(keys), "--workers", str(settings.workers)]
    started += ["--seconds", f"{settings.seconds:g}"]
    if case.variant is Variant.STRING_KEYS:
        started += ["--key-type", "string"]
    if case.variant is Variant.SKEWED:
        started += ["--skew"]
    return started


def _own() -> list[str]:
    return [str(Path(sys.executable).with_name("penstock")), "bench"]
