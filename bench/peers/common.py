"""What the measurements of all peers have in common: how they are asked, and how they answer.

A measurement is a script that is run by the interpreter of its peer's own environment. It says what it does on
standard error, a line at a time, and prints one JSON object on standard output. So nothing here may need more than the
standard library.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SCATTER = 2_654_435_761
"""Events are a pure function of their index i: key = i * SCATTER % keys, value = i % 1000 (w3: i % 997), and 100 of
them in every millisecond of event time."""


def asked(description: str, workloads: Sequence[str], modes: Sequence[str] = ()) -> argparse.Namespace:
    """What is to be measured."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("workload", choices=workloads)
    if modes:
        parser.add_argument("--mode", choices=modes, default=modes[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--warm", type=float, default=20.0, help="seconds before the measurement")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of the measurement")
    parser.add_argument("--rate", type=float, default=0.0, help="events per second (latency)")
    parser.add_argument("--scratch", type=Path, required=True, help="an empty directory, removed by the caller")
    return parser.parse_args()


def values_of(workload: str) -> int:
    """How many values events have. With 1000, a key of w3 would always have the same one, and nothing would fall."""
    return 997 if workload == "w3" else 1_000


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(main: Callable[[], None]) -> None:
    """Runs a measurement. If it fails, the last line that it says is why, after everything else that is known."""
    try:
        main()
    except Exception as error:
        traceback.print_exc()
        sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])


def answer(
    options: argparse.Namespace, events_per_s: float, checkpoint_ms: Sequence[float], size: int, **more: Any
) -> None:
    """Prints the figures. `checkpoint_ms`: durations of those that completed in the measured time; `size`: bytes."""
    durations = sorted(checkpoint_ms)
    figures = {
        "events_per_s": round(events_per_s),
        "keys": options.keys,
        "workers": options.workers,
        "checkpoints": len(durations),
        "checkpoint_ms_p50": round(statistics.median(durations), 1) if durations else None,
        "checkpoint_ms_p99": round(durations[int(len(durations) * 0.99)], 1) if durations else None,
        "bytes": size,
        **more,
    }
    print(json.dumps(figures), flush=True)
